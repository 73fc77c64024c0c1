"""Saturation end to end: the exported graph on a runtime, torch's gradients, flags on planted faults."""

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sdpa_onnx.core.attention.oracle import softmax
from sdpa_onnx.core.attention.precision import Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, ScaleRule
from sdpa_onnx.core.records.records import Outcome, SaturationRecord, decode_record, encode_record
from sdpa_onnx.core.saturation.measures import LIMIT_Z, MeasureName, deviations
from sdpa_onnx.errors import PlanError
from sdpa_onnx.runtimes.base import Unsupported
from sdpa_onnx.workflows.saturation import draws as saturation_draws
from sdpa_onnx.workflows.saturation.draws import V_HEAD_DIM, QueryBlock, gaussian_draw, gradient_norms, module_draw
from sdpa_onnx.workflows.saturation.measure import (
    MODULE_TARGET,
    SaturationPlan,
    _measure_cell,
    _measured_record,
    _plain_cell,
    _run_draws,
    module_check,
    saturation,
)
from sdpa_onnx.workflows.saturation.sources import AttentionValues, judge_block, open_source, spec_of

Float32 = NDArray[np.float32]

FLOAT32 = np.dtype(np.float32)
SMALL = SaturationPlan(head_dims=(16,), kv_seq_lens=(16, 65), rows=64, draws=8)


@dataclasses.dataclass(slots=True)
class Planted:
    """The formula in float64, with its own scale and a planted fault in the weights."""

    spec: AttentionSpec
    scale: float
    fault: Callable[[Float32], Float32] = lambda weights: weights
    runtime: str = "planted"
    warnings: tuple[str, ...] = ()
    opset: int = 18

    def attend(self, block: QueryBlock) -> AttentionValues:
        logits = self.scale * (block.query.astype(np.float64) @ block.key.T)
        weights = self.fault(softmax(logits).astype(np.float32))
        return AttentionValues(output=weights @ block.value, weights=weights, logits=logits.astype(np.float32))

    def precision(self) -> Precision:
        return find_precision("float32")


def measured(source: Planted, plan: SaturationPlan = SMALL, *, true_sigma: float | None = None) -> SaturationRecord:
    """The record of the plan's last cell, from that source; the draws may have another sigma than the plan."""
    cell = _plain_cell(plan, plan.head_dims[0], plan.kv_seq_lens[-1])
    if true_sigma is not None:
        drawn = _plain_cell(dataclasses.replace(plan, sigma=true_sigma), cell.head_dim, cell.kv_seq_len)
        cell = dataclasses.replace(cell, draw=drawn.draw)
    (record,) = _measure_cell(cell, {ScaleRule(str(source.spec.scale)): source})
    return record


def planted(rule: ScaleRule = ScaleRule.INVERSE_SQRT, *, power: float = 1.0) -> Planted:
    """Right at power 1; 0 forgets the scale, 2 applies it twice."""
    spec = spec_of(16, rule)
    return Planted(spec, spec.scale_value**power)


def one_block(*, rows: int = 8, keys: int = 40, head_dim: int = 16, seed: int = 3) -> QueryBlock:
    rng = np.random.default_rng(seed)
    return gaussian_draw(rng, rows=rows, kv_seq_len=keys, head_dim=head_dim, sigma=1.0, dtype=FLOAT32).heads[0]


@pytest.fixture(scope="module")
def records() -> list[SaturationRecord]:
    """The small plan on ONNX Runtime."""
    return list(saturation(SMALL))


def test_one_record_a_cell_out_of_the_graph(records: list[SaturationRecord]) -> None:
    """Both lengths use one export per rule, and record what ran."""
    assert [(record.kv_seq_len, record.scale_rule) for record in records] == [
        (16, "none"),
        (16, "1/sqrt(d_k)"),
        (65, "none"),
        (65, "1/sqrt(d_k)"),
    ]
    for record in records:
        assert (record.outcome, record.reason, record.warnings) == (Outcome.OK, "", ())
        assert (record.runtime, record.form, record.opset) == ("ort-cpu", "decomposed", 18)
        assert (record.rows, record.draws, record.sigma, record.dtype) == (512, 8, 1.0, "float32")
        assert decode_record(encode_record(record), where="here") == record
    assert records[0].case == "b1_hq1_hkv1_q64_kv16_d16_f32_dv64_scalenone"


def test_measures_lie_at_their_predictions(records: list[SaturationRecord]) -> None:
    """All but medians, quantiles, dead rows and the mean largest weight have one."""
    for record in records:
        assert not deviations(record.measures)
        without = {name for name, measure in record.measures.items() if measure.z is None}
        assert without == {"largest_weight", "jacobian_median"} | {
            f"{of}_gradient_{what}" for of in ("logit", "query") for what in ("median", "p10", "dead")
        }


