"""Right outputs pass, wrong ones are called wrong; a module's attention is run on the spreads asked for."""

from collections.abc import Callable

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import LADDER
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject, Verdict
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model, verify
from tests.sweep.fakes import Arrays, Faulty, Outputs, Refusing, Throwing

_SIZES = {"batch_size": 2, "q_seq_len": 13, "kv_seq_len": 31}


def _checked(
    model: OnnxModel, runtime: Runtime, sizes: dict[str, int] | None = None, spreads: tuple[float, ...] = LADDER
) -> list[AgreementRecord]:
    check = CheckOptions(sizes=_SIZES if sizes is None else sizes, spreads=spreads)
    return check_model(model, runtime, check, target="t", expectations=ExpectationCache())


@pytest.mark.parametrize("runtime", ["ort-cpu", "torch", "onnx-reference"])
@pytest.mark.parametrize("name", ["bare_model", "decomposed_model"])
def test_right_runtime_is_ok(name: str, runtime: str, request: pytest.FixtureRequest) -> None:
    """Every runtime of ours is right on both forms over the whole ladder, every row judged."""
    records = _checked(request.getfixturevalue(name), get_runtime(runtime))
    assert [(record.spread, record.verdict) for record in records] == [(step, Verdict.OK) for step in LADDER]
    for record in records:
        assert 0.0 < record.max_bound_ratio < 1.0
        assert record.judged_rows == record.total_rows == 2 * 4 * 13
        assert record.ran


def test_torch_has_no_form_and_no_opset(bare_model: OnnxModel) -> None:
    """torch runs the module itself; the graph's form and opset are not its own."""
    records = _checked(bare_model, get_runtime("torch"))
    assert {(record.form, record.opset) for record in records} == {("", None)}


def test_expectations_are_shared(bare_model: OnnxModel) -> None:
    """Two runtimes of one arithmetic that got the same inputs are judged by one oracle."""
    expectations = ExpectationCache()
    check = CheckOptions(sizes=_SIZES)
    for name in ("ort-cpu", "torch"):
        check_model(bare_model, get_runtime(name), check, target="t", expectations=expectations)
    assert len(expectations.made) == len(LADDER)


def test_expectations_keep_the_newest() -> None:
    """Old oracles are let go of, so that a long run does not fill the memory."""
    expectations = ExpectationCache(keep=2)
    made: list[int] = []
    for number in (1, 2, 1, 3, 1):
        expectations.get((number,), lambda number=number: made.append(number))  # type: ignore[arg-type, misc]
    assert made == [1, 2, 3, 1]
    assert len(expectations.made) == 2


