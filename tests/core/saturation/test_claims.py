"""Sentences on the paper's claims for fixed records; golden/saturation_claims_*.txt contains the complete texts."""

import math

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.records import MeasuredValue, Outcome, SaturationRecord
from sdpa_onnx.core.saturation.claims import claims
from sdpa_onnx.core.saturation.measures import MeasureName
from tests.conftest import GoldenCheck

# Unscaled, scaled: (beta / beta_c, e^H, share > 0.99, dL/dq rms, median, dead rows, dL/dlogits rms, float16 zeros).
Figures = tuple[float, float, float, float, float, float, float, float]
CELLS: dict[tuple[int, int], tuple[Figures, Figures]] = {
    (16, 256): (
        (1.20, 6.77, 0.01, 1.17, 0.864, 0.006, 0.302, 0.12),
        (0.30, 156.0, 0.0, 0.103, 0.0918, 0.0, 0.101, 0.0),
    ),
    (64, 256): ((2.40, 2.10, 0.13, 2.26, 1.05, 0.055, 0.284, 0.74), (0.30, 156.0, 0.0, 0.101, 0.0927, 0.0, 0.100, 0.0)),
    (1024, 256): (
        (9.6, 1.19, 0.65, 5.30, 0.029, 0.45, 0.165, 0.98),
        (0.30, 156.0, 0.0, 0.0998, 0.0935, 0.0, 0.0998, 0.0),
    ),
    (64, 4096): (
        (1.96, 2.95, 0.07, 2.35, 1.44, 0.014, 0.296, 0.92),
        (0.245, 2486.0, 0.0, 0.0261, 0.0253, 0.0, 0.0259, 0.0),
    ),
}


def record(
    rule: ScaleRule,
    head_dim: int,
    length: int,
    figures: Figures,
    *,
    sigma: float = 1.0,
    target: str = "sdpa",
    outcome: Outcome = Outcome.OK,
    variance_ratio: float = 1.01,
) -> SaturationRecord:
    """One cell; every standard error is 1 % of its value."""
    phase, keys, saturated, rms, median, dead, logits, zeros = figures
    scale = {ScaleRule.NONE: 1.0, ScaleRule.INVERSE_SQRT: head_dim**-0.5, ScaleRule.INVERSE: 1.0 / head_dim}[rule]
    variance = variance_ratio * head_dim * sigma**4
    values = {
        MeasureName.PRODUCT_VARIANCE: variance,
        MeasureName.BETA: scale * variance**0.5,
        MeasureName.BETA_OVER_CRITICAL: phase,
        MeasureName.ENTROPY: math.log(keys),
        MeasureName.EFFECTIVE_KEYS: keys,
        MeasureName.SATURATED_ROWS: saturated,
        MeasureName.LOGIT_GRADIENT_RMS: logits,
        MeasureName.QUERY_GRADIENT_RMS: rms,
        MeasureName.QUERY_GRADIENT_MEDIAN: median,
        MeasureName.QUERY_GRADIENT_DEAD: dead,
        MeasureName.FLOAT16_ZEROS: zeros,
    }
    return SaturationRecord(
        target=target,
        outcome=outcome,
        scale_rule=rule.value,
        head_dim=head_dim,
        kv_seq_len=length,
        sigma=sigma,
        dtype="float32",
        rows=2048,
        draws=16,
        measures={
            name.value: MeasuredValue(value=value, predicted=value, standard_error=0.01 * value, z=0.0)
            for name, value in values.items()
        },
    )


def both(head_dim: int, length: int) -> list[SaturationRecord]:
    plain, scaled = CELLS[head_dim, length]
    return [
        record(ScaleRule.NONE, head_dim, length, plain),
        record(ScaleRule.INVERSE_SQRT, head_dim, length, scaled),
    ]


def test_the_whole_text(golden: GoldenCheck) -> None:
    """Two lengths, three widths, both rules."""
    records = [one for place in CELLS for one in both(*place)]
    golden("saturation_claims_both.txt", "\n".join(claims(records)) + "\n")


def test_a_module_beside_independent_components(golden: GoldenCheck) -> None:
    """Inputs of different sigma are kept apart and never averaged."""
    plain, scaled = CELLS[64, 256]
    module = [
        record(rule, 64, 512, figures, sigma=0.5**0.5, target="torch.nn.MultiheadAttention")
        for rule, figures in ((ScaleRule.NONE, plain), (ScaleRule.INVERSE_SQRT, scaled))
    ]
    golden("saturation_claims_module.txt", "\n".join(claims([*both(64, 256), *module])) + "\n")


def test_one_rule_alone_compares_nothing() -> None:
    """Without its partner there are no sentences on gradients, costs or gains."""
    text = " ".join(claims([record(ScaleRule.INVERSE, 64, 256, CELLS[64, 256][1])]))
    assert "Scale 1/d_k: beta / beta_c is 0.3; of 1 cell, 1 soft." in text
    assert "radient" not in text
    assert "sqrt" not in text
    assert "scaling" not in text


def test_what_disagrees_carries_no_claim() -> None:
    """It is counted, and its figures appear nowhere."""
    plain, scaled = CELLS[1024, 256]
    off = record(ScaleRule.NONE, 1024, 256, plain, outcome=Outcome.DISAGREES)
    said = claims([off, record(ScaleRule.INVERSE_SQRT, 1024, 256, scaled)])
    assert said[0] == ("1 of 2 cells are incomplete or outside their bound or prediction, and are not used below.")
    assert "9.6" not in " ".join(said)


def test_only_bad_records_leave_the_warning() -> None:
    """And no records leave nothing."""
    assert claims([]) == []
    assert len(claims([SaturationRecord(outcome=Outcome.UNSUPPORTED)])) == 1
    overflowed = SaturationRecord(measures={MeasureName.FLOAT16_OVERFLOW.value: MeasuredValue(value=0.9)})
    assert len(claims([overflowed])) == 1


def test_a_wrong_variance_is_said() -> None:
    """Just inside and just outside four standard errors of 1 %."""
    figures = CELLS[64, 256][1]
    inside = claims([record(ScaleRule.INVERSE_SQRT, 64, 256, figures, variance_ratio=1.04)])[1]
    outside = claims([record(ScaleRule.INVERSE_SQRT, 64, 256, figures, variance_ratio=1.05)])[1]
    assert "it is d_k within the errors" in inside
    assert outside == (
        "Variance of q.k: the mean square of q.k is 1.05 times d_k, with standard errors up to 0.0105; "
        "at d_k 64, length 256 it is not d_k."
    )


def test_medians_closer_than_their_errors_decide_nothing() -> None:
    """A crossing is claimed only between two sure signs."""
    plain, scaled = CELLS[64, 256]
    near = (*plain[:4], scaled[4] * 1.03, *plain[5:])
    said = claims([record(ScaleRule.NONE, 64, 256, near), record(ScaleRule.INVERSE_SQRT, 64, 256, scaled)])
    assert "at length 256, no significant difference" in " ".join(said)
