"""Agreement: planted faults are wrong, correct outputs are not, limits in pairs, complete messages."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention import oracle
from sdpa_onnx.core.attention.inputs import LADDER, AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind, ScaleRule
from sdpa_onnx.core.judge import agreement
from sdpa_onnx.core.judge.agreement import ROWS_PER_HEAD, Agreement, Expectation, SizedMistake, expect, judge
from sdpa_onnx.core.records.records import AgreementRecord, Verdict, decode_record, encode_record
from sdpa_onnx.errors import CaseError
from tests.core.kernels import ARITHMETICS, KERNELS, Kernel, naive, run_kernel, softcap_after_mask

Array = NDArray[Any]
FLOAT32 = find_precision("float32")


def right(spec: AttentionSpec, inputs: AttentionInputs, kernel: Kernel = naive, dtype: str = "float32") -> Array:
    return run_kernel(kernel, spec, inputs, ARITHMETICS[dtype])


# --- Planted faults ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An attention, and a wrong output of it that is caused by a real mistake."""

    name: str
    spec: dict[str, Any]
    plant: Callable[[AttentionSpec, AttentionInputs], Array]
    past_seq_len: int = 0

    def case(self) -> AttentionCase:
        spec = AttentionSpec(**{"q_num_heads": 4, "kv_num_heads": 4, "head_dim": 16, **self.spec})
        return AttentionCase(spec=spec, batch_size=2, q_seq_len=12, kv_seq_len=20, past_seq_len=self.past_seq_len)


def with_spec(**changes: Any) -> Callable[[AttentionSpec, AttentionInputs], Array]:
    """The naive kernel for another spec."""
    return lambda spec, inputs: right(replace(spec, **changes), inputs)