def test_the_runtime_gives_what_the_formula_gives(records: list[SaturationRecord]) -> None:
    """The same draws through NumPy's float64: measures equal to float32's rounding."""
    record = measured(planted())
    other = records[-1]
    for name, measure in record.measures.items():
        assert other.measures[name].value == pytest.approx(measure.value, rel=2e-5, abs=1e-6), name


@pytest.mark.parametrize("power", [0.0, 2.0, 0.9], ids=["forgotten", "squared", "15 % off"])
def test_a_wrong_scale_is_flagged(power: float) -> None:
    """By the measures alone, independent of the judgement of the weights."""
    record = measured(planted(power=power))
    assert record.outcome is Outcome.DISAGREES
    beyond = deviations(record.measures)
    assert {"beta", "logit_spread"} <= set(beyond)
    assert all(abs(one.z or 0.0) > LIMIT_Z for one in beyond.values())


def test_the_right_scale_is_not() -> None:
    """The source without a fault passes, so the faults above are what is flagged."""
    assert measured(planted()).outcome is Outcome.OK


def test_rows_that_are_not_finite_are_reported() -> None:
    """One row in each draw: excluded, with a warning, and then nothing is compared."""
    source = planted()
    source.fault = not_a_number
    record = measured(source)
    (warning,) = record.warnings
    assert warning == (
        "8 of 512 rows have logits or weights that are not finite; they are excluded, and only the overflow "
        "is compared with a prediction."
    )
    assert [name for name, one in record.measures.items() if one.z is not None] == ["float16_overflow"]


@pytest.mark.parametrize("sigma", [0.8, 1.25])
def test_a_misreported_sigma_is_flagged(sigma: float) -> None:
    """The graph is right, so only the measures can detect the fault."""
    record = measured(planted(), true_sigma=sigma)
    assert record.outcome is Outcome.DISAGREES
    assert "Output and weights" not in record.reason
    assert "product_variance" in deviations(record.measures)
    assert "others deviate too." in record.reason


def test_the_reason_names_the_furthest_measure() -> None:
    """Value, prediction, z and the limit."""
    record = measured(planted(), true_sigma=1.25)
    name, worst = next(iter(deviations(record.measures).items()))
    assert record.reason.startswith(
        f"{name} is {worst.value:.4g}, predicted {worst.predicted:.4g} (z = {worst.z:+.1f}, allowed 4); "
    )


@dataclasses.dataclass(slots=True)
class Wavering(Planted):
    """Without a scale in its first blocks, right afterwards."""

    wrong_blocks: int = 8

    def attend(self, block: QueryBlock) -> AttentionValues:
        self.wrong_blocks -= 1
        self.scale = 1.0 if self.wrong_blocks >= 0 else self.spec.scale_value
        return Planted.attend(self, block)


def test_a_deviation_counts_when_fresh_draws_show_it() -> None:
    """Eight wrong draws and eight right ones: the right ones are shown, with a warning about the first ones."""
    spec = spec_of(16, ScaleRule.INVERSE_SQRT)
    source = Wavering(spec, 1.0)
    cell = _plain_cell(SMALL, 16, 65)
    found = _run_draws(cell, {ScaleRule.INVERSE_SQRT: source}, start=0)
    again = _run_draws(cell, {ScaleRule.INVERSE_SQRT: source}, start=8)
    first, fresh = found[ScaleRule.INVERSE_SQRT], again[ScaleRule.INVERSE_SQRT]
    assert deviations(first.measures)
    first.faults = ()
    record = _measured_record(cell, ScaleRule.INVERSE_SQRT, source, first, fresh)
    assert (record.outcome, record.measures) == (Outcome.OK, fresh.measures)
    assert record.warnings[0].startswith("In the first 8 draws ")
    assert record.warnings[0].endswith("; as many fresh draws, shown here, do not confirm it.")


def shift_a_key(weights: Float32) -> Float32:
    return np.roll(weights, 1, axis=1)


def lose_a_thousandth(weights: Float32) -> Float32:
    return weights * np.float32(0.999)


def scale_one_weight(weights: Float32) -> Float32:
    changed = weights.copy()
    changed[3, 7] *= np.float32(1.0005)
    return changed


def not_a_number(weights: Float32) -> Float32:
    changed = weights.copy()
    changed[0, 0] = np.nan
    return changed


