"""Numbers as text: the only module that scales and rounds seconds and shares.

Numbers have three significant digits unless an interval needs more. A figure that is None is printed as "-".
"""

import math

__all__ = [
    "NOT_KNOWN",
    "bytes_text",
    "confidence_text",
    "count",
    "duration",
    "figure",
    "figures_per_second",
    "median_text",
    "percent",
    "ratio_text",
    "share",
    "time_unit",
]

NOT_KNOWN = "-"
"""Text of a figure that is not known or does not apply; its reason is printed elsewhere."""

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_RATE_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))

# Below this width two decimals would print an interval as one number.
_NARROW_RATIO = 0.01


def figure(value: float) -> str:
    """Format a number with three significant digits.

    Example:
        >>> figure(0.11234), figure(12.345), figure(3.2e-7), figure(float("inf"))
        ('0.112', '12.3', '3.20e-07', 'not finite')
    """
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    rounded = float(f"{value:.2e}")
    if not 1e-3 <= abs(rounded) < 1e6:
        return f"{rounded:.2e}"
    return f"{rounded:.{_decimals(rounded)}f}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Choose the unit in which a time is 1 to 999: its size in seconds and its name."""
    rounded = float(f"{seconds:.2e}")
    return next(((size, name) for size, name in _TIME_UNITS if rounded >= size), _TIME_UNITS[-1])


def duration(seconds: float | None) -> str:
    """Format a time with its unit.

    Example:
        >>> duration(0.004512), duration(0.000134)
        ('4.51 ms', '134 µs')
    """
    if seconds is None:
        return NOT_KNOWN
    size, name = time_unit(seconds)
    return f"{figure(seconds / size)} {name}"


def median_text(median: float | None, low: float | None, high: float | None) -> str:
    """Format a time with its interval in one unit; arguments in seconds.

    Example:
        >>> median_text(0.004512, 0.00443, 0.0046)
        '4.51 ms [4.43, 4.60]'
    """
    if median is None or low is None or high is None or not low <= median <= high:
        return duration(median)
    size, name = time_unit(median)
    return f"{figure(median / size)} {name} [{figure(low / size)}, {figure(high / size)}]"


def ratio_text(value: float | None, low: float | None, high: float | None, *, times: str = "") -> str:
    """Format a ratio with its interval, with as many decimals as the interval needs.

    Args:
        times: Text between the number and the interval, such as " x".

    Example:
        >>> ratio_text(0.832, 0.801, 0.861, times=" x"), ratio_text(0.997, 0.9931, 0.9994)
        ('0.83 x [0.80, 0.86]', '0.997 [0.993, 0.999]')
    """
    if value is None or low is None or high is None:
        return NOT_KNOWN
    decimals = 3 if high - low < _NARROW_RATIO else 2
    ends = [f"{end:.{_decimals_near_one(end, decimals)}f}" for end in (low, high)]
    return f"{value:.{decimals}f}{times} [{ends[0]}, {ends[1]}]"


def share(value: float | None) -> str:
    """Format a share as per cent.

    Example:
        >>> share(0.4321), share(0.004)
        ('43 %', '0.4 %')
    """
    if value is None:
        return NOT_KNOWN
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 1 or percent == 0 else f"{float(f'{percent:.0e}'):g} %"


def percent(value: float | None) -> str:
    """Format a small share as per cent with two significant digits.

    Example:
        >>> percent(0.0214), percent(0.004), percent(0.31)
        ('2.1 %', '0.4 %', '31 %')
    """
    return NOT_KNOWN if value is None else f"{float(f'{100 * value:.1e}'):g} %"


def confidence_text(value: float) -> str:
    """Format the confidence of an interval as per cent with all its digits.

    Example:
        >>> confidence_text(0.95), confidence_text(0.995)
        ('95 %', '99.5 %')
    """
    return f"{100 * value:.6g} %"


def bytes_text(number: int | None) -> str:
    """Format an amount of memory.

    Example:
        >>> bytes_text(12_900_000), bytes_text(512)
        ('12.3 MiB', '512 B')
    """
    if number is None:
        return NOT_KNOWN
    size, name = next(((size, name) for size, name in _BYTE_UNITS if number >= size), (1, "B"))
    return f"{figure(number / size)} {name}" if size > 1 else f"{number} {name}"


def figures_per_second(value: float, unit: str) -> str:
    """Format a rate with its prefix: 9.8e10, "FLOP/s" -> "98.0 GFLOP/s"."""
    size, prefix = next(((size, name) for size, name in _RATE_UNITS if value >= size), _RATE_UNITS[-1])
    return f"{figure(value / size)} {prefix}{unit}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: 1 check, 2 checks; an irregular plural is given, as in 2 launches."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def _decimals_near_one(end: float, decimals: int) -> int:
    """Use one more decimal if an end would be rounded to 1, because the verdict depends on which side of 1 it is."""
    return decimals + 1 if f"{end:.{decimals}f}" == f"{1:.{decimals}f}" and end != 1 else decimals


def _decimals(value: float) -> int:
    """Number of decimals for three significant digits."""
    rounded = float(f"{value:.2e}")
    return max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 2