class _Stale:
    """Gives the first outputs of each shape again, as a buffer that was never written to."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}  # type: ignore[type-arg]

    def __call__(self, inputs: Arrays, outputs: Outputs) -> Outputs:
        return {name: self.first.setdefault((name, array.shape), array) for name, array in outputs.items()}


def _wrong_scale(inputs: Arrays, outputs: Outputs) -> Outputs:
    """Attention with a scale that is 1 % too large, computed here."""
    query, key, value = (inputs[name].astype(np.float64) for name in "QKV")
    repeats = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, repeats, axis=1), np.repeat(value, repeats, axis=1)
    scores = 1.01 * query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return {"Y": (weights / weights.sum(-1, keepdims=True) @ value).astype(np.float32)}


def _swapped_heads(inputs: Arrays, outputs: Outputs) -> Outputs:
    return {name: array[:, [1, 0, *range(2, array.shape[1])]] for name, array in outputs.items()}


def _one_nan(inputs: Arrays, outputs: Outputs) -> Outputs:
    spoiled = {name: array.copy() for name, array in outputs.items()}
    spoiled["Y"][0, 0, -1, -1] = np.nan
    return spoiled


def _one_infinity(inputs: Arrays, outputs: Outputs) -> Outputs:
    spoiled = {name: array.copy() for name, array in outputs.items()}
    spoiled["Y"][-1, -1, 0, 0] = np.inf
    return spoiled


def _zeros(inputs: Arrays, outputs: Outputs) -> Outputs:
    return {name: np.zeros_like(array) for name, array in outputs.items()}


def _first_row_again(inputs: Arrays, outputs: Outputs) -> Outputs:
    return {name: np.broadcast_to(array[:, :, :1], array.shape).copy() for name, array in outputs.items()}


def _later_key(inputs: Arrays, outputs: Outputs) -> Outputs:
    """Causal off by one: query i sees key i + 1 as well."""
    query, key, value = (inputs[name].astype(np.float64) for name in "QKV")
    repeats = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, repeats, axis=1), np.repeat(value, repeats, axis=1)
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    scores = np.where(np.tri(*scores.shape[-2:], k=1, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return {"Y": (weights / weights.sum(-1, keepdims=True) @ value).astype(np.float32)}


_FAULTS: dict[str, Callable[[], Callable[[Arrays, Outputs], Outputs]]] = {
    "scale-1-percent": lambda: _wrong_scale,
    "swapped-heads": lambda: _swapped_heads,
    "one-nan": lambda: _one_nan,
    "one-infinity": lambda: _one_infinity,
    "zeros": lambda: _zeros,
    "stale-buffer": _Stale,
    "first-row-again": lambda: _first_row_again,
    "causal-off-by-one": lambda: _later_key,
}


@pytest.mark.parametrize("fault", _FAULTS.values(), ids=_FAULTS)
def test_wrong_session_is_called_wrong(
    bare_model: OnnxModel, fault: Callable[[], Callable[[Arrays, Outputs], Outputs]]
) -> None:
    """A planted fault in what a session gives is proved wrong at spread 1 at the latest by the second step."""
    records = _checked(bare_model, Faulty(fault=fault()))
    by_spread = {record.spread: record for record in records}
    wrong = by_spread[1.0]
    assert (wrong.verdict, wrong.outcome) == (Verdict.WRONG, Outcome.DISAGREES)
    assert wrong.reason == wrong.diagnosis != ""
    assert wrong.max_bound_ratio > 1 or wrong.not_finite > 0


def test_wrong_scale_written_here_is_right_without_the_fault(bare_model: OnnxModel) -> None:
    """The formula that plants the scale is itself right when the factor is right, so only the factor is caught."""

    def right(inputs: Arrays, outputs: Outputs) -> Outputs:
        scaled = {**inputs, "Q": inputs["Q"].astype(np.float64) / 1.01}
        return _wrong_scale(scaled, outputs)

    assert {record.verdict for record in _checked(bare_model, Faulty(fault=right))} == {Verdict.OK}


def test_not_finite_is_counted(bare_model: OnnxModel) -> None:
    """One NaN among thousands of elements is counted and located."""
    record = _checked(bare_model, Faulty(fault=_one_nan), spreads=(1.0,))[0]
    assert record.not_finite == 1
    assert "NaN" in record.diagnosis or "nan" in record.diagnosis


def test_output_of_another_shape_is_wrong_or_refused(bare_model: OnnxModel) -> None:
    """A cut output never passes."""
    fake = Faulty(fault=lambda _, outputs: {name: array[:, :, :-1] for name, array in outputs.items()})
    records = _checked(bare_model, fake, spreads=(1.0,))
    assert {record.verdict for record in records} == {Verdict.WRONG}


def test_unsupported_is_a_record(bare_model: OnnxModel) -> None:
    """A runtime that does not take the model is one record with its reason."""
    (record,) = _checked(bare_model, Refusing(name="fake"))
    assert (record.outcome, record.reason, record.verdict) == (
        Outcome.UNSUPPORTED,
        "fake has no such kernel",
        None,
    )


def test_session_error_is_raised(bare_model: OnnxModel) -> None:
    """A runtime that fails is the caller's to handle; nothing is swallowed here."""
    with pytest.raises(SessionError, match="no"):
        _checked(bare_model, Throwing(error=SessionError("no")))


@pytest.mark.parametrize("name", ["module_model", "founding_model"])
def test_module_reaches_the_spreads_asked_for(name: str, request: pytest.FixtureRequest) -> None:
    """A module's inputs are widened until the logits of its attention have the spread, within 20 %."""
    model: OnnxModel = request.getfixturevalue(name)
    length = next(axis for axis in ("x_seq_len", "q_seq_len", "hidden_seq_len") if _has(model, axis))
    records = _checked(model, get_runtime("ort-cpu"), {"batch_size": 2, length: 64})
    sites = [record for record in records if record.subject is not Subject.OUTPUT]
    assert [record.inputs for record in sites] == [f"spread {step:g}" for step in LADDER]
    assert [record.spread for record in sites] == pytest.approx(list(LADDER), rel=0.2)
    assert {record.verdict for record in records} == {Verdict.OK}
    assert len(records) == 2 * len(sites)


