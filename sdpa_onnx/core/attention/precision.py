"""Defines the declared precision of a runtime: the format that each stage of attention is rounded to.

A table; error bounds are computed from it in `core.judge`.
"""

from dataclasses import dataclass
from enum import Enum

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import CaseError

__all__ = ["PRECISIONS", "FloatFormat", "Precision", "find_precision"]


class FloatFormat(Enum):
    """A floating-point format: unit roundoff, half the smallest subnormal, largest number.

    Source: IEEE 754-2019, tables 3.1 to 3.5; bfloat16 and TF32 have float32's
        exponent and 8 and 11 bits of significand.
    """

    FLOAT64 = (2.0**-53, 2.0**-1075, 1.7976931348623157e308)
    FLOAT32 = (2.0**-24, 2.0**-150, 3.4028234663852886e38)
    TF32 = (2.0**-11, 2.0**-150, 3.4028234663852886e38)
    FLOAT16 = (2.0**-11, 2.0**-25, 65504.0)
    BFLOAT16 = (2.0**-8, 2.0**-134, 3.3895313892515355e38)

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest."""
        return self.value[0]

    @property
    def tiny(self) -> float:
        """Largest absolute error of one rounding near zero."""
        return self.value[1]

    @property
    def largest(self) -> float:
        return self.value[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The format of each stage of attention.

    Args:
        operand: Format of the operands inside both matrix products; None = not rounded.
        prescaled: Format of query * sqrt(scale) and key * sqrt(scale) if
            the scale is applied first (ONNX's advice, torch's decomposition).
        score_sum: Accumulator of QK^T.
        scores: Stored scores.
        softmax: Format that the softmax is computed in.
        weights: Stored weights.
        output_sum: Accumulator of weights x value and of the row sum.
        output: Output.
        exp_units: Error of exp (and tanh) in units of softmax's unit roundoff.

    Source: METHOD A.2.
    """

    operand: FloatFormat | None = None
    prescaled: FloatFormat = FloatFormat.FLOAT32
    score_sum: FloatFormat = FloatFormat.FLOAT32
    scores: FloatFormat = FloatFormat.FLOAT32
    softmax: FloatFormat = FloatFormat.FLOAT32
    weights: FloatFormat = FloatFormat.FLOAT32
    output_sum: FloatFormat = FloatFormat.FLOAT32
    output: FloatFormat = FloatFormat.FLOAT32
    exp_units: float = 4.0


_F64, _F16, _BF16 = FloatFormat.FLOAT64, FloatFormat.FLOAT16, FloatFormat.BFLOAT16

PRECISIONS: dict[str, Precision] = {
    "float64": Precision(
        prescaled=_F64, score_sum=_F64, scores=_F64, softmax=_F64, weights=_F64, output_sum=_F64, output=_F64
    ),
    "float32": Precision(),
    "tf32": Precision(operand=FloatFormat.TF32),
    "float16": Precision(prescaled=_F16, scores=_F16, weights=_F16, output=_F16),
    "bfloat16": Precision(prescaled=_BF16, scores=_BF16, weights=_BF16, output=_BF16),
    "float16-accumulation": Precision(
        prescaled=_F16, score_sum=_F16, scores=_F16, softmax=_F16, weights=_F16, output_sum=_F16, output=_F16
    ),
}


def find_precision(name: str | Dtype) -> Precision:
    """Return the precision of that name; a short dtype has float32 accumulators.

    Raises:
        CaseError: If no precision has that name.
    """
    try:
        return PRECISIONS[str(name)]
    except KeyError:
        raise CaseError(f"There is no precision '{name}'.", hint=f"Known: {', '.join(PRECISIONS)}.") from None
