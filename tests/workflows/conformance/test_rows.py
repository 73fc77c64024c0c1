"""A correct runtime is right in every row; every other interpretation of the operator is wrong in some row."""

from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.faults.readings import READINGS, Reading
from sdpa_onnx.core.records.records import Conformity, Outcome
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Session, get_runtime
from sdpa_onnx.workflows.conformance.feature import Feature, Operator
from sdpa_onnx.workflows.conformance.row import run_row
from sdpa_onnx.workflows.conformance.table import FeatureRow, features, find_feature, select
from tests.sweep.fakes import Faulty, Refusing
from tests.workflows import stateful_runtime
from tests.workflows.oracle_runtime import OracleRuntime, OracleSession, following

# One feature of every kind; the rest of the table is marked slow.
_SAMPLE = frozenset(
    {
        "value-width",
        "no-queries",
        "scale-negative",
        "softcap-mask",
        "layout-3d-gqa",
        "qk-weights-masked-row",
        "window-past",
    }
    | {"softmax-precision-float16", "mask-bool-t", "mask-float-short-bhsp", "masked-row-causal", "past-layout-3d"}
    | {"poison-nan-key", "lengths-causal-negative", "one-key-first"}
)
_STANDARD = [feature for feature in features() if feature.operator is Operator.ATTENTION]
_NAMED = sorted({name for feature in _STANDARD for name in feature.readings})


def row(slug: str, opset: int = 25, dtype: Dtype = Dtype.FLOAT32) -> FeatureRow:
    return FeatureRow(feature=find_feature(slug), opset=opset, dtype=dtype)


@pytest.mark.parametrize(
    "feature",
    [
        pytest.param(feature, id=feature.slug, marks=() if feature.slug in _SAMPLE else pytest.mark.slow)
        for feature in _STANDARD
    ],
)
def test_the_oracle_itself_is_right(feature: Feature) -> None:
    """No row is wrong for the oracle's own output, rounded to float32."""
    record = run_row(FeatureRow(feature=feature, opset=25, dtype=Dtype.FLOAT32), OracleRuntime())
    assert (record.verdict, record.outcome, record.reason) == (Conformity.RIGHT, Outcome.OK, ""), record.diagnosis
    assert record.wrong_cases == 0
    assert (record.max_bound_ratio or 0.0) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", _NAMED)
def test_a_reading_that_features_name_is_caught_by_one(name: str) -> None:
    """A runtime that follows the reading is wrong in a row whose feature names it."""
    named = [feature for feature in _STANDARD if name in feature.readings]
    runtime = following(name)
    records = (run_row(FeatureRow(feature=feature, opset=25, dtype=Dtype.FLOAT32), runtime) for feature in named)
    assert any(record.verdict is Conformity.WRONG for record in records)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reading",
    # The rows have fewer keys than two blocks of 32.
    [reading for reading in READINGS if not reading.name.endswith(("reversed-32", "reversed-64", "reversed-128"))],
    ids=lambda reading: reading.name,
)
def test_every_reading_is_caught_by_the_table(reading: Reading) -> None:
    """A runtime that follows any other reading of the operator is wrong in some row."""
    runtime = following(reading.name)
    candidates = [feature for feature in _STANDARD if any(reading.applies(spec) for spec in feature.specs)]
    records = (run_row(FeatureRow(feature=feature, opset=25, dtype=Dtype.FLOAT32), runtime) for feature in candidates)
    assert any(record.verdict is Conformity.WRONG for record in records)


def test_a_wrong_row_is_explained() -> None:
    """The record has the verdict, the outcome on the disputed point, the evidence and the command."""
    record = run_row(row("causal-past-one-query"), following("causal-bottom-right"))
    assert (record.verdict, record.outcome) == (Conformity.WRONG, Outcome.DISAGREES)
    assert record.observed == "bottom-right or all-keys"
    assert record.diagnosis.startswith("output of b")
    assert "exceed the proven bound" in record.diagnosis
    assert record.wrong_cases == record.cases > 0
    assert record.max_bound_ratio > 1.0
    assert record.repeat == (
        "sdpa-onnx conformance --runtime oracle --only causal-past-one-query --opset 25 --dtype float32"
    )