def upper_left(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    """Causality that ignores the past: the concatenated cache is used as new keys."""
    assert inputs.past_key is not None
    assert inputs.past_value is not None
    joined = AttentionInputs(
        query=inputs.query,
        key=np.concatenate([inputs.past_key, inputs.key], axis=2),
        value=np.concatenate([inputs.past_value, inputs.value], axis=2),
    )
    return right(replace(spec, has_past=False), joined)


def bottom_right(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    """Causality aligned to the last key where there is no cache."""
    shift = inputs.key.shape[2] - inputs.query.shape[2]
    return right(replace(spec, is_causal=False, right_window=shift), inputs)


def strictly_before(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    """j < i + offset: a query does not see its own key."""
    rows, keys = np.arange(inputs.query.shape[2])[:, None], np.arange(inputs.key.shape[2])
    return right(replace(spec, is_causal=False), replace(inputs, attn_mask=keys < rows))


def swapped(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    """True read as "hide"."""
    assert inputs.attn_mask is not None
    return right(spec, replace(inputs, attn_mask=~inputs.attn_mask.astype(bool)))


def tiled_heads(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    """Key heads 0 1 0 1 instead of 0 0 1 1."""
    tiles = (1, spec.heads_per_kv, 1, 1)
    tiled = replace(inputs, key=np.tile(inputs.key, tiles), value=np.tile(inputs.value, tiles))
    return right(replace(spec, kv_num_heads=spec.q_num_heads), tiled)


def not_transposed(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    """(batch, sequence, heads x width) reshaped to (batch, heads, sequence, width) without moving axes."""

    def reshaped(array: Array) -> Array:
        return array.reshape(array.shape[0], spec.q_num_heads, array.shape[1], -1)

    crooked = AttentionInputs(query=reshaped(inputs.query), key=reshaped(inputs.key), value=reshaped(inputs.value))
    return right(replace(spec, layout=Layout.BNSH), crooked).transpose(0, 2, 1, 3).reshape(inputs.query.shape)


def last_key_lost(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    return right(spec, replace(inputs, key=inputs.key[:, :, :-1], value=inputs.value[:, :, :-1]))


def heads_swapped(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    return right(spec, inputs)[:, [1, 0, 2, 3]]


def masked_row(value: Callable[[AttentionInputs], Array]) -> Callable[[AttentionSpec, AttentionInputs], Array]:
    """Outputs of kernels for a query without a visible key; only the last query has visible keys."""

    def plant(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
        output = right(spec, inputs).copy()
        output[:, :, -1] = value(inputs)
        return output

    return plant


def touched(change: Callable[[np.float32], float]) -> Callable[[AttentionSpec, AttentionInputs], Array]:
    """One element of a right output changed."""

    def plant(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
        output = right(spec, inputs).copy()
        output[1, 2, 3, 4] = change(output[1, 2, 3, 4])
        return output

    return plant


def half_precision(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    """Computed in float16, handed out as float32."""
    return right(spec, inputs, dtype="float16").astype(np.float32)


FAULTS = (
    Fault(name="no scale", spec={}, plant=with_spec(scale=ScaleRule.NONE)),
    Fault(name="scale by d_k", spec={}, plant=with_spec(scale=ScaleRule.INVERSE)),
    Fault(name="scale 1 % too large", spec={}, plant=with_spec(scale=0.25 * 1.01)),
    Fault(name="softcap left out", spec={"softcap": 1.0}, plant=with_spec(softcap=0.0)),
    Fault(
        name="softcap after mask",
        spec={"softcap": 2.0, "mask": MaskKind.FLOAT},
        plant=lambda spec, inputs: right(spec, inputs, softcap_after_mask),
    ),
    Fault(name="causal left out", spec={"is_causal": True}, plant=with_spec(is_causal=False)),
    Fault(name="causal one key too many", spec={"is_causal": True}, plant=with_spec(is_causal=False, right_window=1)),
    Fault(name="causal one key too few", spec={"is_causal": True}, plant=strictly_before),
    Fault(
        name="causal upper-left with a past",
        spec={"is_causal": True, "has_past": True},
        plant=upper_left,
        past_seq_len=5,
    ),
    Fault(name="causal bottom-right without a cache", spec={"is_causal": True}, plant=bottom_right),
    Fault(name="window one too wide", spec={"left_window": 3}, plant=with_spec(left_window=4)),
    Fault(name="window one too narrow", spec={"right_window": 3}, plant=with_spec(right_window=2)),
    Fault(name="True and False swapped", spec={"mask": MaskKind.BOOL}, plant=swapped),
    Fault(name="heads tiled", spec={"kv_num_heads": 2}, plant=tiled_heads),
    Fault(name="two heads swapped", spec={}, plant=heads_swapped),
    Fault(name="flat layout not transposed", spec={"layout": Layout.BSH}, plant=not_transposed),
    Fault(name="last key lost", spec={}, plant=last_key_lost),
    Fault(name="masked row NaN", spec={"mask": MaskKind.BOOL}, plant=masked_row(lambda _: np.float32(np.nan))),
    Fault(
        name="masked row mean of values",
        spec={"mask": MaskKind.BOOL},
        plant=masked_row(lambda inputs: inputs.value.mean(2, dtype=np.float32)),
    ),
    Fault(name="one element 1 % off", spec={}, plant=touched(lambda element: 1.01 * element)),
    Fault(name="one NaN", spec={}, plant=touched(lambda _: np.nan)),
    Fault(name="one infinity", spec={}, plant=touched(lambda _: -np.inf)),
    Fault(name="float16 in secret", spec={}, plant=half_precision),
    Fault(name="one query missing", spec={}, plant=lambda spec, inputs: right(spec, inputs)[:, :, 1:]),
    Fault(name="axes swapped", spec={}, plant=lambda spec, inputs: right(spec, inputs).transpose(0, 2, 1, 3)),
)


@pytest.mark.parametrize("spread", LADDER)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_wrong_and_its_right_twin_is_not(fault: Fault, spread: float) -> None:
    """The same inputs, computed rightly in five orders and wrongly in one."""
    case = fault.case()
    inputs = draw_inputs(case, spread=spread, seed=9)
    expectation = expect(case.spec, inputs, precision=FLOAT32)
    for kernel in KERNELS.values():
        twin = judge(expectation, right(case.spec, inputs, kernel))
        assert (twin.verdict, twin.mismatched, twin.not_finite) == (Verdict.OK, 0, 0), twin.diagnosis
        assert twin.max_bound_ratio < 1.0
    with np.errstate(all="ignore"):
        found = judge(expectation, fault.plant(case.spec, inputs))
    assert found.verdict is Verdict.WRONG, found.diagnosis


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    [
        "no scale",
        "causal one key too many",
        "causal one key too few",
        "causal bottom-right without a cache",
        "True and False swapped",
        "heads tiled",
        "flat layout not transposed",
        "two heads swapped",
        "masked row mean of values",
    ],
)
def test_gross_faults_are_wrong_in_half_formats_too(name: str, dtype: str) -> None:
    """The bound of a 16-bit format is wide, but not as wide as a wrong mask, head or layout."""
    fault = next(fault for fault in FAULTS if fault.name == name)
    case = replace(fault.case(), dtype=Dtype(dtype))
    inputs = draw_inputs(case, seed=9)
    expectation = expect(case.spec, inputs, precision=find_precision(dtype))
    storage = ARITHMETICS[dtype].storage
    assert judge(expectation, right(case.spec, inputs, dtype=dtype)).verdict is Verdict.OK
    assert judge(expectation, fault.plant(case.spec, inputs).astype(storage)).verdict is Verdict.WRONG


def test_an_outside_cache_aligned_to_the_top_is_wrong() -> None:
    """With lengths, the causal offset is length - queries; 0 is a fault."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=16, is_causal=True, mask=MaskKind.LENGTHS)
    inputs = draw_inputs(AttentionCase(spec=spec, batch_size=2, q_seq_len=4, kv_seq_len=12))
    inputs = replace(inputs, nonpad_kv_seqlen=np.array([12, 9]))
    upper = replace(inputs, nonpad_kv_seqlen=None, attn_mask=np.tri(4, 12, dtype=bool))
    expectation = expect(spec, inputs, precision=FLOAT32)
    assert judge(expectation, right(spec, inputs)).verdict is Verdict.OK
    wrong = right(replace(spec, is_causal=False, mask=MaskKind.BOOL), upper)
    assert judge(expectation, wrong).verdict is Verdict.WRONG


# --- Limits in pairs ---


@pytest.fixture
def limits() -> tuple[Expectation, Array, Array]:
    """An expectation with given oracle and bound over all elements."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=8)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=6))
    expectation = expect(spec, inputs, precision=FLOAT32)
    output = attend(spec, inputs).output
    bound = np.zeros_like(output)
    for (batch, head, rows), one in zip(expectation.blocks, expectation.bounds, strict=True):
        bound[batch, head, rows] = one.bound
    return expectation, output, bound


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (0, 1, 5, 7), (0, 1, 2, 3)])
@pytest.mark.parametrize("sign", [1, -1])
def test_just_inside_and_just_outside(
    limits: tuple[Expectation, Array, Array], place: tuple[int, int, int, int], sign: int
) -> None:
    """An element at 0.999 of its bound is not proved wrong, at 1.001 it is, and its place is named."""
    expectation, output, bound = limits
    verdicts = []
    for share in (0.999, 1.001):
        actual = output.copy()
        actual[place] += sign * share * bound[place]
        found = judge(expectation, actual)
        verdicts.append(found.verdict)
        assert found.max_bound_ratio == pytest.approx(share, rel=1e-9)
        assert found.worst == place
        assert found.mismatched == (share > 1)
        assert found.max_abs_error == pytest.approx(share * bound[place], rel=1e-9)
    # Inside the bound sigma speaks: one error among 96 of some twenty sigmas.
    assert verdicts == [Verdict.SUSPICIOUS, Verdict.WRONG]


def test_every_element_at_its_bound_is_counted(limits: tuple[Expectation, Array, Array]) -> None:
    """All inside at 0.999, all outside at 1.001."""
    expectation, output, bound = limits
    assert judge(expectation, output + 0.999 * bound).mismatched == 0
    assert judge(expectation, output + 1.001 * bound).mismatched == output.size == 96


def test_the_oracle_itself_is_perfect(limits: tuple[Expectation, Array, Array]) -> None:
    """No error, cosine one, everything judged."""
    expectation, output, _ = limits
    found = judge(expectation, output)
    assert found.verdict is Verdict.OK
    assert (found.max_abs_error, found.max_bound_ratio, found.max_relative_error, found.max_ulp_error) == (0, 0, 0, 0)
    assert found.cosine == pytest.approx(1.0, abs=1e-12)
    assert (found.total, found.judged_rows, found.total_rows) == (96, 12, 12)
    assert found.worst is None


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.float32, 2**-23), (np.float16, 2**-10), (ml_dtypes.bfloat16, 2**-7), (np.float64, 2**-52)],
    ids=["float32", "float16", "bfloat16", "float64"],
)
def test_ulp_is_the_spacing_of_the_output_format(dtype: Any, expected: float) -> None:
    """Two spacings above an oracle of 4 are two ulp, in every format."""
    expectation = four()
    found = judge(expectation, np.full((1, 1, 1, 1), 4 + 2 * 4 * expected).astype(dtype))
    assert found.max_ulp_error == pytest.approx(2.0, rel=1e-12)
    assert found.max_relative_error == pytest.approx(2 * expected, rel=1e-12)


def test_cosine_compares_directions() -> None:
    """The opposite output has cosine -1."""
    assert judge(four(), np.full((1, 1, 1, 1), -4.0)).cosine == pytest.approx(-1.0)


# --- Sigma's limits in pairs ---


@pytest.fixture
def spread_out() -> tuple[Expectation, Array, Array]:
    """An expectation of 8 heads with given oracle and sigma over all elements."""
    spec = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=16)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=16, kv_seq_len=64))
    expectation = expect(spec, inputs, precision=FLOAT32)
    output = attend(spec, inputs).output
    sigma = np.zeros_like(output)
    for (batch, head, rows), one in zip(expectation.blocks, expectation.sigmas, strict=True):
        sigma[batch, head, rows] = one.sigma
    return expectation, output, sigma


def noise(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).choice([-1.0, 1.0], shape)


@pytest.mark.parametrize(
    ("limit", "inside", "outside"),
    [(1.6, Verdict.OK, Verdict.ROUNDING_LEVEL), (4.5, Verdict.ROUNDING_LEVEL, Verdict.SUSPICIOUS)],
)
def test_kappa_has_two_limits(
    spread_out: tuple[Expectation, Array, Array], limit: float, inside: Verdict, outside: Verdict
) -> None:
    """Errors of 1.6 sigma on the average are unusual, of 4.5 inexplicable."""
    expectation, output, sigma = spread_out
    for share, verdict in ((0.99, inside), (1.01, outside)):
        found = judge(expectation, output + share * limit * sigma * noise(output.shape))
        assert found.kappa == pytest.approx(share * limit, rel=2e-3)
        assert found.max_bound_ratio < 1
        assert found.verdict is verdict


def test_one_rough_head_is_enough(spread_out: tuple[Expectation, Array, Array]) -> None:
    """One head of eight at 5.5 sigma leaves the overall kappa below its limit."""
    expectation, output, sigma = spread_out
    for share, verdict in ((0.98, Verdict.ROUNDING_LEVEL), (1.02, Verdict.SUSPICIOUS)):
        error = share * 5.5 * sigma * noise(output.shape)
        error[:, :5], error[:, 6:] = 0, 0
        found = judge(expectation, output + error)
        assert found.kappa < 2.1
        assert found.verdict is verdict


def test_the_largest_deviation_has_two_limits(spread_out: tuple[Expectation, Array, Array]) -> None:
    """One element of 2048: beyond what chance reaches it is unusual, beyond three times that inexplicable."""
    expectation, output, sigma = spread_out
    above = (Verdict.ROUNDING_LEVEL, Verdict.SUSPICIOUS)
    reach = 1.4 * np.sqrt(2 * np.log(2 * output.size / 1e-3))
    for limit, verdicts in ((reach, (Verdict.OK, Verdict.ROUNDING_LEVEL)), (3 * reach, above)):
        for share, verdict in zip((0.99, 1.01), verdicts, strict=True):
            actual = output.copy()
            place = np.unravel_index(int((sigma / np.abs(output)).argmin()), output.shape)
            actual[place] += share * limit * sigma[place]
            found = judge(expectation, actual)
            assert found.max_z == pytest.approx(share * limit, rel=1e-3)
            assert found.verdict is verdict


def test_the_sentences_of_rough_outputs(spread_out: tuple[Expectation, Array, Array]) -> None:
    """The messages contain kappa and the largest deviation."""
    expectation, output, sigma = spread_out
    found = judge(expectation, output + 2.0 * sigma * noise(output.shape))
    inside = f"All 2048 elements are within the proven bound, the worst at {found.max_bound_ratio:.2g} of it"
    spread = f"kappa {found.kappa:.3g}, largest error {found.max_z:.3g} sigma"
    assert found.diagnosis == f"{inside}; the rounding errors are larger than usual: {spread}."
    found = judge(expectation, output + 5.0 * sigma * noise(output.shape))
    inside = f"All 2048 elements are within the proven bound, the worst at {found.max_bound_ratio:.2g} of it"
    spread = f"kappa {found.kappa:.3g}, largest error {found.max_z:.3g} sigma"
    assert found.diagnosis == f"{inside}, but rounding in the declared precision does not explain the errors: {spread}."


def test_the_sentence_of_a_small_scale_error() -> None:
    """In bfloat16 an error of two percent is within the bound; the score test names it."""
    spec = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=64)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=64, kv_seq_len=128, dtype=Dtype.BFLOAT16), seed=5)
    wrong = right(replace(spec, scale=0.125 * 1.03125), inputs, dtype="bfloat16")
    found = judge(expect(spec, inputs, precision=find_precision("bfloat16")), wrong)
    assert found.verdict is Verdict.SUSPICIOUS
    (first, *_) = found.findings
    assert first.estimate == pytest.approx(0.031, abs=0.002)
    assert found.diagnosis == (
        f"All 16384 elements are within the proven bound, the worst at {found.max_bound_ratio:.2g} of it, "
        f"but the errors are not rounding errors. {first.says}"
    )


