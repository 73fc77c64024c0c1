"""Sort keys of table cells: text that was made from numbers and units, back to one number."""

import re

__all__ = ["sort_key"]

_NUMBER = re.compile(r"^[<~+]?(-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)\s*(\S*)", re.IGNORECASE)
# Twin: the units of text/number_text.py.
_FACTORS = {
    "s": 1.0,
    "ms": 1e-3,
    "µs": 1e-6,
    "ns": 1e-9,
    "%": 1e-2,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}


def sort_key(text: str) -> float | None:
    """The number at the start of a cell in its basic unit; None if it does not start with one.

    Example:
        >>> sort_key("4.51 ms [4.43, 4.60]"), sort_key("0.4 %"), sort_key("-"), sort_key("+2.1")
        (0.00451, 0.004, None, 2.1)
    """
    found = _NUMBER.match(text.strip())
    if found is None:
        return None
    value = float(found[1].replace(",", "")) * _FACTORS.get(found[2], 1.0)
    return float(f"{value:.6g}")