@pytest.mark.parametrize(
    ("slug", "reading", "observed"),
    [
        ("masked-row-bool", None, "zero"),
        ("masked-row-bool", "masked-row-nan", "nan"),
        ("masked-row-bool", "masked-row-mean", "mean-of-values"),
        ("masked-row-bool", "masked-row-unmasked", "unmasked"),
        ("masked-row-lowest", None, "mean-of-values"),
        ("masked-row-lowest", "lowest-is-hidden", "zero"),
        ("causal-more-keys", None, "upper-left"),
        ("causal-more-keys", "causal-bottom-right", "bottom-right"),
        ("causal-past-several", None, "past"),
        ("lengths-causal", None, "nonpad"),
        ("lengths-causal", "causal-upper-left", "upper-left"),
        ("causal-more-keys", "causal-ignored", "all-keys"),
    ],
)
def test_a_disputed_point_is_named_right_or_wrong(slug: str, reading: str | None, observed: str) -> None:
    """The record names the outcome of a right row and of a wrong one."""
    runtime = OracleRuntime() if reading is None else following(reading)
    record = run_row(row(slug), runtime)
    assert record.observed == observed
    assert record.verdict is (Conformity.RIGHT if reading is None else Conformity.WRONG)


def test_a_refusal_is_no_fault() -> None:
    """A refused row has the runtime's reason."""
    record = run_row(row("plain"), Refusing())
    assert (record.verdict, record.outcome) == (Conformity.REFUSED, Outcome.UNSUPPORTED)
    assert record.reason == "fake has no such kernel"
    assert (record.path, record.path_nodes) == ("", None)


def test_the_row_has_the_execution_path() -> None:
    """onnxruntime 1.32 has a kernel for opset 24 and expands opset 25."""
    old, new = (run_row(row("causal", opset), get_runtime("ort-cpu")) for opset in (24, 25))
    assert (old.path, old.path_nodes) == ("native", 1)
    assert new.path == "expanded"
    assert new.path_nodes > 10


class _Views(OracleSession):
    """Returns the same memory in every run, as a view of a runtime's own buffer does."""

    def outputs(self, spec: object, given: object) -> dict[str, object]:  # type: ignore[override]
        fresh = super().outputs(spec, given)  # type: ignore[arg-type]
        if not hasattr(self, "kept"):
            self.kept = fresh
        for name, array in fresh.items():
            if self.kept[name].shape == array.shape:
                self.kept[name][...] = array
        return self.kept


class _Noisy(OracleSession):
    """Changes the last bit at random."""

    rng = np.random.default_rng(0)

    def run(self, inputs: dict[str, object]) -> dict[str, object]:  # type: ignore[override]
        outputs = super().run(inputs)  # type: ignore[arg-type]
        return {
            name: np.nextafter(array, np.where(self.rng.random(array.shape) < 0.5, np.inf, -np.inf).astype(array.dtype))
            for name, array in outputs.items()
        }


class _Writing(OracleSession):
    """Scales its query in place."""

    def run(self, inputs: dict[str, object]) -> dict[str, object]:  # type: ignore[override]
        outputs = super().run(inputs)  # type: ignore[arg-type]
        inputs["Q"] *= 2.0  # type: ignore[operator]
        return outputs


class _LosesPast(OracleSession):
    """Returns the cache with its first key set to zero."""

    def run(self, inputs: dict[str, object]) -> dict[str, object]:  # type: ignore[override]
        outputs = super().run(inputs)  # type: ignore[arg-type]
        outputs["present_key"][:, :, :1] = 0.0
        return outputs


def _opening(kind: type[OracleSession]) -> OracleRuntime:
    """A runtime that opens sessions of this class."""

    class Runtime(OracleRuntime):
        def load(self, model: OnnxModel, options: LoadOptions) -> Session:
            return kind(model, self.blocks)

    return Runtime()


@pytest.mark.parametrize(
    ("kind", "slug", "diagnosis"),
    [
        (_Views, "outputs-kept", "An output changed during the next run."),
        (_Noisy, "same-bits-twice", "A second run on the same inputs returns different bits."),
        (_Writing, "inputs-unchanged", "The runtime modified its inputs."),
        (_LosesPast, "past", "present_key is not the past followed by the new entries: 48 of 432 elements differ."),
    ],
)
def test_a_session_that_misbehaves_is_wrong(kind: type[OracleSession], slug: str, diagnosis: str) -> None:
    """Each session property has a row, and the diagnosis names the violated property."""

    record = run_row(row(slug), _opening(kind))
    assert record.verdict is Conformity.WRONG
    assert diagnosis in record.diagnosis


@pytest.mark.parametrize(
    ("fault", "slug"),
    [
        (stateful_runtime.first_key_count, "one-key-first"),
        (stateful_runtime.previous_mask, "masks-in-one-session"),
        (stateful_runtime.after_empty, "empty-in-one-session"),
        (stateful_runtime.previous_past, "caches-in-one-session"),
    ],
)
def test_a_fault_of_state_is_wrong(fault: stateful_runtime.Fault, slug: str) -> None:
    """Each sequence of sizes has a row that finds its fault, and the diagnosis says that the run is right alone."""
    record = run_row(row(slug), stateful_runtime.Stateful(fault, name="oracle", real=OracleRuntime()))
    assert record.verdict is Conformity.WRONG
    assert "It is right in a fresh session: earlier runs of the session cause it." in record.diagnosis
    assert run_row(row(slug), OracleRuntime()).verdict is Conformity.RIGHT