def test_a_scale_rounded_to_the_format_is_taken_off() -> None:
    """Values that go with their keys show a rounded scale in every element alike; it is legitimate, so no roughness."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=80)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=64, kv_seq_len=256, dtype=Dtype.FLOAT16), seed=1)
    inputs = replace(inputs, value=inputs.key)
    expectation = expect(spec, inputs, precision=find_precision("float16"))
    rounded = judge(expectation, right(replace(spec, scale=spec.scale_value * (1 + 2**-11)), inputs, dtype="float16"))
    assert rounded.kappa < 1.6
    assert judge(expectation, right(replace(spec, scale=spec.scale_value * 1.01), inputs, dtype="float16")).kappa > 4.5


# --- The sentences ---


def four() -> Expectation:
    """Equal weights on 2 and 6: the oracle is exactly 4."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1)
    inputs = AttentionInputs(
        query=np.zeros((1, 1, 1, 1)),
        key=np.array([1.0, -1.0]).reshape(1, 1, 2, 1),
        value=np.array([2.0, 6.0]).reshape(1, 1, 2, 1),
    )
    return expect(spec, inputs, precision=FLOAT32)


def columns(*numbers: float) -> Array:
    return np.array(numbers).reshape(1, 1, 1, -1)


def test_the_sentence_of_a_right_output() -> None:
    """The message contains the number of elements and the largest bound ratio."""
    found = judge(four(), columns(4.0))
    assert found.diagnosis == "All 1 elements are within the proven bound, the worst at 0 of it."


