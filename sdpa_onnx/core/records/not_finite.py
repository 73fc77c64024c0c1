"""Find NaN and infinity in a line that is no JSON because of them; repairs nothing."""

import json
import math
from collections.abc import Iterator

__all__ = ["NOT_FINITE_HINT", "not_finite_number"]

NOT_FINITE_HINT = "Numbers are finite; write null for a figure that is not known."


def not_finite_number(line: bytes | str) -> str:
    """Name the first field that is NaN, infinite or too large for a float; "" if there is none.

    Example:
        >>> not_finite_number('{"seed": 1, "measures": {"entropy": {"value": NaN}}}')
        'measures.entropy.value is NaN'
    """
    try:
        return next(_places(json.loads(line), ""), "")
    except (ValueError, RecursionError):  # broken in another way
        return ""


def _places(value: object, place: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{place} is {'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}"
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _places(one, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _places(one, f"{place}[{number}]")
