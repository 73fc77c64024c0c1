"""Synthetic saturation cells: believable shapes, invented figures, a fixed wobble within two standard errors."""

import math

import msgspec

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.records import MeasuredValue, Outcome, SaturationRecord
from sdpa_onnx.core.saturation.measures import MeasureName, critical_spread
from tests.report.synthetic import wobble

HEAD_DIMS, LENGTHS = (16, 64, 256), (64, 256, 1024)
MODULE = "torch.nn.MultiheadAttention"

UNPREDICTED = {
    MeasureName.LARGEST_WEIGHT,
    MeasureName.JACOBIAN_MEDIAN,
    MeasureName.LOGIT_GRADIENT_MEDIAN,
    MeasureName.LOGIT_GRADIENT_P10,
    MeasureName.LOGIT_GRADIENT_DEAD,
    MeasureName.QUERY_GRADIENT_MEDIAN,
    MeasureName.QUERY_GRADIENT_P10,
    MeasureName.QUERY_GRADIENT_DEAD,
}
SCALES = {ScaleRule.NONE: 0.0, ScaleRule.INVERSE_SQRT: -0.5, ScaleRule.INVERSE: -1.0}


def cell(
    rule: ScaleRule = ScaleRule.NONE,
    *,
    head_dim: int = 64,
    kv_seq_len: int = 256,
    sigma: float = 1.0,
    target: str = "sdpa",
    **fields: object,
) -> SaturationRecord:
    """One right cell, with fields replaced."""
    expected = _expected(head_dim, kv_seq_len, head_dim ** SCALES[rule], sigma)
    usual = {
        "case": f"b1_hq1_hkv1_q128_kv{kv_seq_len}_d{head_dim}_f32",
        "form": "decomposed",
        "opset": 18,
        "runtime": "ort-cpu",
        "dtype": "float32",
        "rows": 2048,
        "draws": 16,
        "measures": {name.value: _measure(name, value, target, head_dim) for name, value in expected.items()},
    }
    return SaturationRecord(
        target=target,
        scale_rule=rule.value,
        head_dim=head_dim,
        kv_seq_len=kv_seq_len,
        sigma=sigma,
        **(usual | fields),
    )


def with_measure(record: SaturationRecord, name: MeasureName, **fields: float | None) -> SaturationRecord:
    """The cell with one measure changed."""
    changed = msgspec.structs.replace(record.measures[name.value], **fields)
    return msgspec.structs.replace(record, measures=record.measures | {name.value: changed})


def flagged(record: SaturationRecord, z: float) -> SaturationRecord:
    """The cell with its entropy this far from its prediction, as the workflow writes it."""
    reason = f"entropy is 0.9, predicted 0.7 (z = {z:+.1f}, allowed 4)."
    return msgspec.structs.replace(
        with_measure(record, MeasureName.ENTROPY, z=z), outcome=Outcome.DISAGREES, reason=reason
    )


def sweep(*rules: ScaleRule, head_dims: tuple[int, ...] = HEAD_DIMS) -> list[SaturationRecord]:
    """Every width, length and rule."""
    return [
        cell(rule, head_dim=head_dim, kv_seq_len=length)
        for head_dim in head_dims
        for length in LENGTHS
        for rule in rules or (ScaleRule.NONE, ScaleRule.INVERSE_SQRT)
    ]


def module_cells() -> list[SaturationRecord]:
    """The default module at its own initialisation."""
    return [
        cell(rule, kv_seq_len=512, sigma=0.5**0.5, target=MODULE) for rule in (ScaleRule.NONE, ScaleRule.INVERSE_SQRT)
    ]


def _expected(head_dim: int, kv_seq_len: int, scale: float, sigma: float) -> dict[MeasureName, float]:
    """Smooth inventions with the right ends: uniform at beta 0, one-hot at a large one."""
    beta = scale * sigma**2 * math.sqrt(head_dim)
    index, keys = beta / critical_spread(kv_seq_len), math.log(kv_seq_len)
    entropy = keys / (1.0 + beta**2 / keys)
    squares = math.exp(-entropy)
    saturated = max(0.0, 1.0 - 1.0 / index) ** 2 if index > 1 else 0.0
    jacobian = math.sqrt(squares / (1.0 + 2.0 * index))
    query = scale * sigma * math.sqrt(head_dim) * jacobian
    tail = math.exp(-(index**2) / 4.0)
    return {
        MeasureName.PRODUCT_MEAN: 0.0,
        MeasureName.PRODUCT_VARIANCE: head_dim * sigma**4,
        MeasureName.LOGIT_SPREAD: beta * 0.99,
        MeasureName.BETA: beta,
        MeasureName.BETA_OVER_CRITICAL: index,
        MeasureName.LOG_PARTITION: keys + beta,
        MeasureName.ENTROPY: entropy,
        MeasureName.ENTROPY_SHARE: entropy / keys,
        MeasureName.EFFECTIVE_KEYS: math.exp(entropy),
        MeasureName.SQUARE_SUM: squares,
        MeasureName.PARTICIPATION: 1.0 / squares,
        MeasureName.LARGEST_WEIGHT: math.sqrt(squares),
        MeasureName.SATURATED_ROWS: saturated,
        MeasureName.JACOBIAN_RMS: jacobian,
        MeasureName.JACOBIAN_MEDIAN: jacobian * tail,
        MeasureName.LOGIT_GRADIENT_RMS: jacobian,
        MeasureName.LOGIT_GRADIENT_MEDIAN: jacobian * tail,
        MeasureName.LOGIT_GRADIENT_P10: jacobian * tail**2 * 0.6,
        MeasureName.LOGIT_GRADIENT_DEAD: saturated * 0.6,
        MeasureName.QUERY_GRADIENT_RMS: query,
        MeasureName.QUERY_GRADIENT_MEDIAN: query * tail,
        MeasureName.QUERY_GRADIENT_P10: query * tail**4 * 0.6,
        MeasureName.QUERY_GRADIENT_DEAD: saturated * 0.6,
        MeasureName.FLOAT16_ZEROS: 1.0 - 1.0 / index if index > 1 else 0.0,
        MeasureName.FLOAT16_OVERFLOW: 0.0,
    }


def _measure(name: MeasureName, expected: float, *place: object) -> MeasuredValue:
    error = 0.01 * expected
    luck = 2.0 * wobble(name.value, expected, *place) if error else 0.0
    value = expected + luck * error
    if name in UNPREDICTED:
        return MeasuredValue(value=value, standard_error=error)
    return MeasuredValue(value=value, predicted=expected, standard_error=error, z=luck)