def test_the_sentence_of_a_wrong_output() -> None:
    """How many, how far, where, got, expected and the limit."""
    # By hand: E = 4u + u, (e^E - 1) 2 / e^-E = 10 u; gamma_2 4 + (gamma_2 + 8 u) 4 = 8 u + 40 u; together 58 u.
    limit = 58 * 2.0**-24
    found = judge(four(), columns(5.0))
    assert f"{limit:.2g}" == "3.5e-06"
    assert found.max_bound_ratio == pytest.approx(1 / limit, rel=1e-3)
    assert found.diagnosis == (
        "1 of 1 elements exceed the proven bound, at worst 2.89e+05 times at (batch, head, query, column) "
        "(0, 0, 0, 0): got 5, expected 4 +- 3.5e-06."
    )


@pytest.mark.parametrize(
    ("name", "estimate", "share", "is_named"),
    [
        ("uniform leak", 0.29, 0.26, True),
        ("uniform leak", 0.29, 0.24, False),
        ("uniform leak", 0.31, 0.26, False),
        ("uniform leak", -0.31, 0.26, False),
        ("scale", -0.29, 0.26, True),
        ("last key missing", 1.0, 0.26, True),
        ("last key missing", 1.0, 0.24, False),
        ("first key missing", 1.0, 0.26, True),
    ],
)
def test_a_proof_names_only_a_mistake_that_explains_a_quarter(
    limits: tuple[Expectation, Array, Array],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    estimate: float,
    share: float,
    is_named: bool,
) -> None:
    """And, for scale and leak, one of at most 0.3: directions are valid to first order."""
    finding = SizedMistake(name=name, estimate=estimate, standard_error=0.01, share=share)
    monkeypatch.setattr(agreement, "find_directions", lambda *_: (finding,))
    monkeypatch.setattr(agreement, "refitted", lambda found, *_: found, raising=False)
    expectation, output, bound = limits
    found = judge(expectation, output + 2.0 * bound)
    assert found.verdict is Verdict.WRONG
    assert found.diagnosis.startswith("96 of 96 elements exceed the proven bound")
    assert found.diagnosis.endswith(finding.says) == is_named


