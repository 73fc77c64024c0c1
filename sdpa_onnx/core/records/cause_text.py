"""The clause in a diagnosis that names the likely cause, written and read in one place.

Finds no cause: `core.faults` does.
"""

import re

__all__ = ["looks_like", "named_cause"]

_MARK = "It looks as if "
# A full stop ends the clause only before a new sentence: clauses contain numbers.
_CLAUSE = re.compile(rf"{_MARK}(.+?)\.(?=\s+[A-Z]|\s*$)", re.DOTALL)


def looks_like(says: str, dated: str = "") -> str:
    """Return the sentence that names a cause.

    Args:
        says: One clause.
        dated: Version of the specification or of a runtime with this fault; "" if none is known.

    Example:
        >>> looks_like("the scale is off by 1.8 %")
        'It looks as if the scale is off by 1.8 %.'
    """
    note = f" ({dated})" if dated else ""
    return f"{_MARK}{says.removesuffix('.')}{note}."


def named_cause(diagnosis: str) -> str:
    """Return the clause of `looks_like` in a diagnosis; "" if it names no cause.

    Example:
        >>> named_cause("8 of 8 elements exceed the proven bound. It looks as if the scale is off by 1.8 %.")
        'the scale is off by 1.8 %'
    """
    found = _CLAUSE.search(diagnosis)
    return "" if found is None else found[1]
