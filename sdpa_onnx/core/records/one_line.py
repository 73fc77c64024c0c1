"""The one line that `repr` shows of a record, made of the few parts that its kind chooses.

Exact figures are in the fields; reports have their own texts.
"""

from collections.abc import Iterable

__all__ = ["one_line", "ratio_part"]

# The longest part and line; a longer one is cut, because a list of records shows one line for each.
_MOST_PART, _MOST_LINE = 60, 160


def one_line(name: str, parts: Iterable[object]) -> str:
    r"""Join the parts that are known into one line without control characters.

    Example:
        >>> one_line("Record", ("ok", "", None, "a\nb", 3))
        'Record(ok, a\\nb, 3)'
    """
    texts = (_shortened(_printable(str(part)), _MOST_PART) for part in parts if part is not None and part != "")
    return f"{name}({_shortened(', '.join(texts), _MOST_LINE - len(name) - 2)})"


def ratio_part(ratio: float | None, low: float | None, high: float | None, baseline: str) -> str:
    """A ratio of times with its interval; "" if it is not known.

    Example:
        >>> ratio_part(0.832, 0.801, 0.861, "torch")
        '0.832 x torch [0.801, 0.861]'
    """
    if ratio is None:
        return ""
    interval = "" if low is None or high is None else f" [{low:.3g}, {high:.3g}]"
    return f"{ratio:.3g} x {baseline}{interval}"


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