def test_the_sentence_of_an_output_that_is_not_finite() -> None:
    """How many, and the first place."""
    case = FAULTS[0].case()
    inputs = draw_inputs(case)
    output = right(case.spec, inputs).copy()
    output[1, 2, 3, 4:6] = np.nan
    output[1, 3, 0, 0] = np.inf
    found = judge(expect(case.spec, inputs, precision=FLOAT32), output)
    assert found.not_finite == 3
    assert found.diagnosis == (
        "3 elements are NaN or infinite where the oracle is finite, first at (batch, head, query, column) (1, 2, 3, 4)."
    )


def test_the_sentence_of_a_wrong_shape() -> None:
    """Got and expected."""
    found = judge(four(), np.zeros((1, 1, 2, 1)))
    assert found.verdict is Verdict.WRONG
    assert found.diagnosis == "The output has shape (1, 1, 2, 1), expected (1, 1, 1, 1)."
    # Nothing was compared, so there is no figure.
    figures = (found.max_abs_error, found.max_bound_ratio, found.max_relative_error, found.max_ulp_error)
    assert (*figures, found.cosine, found.kappa, found.max_z) == (None,) * 7
    assert (found.mismatched, found.not_finite, found.swallowed, found.total, found.judged) == (0, 0, 0, 0, 0)
    assert (found.judged_rows, found.total_rows, found.statistical_rows, found.worst) == (0, 0, 0, None)
    assert found.scale_error_proven == np.inf


def test_the_sentence_of_an_unknown_precision() -> None:
    """What is known is listed."""
    with pytest.raises(CaseError) as caught:
        find_precision("float8")
    assert str(caught.value) == (
        "There is no precision 'float8'. Known: float64, float32, tf32, float16, bfloat16, float16-accumulation."
    )


# --- Overflow ---


