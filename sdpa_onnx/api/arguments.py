"""Arguments of the Python API that have the wrong kind: one sentence instead of an error from deep inside."""

import os
from collections.abc import Iterable, Mapping
from typing import TypeVar

from sdpa_onnx.errors import PlanError

__all__ = ["listed", "listed_sizes"]

Item = TypeVar("Item")


def listed(parameter: str, values: Iterable[Item]) -> tuple[Item, ...]:
    """The values of a parameter that takes several; a text is not a list of its letters.

    Args:
        parameter: Its name.
        values: What was given, of any type.

    Raises:
        PlanError: If it is one value instead of a list.

    Example:
        >>> listed("skip", ["time"])
        ('time',)
    """
    given: object = values  # by a caller without type checks
    if isinstance(given, str | bytes | os.PathLike | Mapping) or not isinstance(given, Iterable):
        hint = "Leave it out for the default." if given is None else f"Write {parameter}=[{given!r}]."
        raise PlanError(f"{parameter} is {given!r}, not a list.", hint=hint)
    return tuple(values)


def listed_sizes(parameter: str, values: Iterable[Mapping[str, int]]) -> tuple[Mapping[str, int], ...]:
    """Sets of sizes of named axes.

    Raises:
        PlanError: If it is no list of them.
    """
    sets = listed(parameter, values)
    for one in sets:
        if not isinstance(one, Mapping):
            raise PlanError(
                f"{parameter} has {one!r}, not sizes by axis.", hint=f"Write {parameter}=[{{'AXIS': 128}}]."
            )
    return sets
