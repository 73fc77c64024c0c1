"""Replace a function of a class or module for the length of a `with` block.

For what no mode of torch intercepts: `math` on a size, and the two places where torch.export fixes a size.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["replaced"]


@contextlib.contextmanager
def replaced(owner: type | object, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Set an attribute, and restore it on every exit: normal, by an exception, and inside another replacement of it.

    Args:
        owner: A class or a module.
        name: The attribute. One that `owner` inherits is removed again, not set on it.
        function: What stands there meanwhile.
    """
    own = vars(owner)
    is_own, original = name in own, own.get(name)  # as it is stored: a static method stays one
    setattr(owner, name, function)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