def overflowing(*, key: float, query: tuple[float, ...] = (256.0, 1.0)) -> Expectation:
    """Two float16 queries on one key of width 1: the first score is 256 x key."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1)
    inputs = AttentionInputs(
        query=np.array(query, dtype=np.float16).reshape(1, 1, -1, 1),
        key=np.full((1, 1, 1, 1), key, dtype=np.float16),
        value=np.ones((1, 1, 1, 1), dtype=np.float16),
    )
    return expect(spec, inputs, precision=find_precision("float16"))


def half(*numbers: float) -> Array:
    return np.array(numbers, dtype=np.float16).reshape(1, 1, -1, 1)


def test_overflow_is_excused_where_the_product_exceeds_float16() -> None:
    """256 x 256 = 65536 overflows: NaN in that row is not a fault, and there is a warning."""
    found = judge(overflowing(key=256.0), half(np.nan, 1.0))
    assert (found.verdict, found.not_finite) == (Verdict.OK, 0)
    assert found.warnings == (
        "1 row overflows the declared format: elements of it that are not finite were not judged.",
    )


def test_overflow_of_two_rows_is_one_warning() -> None:
    """In the plural."""
    found = judge(overflowing(key=256.0, query=(256.0, 1.0, -300.0)), half(np.nan, 1.0, np.inf))
    assert (found.verdict, found.not_finite) == (Verdict.OK, 0)
    assert found.warnings == (
        "2 rows overflow the declared format: elements of them that are not finite were not judged.",
    )


def test_the_largest_float16_is_no_overflow() -> None:
    """256 x 255.875 = 65504 fits exactly: NaN is a fault."""
    found = judge(overflowing(key=255.875), half(np.nan, 1.0))
    assert (found.verdict, found.not_finite, found.warnings) == (Verdict.WRONG, 1, ())


def test_overflow_in_one_row_excuses_no_other() -> None:
    """NaN in a row whose product is 256 is a fault, also if another row overflows."""
    expectation = overflowing(key=256.0)
    assert judge(expectation, half(1.0, np.nan)).verdict is Verdict.WRONG
    both = judge(expectation, half(np.nan, np.nan))
    assert both.verdict is Verdict.WRONG
    assert both.not_finite == 1
    assert both.diagnosis == (
        "1 element is NaN or infinite where the oracle is finite, first at (batch, head, query, column) (0, 0, 1, 0)."
    )


def test_a_finite_fault_beside_an_overflow_is_found() -> None:
    """An excused row does not hide a wrong number."""
    found = judge(overflowing(key=256.0), half(np.nan, 1.5))
    assert (found.verdict, found.mismatched, found.not_finite) == (Verdict.WRONG, 1, 0)


def test_float32_does_not_excuse_what_float16_does() -> None:
    """65536 is an ordinary float32."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1)
    inputs = AttentionInputs(
        query=np.full((1, 1, 1, 1), 256.0), key=np.full((1, 1, 1, 1), 256.0), value=np.ones((1, 1, 1, 1))
    )
    found = judge(expect(spec, inputs, precision=FLOAT32), columns(np.nan))
    assert found.verdict is Verdict.WRONG


def test_an_output_beyond_float16_may_be_infinite() -> None:
    """An average of 65520 and more cannot be stored; of 65504 it can."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1)
    zero = np.zeros((1, 1, 1, 1))
    for value, verdict in ((70000.0, Verdict.OK), (60000.0, Verdict.WRONG)):
        inputs = AttentionInputs(query=zero, key=zero, value=np.full((1, 1, 1, 1), value))
        found = judge(expect(spec, inputs, precision=find_precision("float16")), half(np.inf))
        assert found.verdict is verdict


# --- Sampled rows ---

LONG = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)


def sampled(seed: int = 0, rows: int = 8, q_seq_len: int = 100) -> tuple[Expectation, Array]:
    inputs = draw_inputs(AttentionCase(spec=LONG, q_seq_len=q_seq_len, kv_seq_len=30))
    expectation = expect(LONG, inputs, precision=FLOAT32, rows_per_head=rows, seed=seed)
    return expectation, attend(LONG, inputs).output.astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [2, 3, 8, 99])
def test_first_and_last_query_are_always_judged(rows: int, seed: int) -> None:
    """As many distinct queries as requested, in order, including the first and the last."""
    expectation, output = sampled(seed, rows)
    assert expectation.rows is not None
    assert expectation.rows.size == rows
    assert (np.diff(expectation.rows) > 0).all()
    assert (expectation.rows[0], expectation.rows[-1]) == (0, 99)
    found = judge(expectation, output)
    assert (found.judged_rows, found.total_rows, found.total) == (2 * rows, 200, 2 * rows * 4)


@pytest.mark.parametrize("query", [0, 99])
def test_a_fault_in_the_first_or_last_query_is_found_in_a_sample(query: int) -> None:
    """Where a mask is off by one, it shows at the ends."""
    expectation, output = sampled()
    output[0, 1, query, 2] += 0.01
    found = judge(expectation, output)
    assert found.verdict is Verdict.WRONG
    assert found.worst == (0, 1, query, 2)


def test_the_sample_repeats_with_its_seed() -> None:
    """The same seed judges the same queries; another one others."""
    first, again, other = (sampled(seed)[0].rows for seed in (1, 1, 2))
    assert first is not None
    assert other is not None
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_all_rows_are_judged_when_there_are_few() -> None:
    """A sample as large as the number of queries contains all of them."""
    assert sampled(rows=100)[0].rows is None
    assert sampled(rows=99)[0].rows is not None


def test_big_cases_are_sampled_by_themselves() -> None:
    """With 2^22 pairs over all heads every query is judged, with one more row they are sampled."""
    limit = 2**22 // (2 * 1024)
    for q_seq_len, judged in ((limit, 2 * limit), (limit + 1, 2 * ROWS_PER_HEAD)):
        case = AttentionCase(spec=LONG, q_seq_len=q_seq_len, kv_seq_len=1024)
        expectation = expect(LONG, draw_inputs(case), precision=FLOAT32)
        assert sum(rows.size for _, _, rows in expectation.blocks) == judged


def test_nan_outside_the_sample_is_still_found() -> None:
    """Finiteness is cheap, so all of the output is looked at, and the place is named."""
    expectation, output = sampled()
    assert expectation.rows is not None
    query = next(row for row in range(100) if row not in expectation.rows)
    output[0, 1, query, 2] = np.nan
    found = judge(expectation, output)
    assert (found.verdict, found.not_finite) == (Verdict.WRONG, 1)
    assert found.diagnosis == (
        "1 element is NaN or infinite where the oracle is finite, "
        f"first at (batch, head, query, column) (0, 1, {query}, 2)."
    )


def test_nan_inside_and_outside_the_sample_is_counted_once() -> None:
    """All of the output, each element once."""
    expectation, output = sampled()
    output[:] = np.nan
    assert judge(expectation, output).not_finite == output.size


def test_no_query_no_fault() -> None:
    """An empty output agrees."""
    inputs = draw_inputs(AttentionCase(spec=LONG, q_seq_len=0, kv_seq_len=3))
    found = judge(expect(LONG, inputs, precision=FLOAT32), np.zeros((1, 2, 0, 4)))
    assert found.verdict is Verdict.OK
    assert found.diagnosis == "All 0 elements are within the proven bound, the worst at 0 of it."


def test_blocks_do_not_change_the_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small, the same figures and place."""
    case = FAULTS[0].case()
    inputs = draw_inputs(case)
    output = touched(lambda element: 1.01 * element)(case.spec, inputs)
    whole = judge(expect(case.spec, inputs, precision=FLOAT32), output)
    monkeypatch.setattr(oracle, "_BLOCK_ELEMENTS", 45)
    cut = judge(expect(case.spec, inputs, precision=FLOAT32), output)
    assert (cut.verdict, cut.worst, cut.mismatched) == (whole.verdict, whole.worst, whole.mismatched)
    assert (cut.judged_rows, cut.total) == (whole.judged_rows, whole.total)
    # The hull of a block is that of its queries together, so the bound may be tighter in a small block, never wider.
    assert cut.max_bound_ratio >= whole.max_bound_ratio * (1 - 1e-9)