def _has(model: OnnxModel, axis: str) -> bool:
    return any(axis == str(size) for value in model.ir.graph.inputs for size in value.shape or ())


def test_inner_attention_is_judged_on_what_entered_it(module_model: OnnxModel) -> None:
    """A fault in a module's attention is found at its site, not only at the end."""

    def spoil(inputs: Arrays, outputs: Outputs) -> Outputs:
        inner = module_model.sites[0].output
        return {name: array * np.float32(1.01) if name == inner else array for name, array in outputs.items()}

    length = next(axis for axis in ("x_seq_len", "q_seq_len") if _has(module_model, axis))
    records = _checked(module_model, Faulty(fault=spoil), {"batch_size": 1, length: 7}, (1.0,))
    verdicts = {(record.subject, record.site): record.verdict for record in records}
    (output,) = module_model.output_names
    assert verdicts == {
        (Subject.ATTENTION, module_model.sites[0].name): Verdict.WRONG,
        (Subject.OUTPUT, output): Verdict.OK,
    }


def test_verify_goes_over_runtimes_and_checks(bare_model: OnnxModel) -> None:
    """One record per runtime, check and spread, in that order."""
    checks = [CheckOptions(sizes={**_SIZES, "q_seq_len": length}, spreads=(1.0,)) for length in (2, 3)]
    records = list(verify(bare_model, ["torch", "ort-cpu"], checks, target="t"))
    assert [(record.runtime, record.sizes.q_seq_len) for record in records] == [
        ("torch", 2),
        ("torch", 3),
        ("ort-cpu", 2),
        ("ort-cpu", 3),
    ]


def test_given_inputs_are_used(bare_model: OnnxModel) -> None:
    """Arrays of the user are run as they are, once, without a spread."""
    rng = np.random.default_rng(0)
    widths = {"Q": (4, 8), "K": (2, 8), "V": (2, 6)}
    given = {
        name: rng.standard_normal((1, heads, 3, width), dtype=np.float32) for name, (heads, width) in widths.items()
    }
    seen: list[Arrays] = []

    def look(inputs: Arrays, outputs: Outputs) -> Outputs:
        seen.append(inputs)
        return outputs

    check = CheckOptions(sizes=_SIZES, inputs=given)
    (record,) = check_model(bare_model, Faulty(fault=look), check, target="t", expectations=ExpectationCache())
    assert (record.inputs, record.verdict) == ("given", Verdict.OK)
    assert all(np.array_equal(seen[0][name], given[name]) for name in given)


@pytest.mark.parametrize(
    ("q_seq_len", "kv_seq_len", "sides"),
    [(3, 3, ["left", "right"]), (4, 4, ["right"]), (4, 6, []), (3, 6, ["left"]), (0, 6, [])],
)
def test_window_that_hides_nothing_is_told(q_seq_len: int, kv_seq_len: int, sides: list[str]) -> None:
    """A window as long as what it could hide is not checked, and the record says so; one shorter by one is."""
    model = _bare(AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, left_window=2, right_window=4))
    records = _checked(model, get_runtime("onnx-reference"), _lengths(q_seq_len, kv_seq_len), (1.0,))
    windows = {"left": 2, "right": 4}
    assert records[0].warnings == tuple(
        f"The {side} window of {windows[side]} hides nothing at these sizes: not checked, give longer ones."
        for side in sides
    )


def test_window_that_the_past_reaches_is_checked() -> None:
    """A cache counts: what is out of reach of the new queries alone is hidden in the past."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, left_window=4, has_past=True)
    for past, told in ((2, 1), (3, 0)):
        sizes = {**_lengths(3, 3), "past_seq_len": past}
        record, *_ = _checked(_bare(spec), get_runtime("onnx-reference"), sizes, (1.0,))
        assert len(record.warnings) == told


def _bare(spec: AttentionSpec) -> OnnxModel:
    return load_model(build_attention_model(spec, opset=25, dtype=Dtype.FLOAT32))


def _lengths(q_seq_len: int, kv_seq_len: int) -> dict[str, int]:
    return {"batch_size": 1, "q_seq_len": q_seq_len, "kv_seq_len": kv_seq_len}