@pytest.mark.parametrize("fault", [shift_a_key, lose_a_thousandth, scale_one_weight, not_a_number])
def test_wrong_weights_are_judged_wrong(fault: Callable[[Float32], Float32]) -> None:
    """Faults that no average shows: weights of other keys, a lost part, one weight, NaN."""
    source = planted()
    block = one_block()
    assert judge_block(source, block, source.attend(block)) == ((), ())
    source.fault = fault
    faults, _ = judge_block(source, block, source.attend(block))
    assert faults[0].startswith("Output and weights: ")
    assert measured(source).outcome is Outcome.DISAGREES


def test_row_that_does_not_sum_to_one_is_reported() -> None:
    """Also when it is not among the rows that are compared one by one."""
    source = planted()
    block = one_block(rows=64)
    attended = source.attend(block)
    assert isinstance(attended.weights, np.ndarray)
    attended.weights[50] *= 1.001
    faults, _ = judge_block(source, block, attended)
    assert len(faults) == 1
    assert faults[0].startswith("The weights of a row sum to 1 only within 0.001; ")


def test_gradients_are_those_of_the_formula() -> None:
    """J u for the logits and scale K^T J u for the query, u = V g."""
    block = one_block()
    scale = 0.25
    logit_norms, query_norms = gradient_norms(block, scale)
    logits = scale * (block.query.astype(np.float64) @ block.key.T)
    for row, weights in enumerate(softmax(logits)):
        u = block.value.astype(np.float64) @ block.upstream[row]
        gradient = weights * (u - weights @ u)
        assert logit_norms[row] == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
        assert query_norms[row] == pytest.approx(scale * np.linalg.norm(gradient @ block.key), rel=1e-5)


def test_gradients_of_nearly_one_hot_rows_are_kept() -> None:
    """Scaled up until float32 would round w - w^2 to nothing, the norm is still that of the second key."""
    query, key = np.array([[1.0]], np.float32), np.array([[0.0], [-30.0]], np.float32)
    value = np.zeros((2, V_HEAD_DIM), np.float32)
    value[1, 0] = 1.0
    upstream = np.eye(1, V_HEAD_DIM, dtype=np.float32)
    norm, _ = gradient_norms(QueryBlock(query=query, key=key, value=value, upstream=upstream), 1.0)
    assert norm[0] == pytest.approx(np.sqrt(2.0) * np.exp(-30.0), rel=1e-3)