# --- A wrong number where the truth is zero ---


@pytest.mark.parametrize("dtype", list(Dtype))
def test_the_finding_of_a_masked_row_can_be_stored(dtype: Dtype) -> None:
    """The mean of values in a hidden row is wrong in every format, and its ratio survives the record."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4, mask=MaskKind.BOOL)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=3, dtype=dtype))
    output = right(spec, inputs, dtype=dtype.value).copy()
    expectation = expect(spec, inputs, precision=find_precision(dtype))
    assert judge(expectation, output).verdict is Verdict.OK
    output[:, :, -1] = inputs.value.astype(np.float64).mean(2).astype(output.dtype)
    found = judge(expectation, output)
    assert (found.verdict, found.mismatched) == (Verdict.WRONG, 4)
    record = AgreementRecord(verdict=found.verdict, max_bound_ratio=found.max_bound_ratio)
    assert decode_record(encode_record(record), where="here") == record


# --- The scale ---


def scale_case(head_dim: int, kv_seq_len: int, rows: int = 16, dtype: Dtype = Dtype.FLOAT32) -> AttentionCase:
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=head_dim)
    return AttentionCase(spec=spec, q_seq_len=rows, kv_seq_len=kv_seq_len, dtype=dtype)


def judge_scale(case: AttentionCase, factor: float, *, spread: float = 1.0, kernel: Kernel = naive) -> Agreement:
    """Judge an output whose scale is wrong by a factor, computed in the case's own format."""
    inputs = draw_inputs(case, spread=spread, seed=3)
    wrong = replace(case.spec, scale=case.spec.scale_value * factor)
    expectation = expect(case.spec, inputs, precision=find_precision(case.dtype))
    return judge(expectation, right(wrong, inputs, kernel, dtype=case.dtype.value))


@pytest.mark.parametrize("factor", [1.01, 0.99])
@pytest.mark.parametrize("kv_seq_len", [16, 128, 1024])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_a_scale_wrong_by_one_percent_is_wrong(head_dim: int, kv_seq_len: int, factor: float) -> None:
    """In float32 at spread 1, both ways; and the right scale is right."""
    case = scale_case(head_dim, kv_seq_len)
    assert judge_scale(case, 1.0).verdict is Verdict.OK
    assert judge_scale(case, factor).verdict is Verdict.WRONG


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("head_dim", [8, 16, 32, 64, 128])
def test_a_scale_wrong_by_one_percent_is_wrong_on_4096_keys(head_dim: int, kernel: str) -> None:
    """The largest length promised, in every order of evaluation."""
    case = scale_case(head_dim, 4096)
    assert judge_scale(case, 1.0, kernel=KERNELS[kernel]).verdict is Verdict.OK
    for factor in (1.01, 0.99):
        assert judge_scale(case, factor, kernel=KERNELS[kernel]).verdict is Verdict.WRONG


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize(
    ("head_dim", "kv_seq_len", "spread"), [(8, 16, 1.0), (64, 200, 1.0), (64, 50, 4.0), (32, 9, 0.3)]
)
def test_the_smallest_proven_scale_error_is_a_prediction(
    head_dim: int, kv_seq_len: int, spread: float, dtype: Dtype
) -> None:
    """A scale off by twice that is proved wrong, by a fifth of it is not, to either side."""
    case = scale_case(head_dim, kv_seq_len, dtype=dtype)
    inputs = draw_inputs(case, spread=spread, seed=3)
    expectation = expect(case.spec, inputs, precision=find_precision(dtype))
    proven = judge(expectation, right(case.spec, inputs, dtype=dtype.value)).scale_error_proven
    assert 0 < proven < 0.3, "first order holds for small errors"
    for sign in (1, -1):
        verdicts = []
        for share in (0.2, 2.0):
            wrong = replace(case.spec, scale=case.spec.scale_value * (1 + sign * share * proven))
            verdicts.append(judge(expectation, attend(wrong, inputs).output).verdict)
        assert verdicts[0] is not Verdict.WRONG
        assert verdicts[1] is Verdict.WRONG


