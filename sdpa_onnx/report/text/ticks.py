"""Round values for a logarithmic axis; draws nothing.

Vega places ticks at powers of ten times 1, 2 and 5; an axis of ratios from 0.8 to 1.3 would have a single tick.
"""

import math

__all__ = ["ticks"]

_LEAST, _MOST = 4, 9
# From coarse to fine; the first with enough values is used.
_MANTISSAS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0))
_LINEAR_STEPS = (1.0, 2.0, 5.0)


def ticks(low: float, high: float) -> list[float]:
    """Choose four to nine round values between two positive ends.

    Example:
        >>> ticks(0.03, 32.0)
        [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
        >>> ticks(0.84, 1.33)
        [0.9, 1.0, 1.1, 1.2, 1.3]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in _MANTISSAS:
        values = [float(f"{mantissa}e{decade}") for decade in decades for mantissa in mantissas]
        inside = [value for value in values if low <= value <= high]
        if len(inside) >= _LEAST:
            return inside[:: math.ceil(len(inside) / _MOST)]
    return _linear(low, high)


def _linear(low: float, high: float) -> list[float]:
    """Evenly spaced values for close ends: the finest step with at most eight intervals."""
    decade = math.floor(math.log10(high - low)) - 1
    steps = [float(f"{step}e{decade + up}") for up in range(3) for step in _LINEAR_STEPS]
    step = next(step for step in steps if (high - low) / step <= _MOST - 1)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]