def test_blocks_cover_the_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long row makes small blocks; together they are the draw."""
    monkeypatch.setattr(saturation_draws, "_BLOCK_ELEMENTS", 200)
    rng = np.random.default_rng(0)
    draw = gaussian_draw(rng, rows=5, kv_seq_len=100, head_dim=1, sigma=1.0, dtype=FLOAT32)
    blocks = list(draw.blocks())
    assert [block.query.shape[0] for block in blocks] == [2, 2, 1]
    assert np.array_equal(np.concatenate([block.query for block in blocks]), draw.heads[0].query)
    assert np.array_equal(np.concatenate([block.upstream for block in blocks]), draw.heads[0].upstream)


def test_draws_are_repeatable_and_shared_by_the_rules(records: list[SaturationRecord]) -> None:
    """The rules of a cell see the same products; another seed sees others."""
    plain, scaled = records[2:]
    name = MeasureName.PRODUCT_VARIANCE
    assert plain.measures[name].value == pytest.approx(scaled.measures[name].value, rel=1e-6)
    assert measured(planted()) == measured(planted())
    other = measured(planted(), dataclasses.replace(SMALL, seed=1))
    assert other.measures[name].value != pytest.approx(scaled.measures[name].value, rel=1e-4)


def test_a_module_draw_is_what_the_module_computes() -> None:
    """Queries and keys of a draw give the weights that nn.MultiheadAttention itself returns."""
    draw = module_draw(np.random.default_rng(5), rows=6, kv_seq_len=6, hidden_size=32, num_heads=4, dtype=FLOAT32)
    rng = np.random.default_rng(5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        module = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    hidden = torch.from_numpy(rng.standard_normal((1, 6, 32), dtype=np.float32))
    with torch.no_grad():
        _, weights = module(hidden, hidden, hidden, average_attn_weights=False)
    assert len(draw.heads) == 4
    for head, block in enumerate(draw.heads):
        mine = softmax((block.query.astype(np.float64) @ block.key.T) / np.sqrt(8.0))
        assert mine == pytest.approx(weights[0, head].numpy(), abs=1e-6)


@pytest.mark.slow
def test_multihead_attention_as_it_is_initialised() -> None:
    """Spread 0.497 scaled and 3.98 unscaled at d_k 64, entropy 6.114 and 2.10: sigma^2 = 1/2, not 1."""
    plain, scaled = module_check()
    assert (plain.scale_rule, scaled.scale_rule) == ("none", "1/sqrt(d_k)")
    for record, spread, entropy in ((plain, 3.98, 2.10), (scaled, 0.497, 6.114)):
        assert (record.target, record.outcome, record.head_dim) == (MODULE_TARGET, Outcome.OK, 64)
        assert record.sigma == pytest.approx(0.5**0.5)
        assert len(record.warnings) == 1
        for name, value in (("logit_spread", spread), ("entropy", entropy)):
            measure = record.measures[name]
            assert measure.standard_error is not None
            assert measure.value == pytest.approx(value, abs=4 * measure.standard_error + 0.002 * value)


def test_above_the_widest_head_numpy_gives_the_weights() -> None:
    """The record has a warning."""
    plan = SaturationPlan(head_dims=(1025,), kv_seq_lens=(16,), rows=32, draws=4)
    for record in saturation(plan):
        assert (record.runtime, record.form, record.opset, record.outcome) == ("", "", 0, Outcome.OK)
        assert record.warnings == (
            "Above d_k = 1024 the weights come from NumPy, not from an exported graph on a runtime.",
        )
    with ExitStack() as stack:
        source = open_source(
            spec_of(1025, ScaleRule.NONE), dtype=Dtype.FLOAT32, runtime="ort-cpu", threads=1, stack=stack
        )
    assert not isinstance(source, Unsupported)
    assert source.runtime == ""


def test_progress_is_reported() -> None:
    """After each record: finished and total."""
    progress: list[tuple[int, int]] = []
    plan = SaturationPlan(head_dims=(2000,), kv_seq_lens=(2, 3), rows=4, draws=4)
    list(saturation(plan, on_done=lambda done, total: progress.append((done, total))))
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("head_dims", (0,), "1 to 65536 each"),
        ("head_dims", (65537,), "1 to 65536 each"),
        ("kv_seq_lens", (1,), "2 to 65536 each"),
        ("kv_seq_lens", (65537,), "2 to 65536 each"),
        ("rows", 0, "1 or more"),
        ("draws", 3, "4 or more"),
        ("sigma", 0.0, "0.001 to 1000"),
        ("sigma", 1001.0, "0.001 to 1000"),
        ("sigma", float("inf"), "0.001 to 1000"),
        ("sigma", float("nan"), "0.001 to 1000"),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(field: str, value: object, allowed: str) -> None:
    """The error has the field, the value and the allowed values."""
    changed: dict[str, Any] = {field: value}
    with pytest.raises(PlanError) as caught:
        dataclasses.replace(SMALL, **changed)
    assert str(caught.value) == f"{field} is {value}; it must be {allowed}."


@pytest.mark.slow
def test_a_type_that_the_runtime_lacks_is_unsupported() -> None:
    """bfloat16 on ONNX Runtime's CPU provider: a record with the reason, no measure."""
    records = list(saturation(dataclasses.replace(SMALL, dtype=Dtype.BFLOAT16)))
    assert {record.outcome for record in records} == {Outcome.UNSUPPORTED}
    assert records[0].reason == "ort-cpu has no bfloat16 kernel for MatMul"
    assert records[0].measures == {}


@pytest.mark.slow
def test_float16_is_right_and_its_overflow_is_excused() -> None:
    """Unit variance agrees; at sigma 60 products overflow, which is measured, warned about and no fault."""
    plan = dataclasses.replace(SMALL, head_dims=(64,), kv_seq_lens=(256,), dtype=Dtype.FLOAT16)
    assert {record.outcome for record in saturation(plan)} == {Outcome.OK}
    plain, scaled = saturation(dataclasses.replace(plan, sigma=60.0))
    for record in (plain, scaled):
        assert record.outcome is Outcome.OK, record.reason
        assert record.measures[MeasureName.FLOAT16_OVERFLOW].value == pytest.approx(0.0241, rel=0.2)
    assert "rows have logits or weights that are not finite; they are excluded" in plain.warnings[-1]
    assert [name for name, one in plain.measures.items() if one.z is not None] == ["float16_overflow"]
    assert scaled.warnings == ()


@pytest.mark.slow
def test_the_whole_grid() -> None:
    """METHOD D.4 measured again: d_k 4 to 4096, length 16 to 4096, scaled and not."""
    plan = SaturationPlan(head_dims=(4, 16, 64, 256, 1024, 4096), kv_seq_lens=(16, 64, 256, 1024, 4096), seed=1)
    records = list(saturation(plan))
    assert len(records) == 60
    assert {record.case: record.reason for record in records if record.outcome is not Outcome.OK} == {}