def test_a_softcapped_scale_error_is_predicted_too() -> None:
    """The softcap flattens what the scale moves; the prediction knows."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=16, softcap=1.0)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=1, kv_seq_len=40), spread=4.0, seed=3)
    expectation = expect(spec, inputs, precision=FLOAT32)
    proven = judge(expectation, attend(spec, inputs).output).scale_error_proven
    verdicts = []
    for share in (0.5, 2.0):
        wrong = replace(spec, scale=spec.scale_value * (1 + share * proven))
        verdicts.append(judge(expectation, attend(wrong, inputs).output).verdict)
    assert verdicts == [Verdict.SUSPICIOUS, Verdict.WRONG]


def test_equal_values_prove_no_scale() -> None:
    """Where all values are equal no weight shows, so nothing is proven of the scale."""
    case = scale_case(8, 16)
    inputs = draw_inputs(case)
    inputs = replace(inputs, value=np.zeros_like(inputs.value))
    found = judge(expect(case.spec, inputs, precision=FLOAT32), np.zeros((1, 1, 16, 8)))
    assert found.scale_error_proven == np.inf


WIDTHS, LENGTHS, SPREADS = (8, 16, 32, 64, 128, 256, 512, 1024), (16, 64, 256, 1024, 4096), (1.0, 10.0, 100.0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16])
def test_which_scale_errors_are_proven_over_the_whole_range(dtype: Dtype) -> None:
    """Print the smallest proven scale error; one percent is proven where it is promised."""
    proven: dict[tuple[int, int, float], float] = {}
    for head_dim in WIDTHS:
        for kv_seq_len in LENGTHS:
            case = scale_case(head_dim, kv_seq_len, dtype=dtype)
            for spread in SPREADS:
                proven[head_dim, kv_seq_len, spread] = judge_scale(case, 1.0, spread=spread).scale_error_proven
    for spread in SPREADS:
        print(f"\n{dtype.value}, spread {spread:g}: smallest proven relative scale error")  # noqa: T201 - for `pytest -s`
        print("  d_k " + "".join(f"{keys:>10}" for keys in LENGTHS))  # noqa: T201 - the same table
        for width in WIDTHS:
            row = "".join(f"{proven[width, keys, spread]:10.2g}" for keys in LENGTHS)
            print(f"{width:6}{row}")  # noqa: T201 - the same table
    assert min(proven.values()) > 0
    if dtype is Dtype.FLOAT32:
        promised = [error for (width, _, spread), error in proven.items() if width <= 128 and spread == 1.0]
        assert max(promised) < 0.01


# --- What judging costs ---


@pytest.mark.alone
@pytest.mark.slow
def test_judging_costs_at_most_ten_oracles() -> None:
    """8 heads of 512 x 512 x 64: the median ratio of interleaved processor times of expectation and oracle."""
    spec = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=64)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=512))
    actual = attend(spec, inputs).output.astype(np.float32)
    ratios = []
    for _ in range(7):
        start = time.process_time()
        attend(spec, inputs)
        between = time.process_time()
        judge(expect(spec, inputs, precision=FLOAT32), actual)
        ratios.append((time.process_time() - between) / (between - start))
    assert sorted(ratios)[3] < 10, ratios


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, 4096], ids=["sampled", "whole"])
def test_judging_4096_squared_stays_below_a_gigabyte(rows: int | None) -> None:
    """Rows in parts: nothing rows x keys is kept, sampled or not."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=64, is_causal=True)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=4096))
    actual = np.zeros(inputs.query.shape, dtype=np.float32)
    tracemalloc.start()
    try:
        judge(expect(spec, inputs, precision=FLOAT32, rows_per_head=rows), actual)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**30


def test_one_swallowed_nan_is_one() -> None:
    """The message for a single number where a NaN must appear is in the singular."""
    asked = AttentionCase(
        spec=AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4, v_head_dim=2), q_seq_len=1, kv_seq_len=3
    )
    inputs = draw_inputs(asked)
    inputs.value[0, 0, 1, 1] = np.nan
    right = attend(asked.spec, inputs).output.astype(np.float32)
    found = judge(expect(asked.spec, inputs, precision=find_precision("float32")), np.nan_to_num(right))
    assert found.swallowed == 1
    assert found.diagnosis == (
        "A NaN in the inputs was lost: 1 element whose query attends to it is a number, "
        "first at (batch, head, query, column) (0, 0, 0, 1)."
    )
