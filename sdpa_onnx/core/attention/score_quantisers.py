"""Describes how a graph rounds scores and weights to integers inside an attention: QDQ pairs between its products.

Pairs on query, key, value, mask and output are not part of it: their dequantised values are the attention's inputs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["Quantiser", "ScoreQuantisers", "quantised"]

Float64 = NDArray[np.float64]

# Largest minus smallest integer of the types that onnxruntime's QLinearSoftmax has.
_BYTE = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiser:
    """One pair of QuantizeLinear and DequantizeLinear with the same parameters for all elements.

    Args:
        scale: Step between neighbouring values.
        zero_point: The integer of 0.
        lowest: Smallest integer of the type.
        highest: Largest integer of the type.
        multiplier: Number by which values become integers; None = 1 / scale, as the operator defines.

    Source: ONNX QuantizeLinear, y = saturate(round(x / scale) + zero_point), halves to even; DequantizeLinear,
        (y - zero_point) scale.

    Example:
        >>> Quantiser(scale=0.5, zero_point=0, lowest=-128, highest=127)(np.array([0.3, 0.2, 100.0, -np.inf]))
        array([  0.5,   0. ,  63.5, -64. ])
    """

    scale: float
    zero_point: int
    lowest: int
    highest: int
    multiplier: float | None = None

    def __call__(self, array: Float64) -> Float64:
        """The nearest values that the integers can hold; a function that never decreases."""
        steps = array / self.scale if self.multiplier is None else array * self.multiplier
        integers = np.rint(steps) + self.zero_point
        integers = np.clip(integers, self.lowest, self.highest)
        found: Float64 = (integers - self.zero_point) * self.scale
        return found

    @property
    def with_integer_multiplier(self) -> "Quantiser":
        """The pair as onnxruntime's QLinearSoftmax computes it: 1 / scale in float32, without its fraction.

        A scale of 1/255, stored as 0.00392156886, is so multiplied by 254, and a weight of 1 becomes 254/255.

        Source: qlinear_softmax.cc of onnxruntime, `std::floor(1.0F / scale)`.

        Example:
            >>> pair = Quantiser(scale=float(np.float32(1 / 255)), zero_point=0, lowest=0, highest=255)
            >>> pair.with_integer_multiplier.multiplier
            254
        """
        return replace(self, multiplier=math.floor(float(np.float32(1.0) / np.float32(self.scale))))

    def saturates_below(self, number: float) -> bool:
        """Whether a number becomes the lowest value, as -inf does."""
        lowest, found = self(np.array([-math.inf, number]))
        return bool(lowest == found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreQuantisers:
    """The pairs between the two products of an attention, by the stage whose values they round.

    Args:
        product: After QK^T, before the scale.
        scaled: After the scale, before the mask.
        masked: After the mask. A hidden key then has the lowest value, and with it a weight.
        weights: After the softmax.
    """

    product: tuple[Quantiser, ...] = ()
    scaled: tuple[Quantiser, ...] = ()
    masked: tuple[Quantiser, ...] = ()
    weights: tuple[Quantiser, ...] = ()

    def __bool__(self) -> bool:
        return any((self.product, self.scaled, self.masked, self.weights))

    @property
    def rounds_scores(self) -> bool:
        return any((self.product, self.scaled, self.masked))

    @property
    def by_integer_softmax(self) -> "ScoreQuantisers | None":
        """The pairs where one kernel computes softmax and integers, see `Quantiser`; None if they are the same."""
        if len(self.weights) != 1 or not self.rounds_scores:
            return None
        (only,) = self.weights
        if only.highest - only.lowest != _BYTE or only.with_integer_multiplier.multiplier == 1.0 / only.scale:
            return None
        return replace(self, weights=(only.with_integer_multiplier,))

    @property
    def text(self) -> str:
        """What is rounded, in words.

        Example:
            >>> pair = Quantiser(scale=0.5, zero_point=0, lowest=-128, highest=127)
            >>> ScoreQuantisers(product=(pair,), weights=(pair,)).text
            'scores and weights quantized'
        """
        found = [name for name, is_one in (("scores", self.rounds_scores), ("weights", bool(self.weights))) if is_one]
        return f"{' and '.join(found)} quantized" if found else ""


def quantised(array: Float64, quantisers: Iterable[Quantiser]) -> Float64:
    """The array after one pair after the other."""
    with np.errstate(invalid="ignore", over="ignore"):  # of infinite inputs
        for quantiser in quantisers:
            array = quantiser(array)
    return array