@pytest.mark.parametrize(
    ("factor", "verdict", "wrong_cases", "sentence"),
    [
        (6e-7, Conformity.RIGHT, 0, "Suspicious once: "),
        (1e-6, Conformity.SUSPICIOUS, 0, "Suspicious 2 times: "),
        (2e-6, Conformity.WRONG, 1, "output of b2_"),
    ],
    ids=["one-suspicious", "two-suspicious", "one-wrong-one-suspicious"],
)
def test_a_suspicious_row_is_not_wrong(factor: float, verdict: Conformity, wrong_cases: int, sentence: str) -> None:
    """One suspicious output may be chance; two make a row suspicious; one proved output makes it wrong."""

    def off(_: object, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            name: (array * (1.0 + factor)).astype(array.dtype) if array.shape[-1] == 12 else array
            for name, array in outputs.items()
        }

    record = run_row(row("layout-3d-gqa"), Faulty(off))
    assert (record.verdict, record.outcome, record.wrong_cases) == (verdict, verdict.outcome, wrong_cases)
    assert record.diagnosis.startswith(sentence)
    assert record.reason == ("" if verdict is Conformity.RIGHT else record.diagnosis)
    assert (record.outcome is Outcome.DISAGREES) is verdict.disagrees


def test_a_swallowed_nan_is_wrong() -> None:
    """A visible NaN must propagate; a hidden one may, and the record names the outcome."""

    def clean(_: object, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.nan_to_num(array) for name, array in outputs.items()}

    record = run_row(row("poison-nan-seen", 23), Faulty(clean))
    assert record.verdict is Conformity.WRONG
    assert "A NaN in the inputs was lost: 24 elements whose query attends to it are numbers" in record.diagnosis
    assert record.reading == "nan-swallowed"
    assert run_row(row("poison-nan-value"), OracleRuntime()).observed == "propagates"


def test_the_fourth_output_of_another_stage_is_wrong() -> None:
    """The scores are judged for the requested output mode."""
    capped = find_feature("qk-raw-softcap")
    record = run_row(
        FeatureRow(feature=replace(capped, qk_mode=None, attributes={}), opset=25, dtype=Dtype.FLOAT32), OracleRuntime()
    )
    assert record.verdict is Conformity.RIGHT
    wrong = run_row(row("qk-raw-softcap"), get_runtime("onnx-reference"))
    assert wrong.verdict is Conformity.WRONG  # onnx 1.23.2 returns the capped scores in mode 0
    assert wrong.diagnosis.startswith("qk of ")


def test_slugs_are_unique_and_rows_many() -> None:
    """A slug is the key of expected faults: no two features share one."""
    slugs = [feature.slug for feature in features()]
    assert len(set(slugs)) == len(slugs)
    assert len(select()) > 600


class _Lowest(OracleSession):
    """Returns the lowest finite number as the score of a hidden key."""

    def outputs(self, spec: object, given: object) -> dict[str, object]:  # type: ignore[override]
        found = super().outputs(spec, given)  # type: ignore[arg-type]
        return {
            name: np.where(np.isneginf(array), np.finfo(array.dtype).min, array).astype(array.dtype)
            for name, array in found.items()
        }


class _Swallows(OracleSession):
    """Replaces every NaN in the inputs with 0."""

    def run(self, inputs: dict[str, object]) -> dict[str, object]:  # type: ignore[override]
        clean = {
            name: np.nan_to_num(array) if array.dtype.kind == "f" else array  # type: ignore[attr-defined,call-overload]
            for name, array in inputs.items()
        }
        return super().run(clean)


@pytest.mark.parametrize(
    ("session", "slug", "reading", "diagnosis"),
    [
        (
            _Lowest,
            "qk-mask-bool",
            "hidden-score-lowest",
            "It looks as if the score of a hidden key is the lowest finite number, not -inf.",
        ),
        (_Swallows, "poison-nan-seen", "nan-swallowed", "It looks as if a NaN in the inputs is replaced by a number."),
    ],
)
def test_faults_outside_the_output_readings_are_named(
    session: type[OracleSession], slug: str, reading: str, diagnosis: str
) -> None:
    """A swallowed NaN and the score of a hidden key are named in `reading` and in the diagnosis."""
    record = run_row(row(slug), _opening(session))
    assert (record.verdict, record.reading) == (Conformity.WRONG, reading)
    assert record.diagnosis.endswith(diagnosis)
