"""Comparisons of two real models: one quick pair by default, the others slow."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import compare_paired
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import (
    BUDGET_REASON,
    AgreementRecord,
    ExportRecord,
    Outcome,
    Sizes,
    Subject,
    TimingRecord,
    Verdict,
)
from sdpa_onnx.errors import PlanError
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.workflows.compare import judge as compare_judge
from sdpa_onnx.workflows.compare import models as compare_models_module
from sdpa_onnx.workflows.compare.models import CompareOptions, compare_models
from sdpa_onnx.workflows.compare.sides import aligned, aligned_timing, by_sizes, not_compared, refused_alike
from sdpa_onnx.workflows.convert.proof import ConversionProof
from tests.graph.models import SPECS, bare
from tests.runtimes.worker.environments import NUMPY, environment

pytestmark = pytest.mark.alone

_UNTIMED = GateLimits(skipped=frozenset({Gate.TIME, Gate.MEMORY}))
_JUDGED_ALONE = GateLimits(skipped=frozenset({Gate.TIME, Gate.MEMORY, Gate.GRAPH}))
_GRAPH_ALONE = GateLimits(skipped=frozenset({Gate.TIME, Gate.MEMORY, Gate.AGREEMENT}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attention at opset 23 and 25, with another scale, in float16, and decomposed."""
    found = tmp_path_factory.mktemp("models")
    bare().save(found / "attention.onnx")
    bare(opset=25).save(found / "newer.onnx")
    bare(replace(SPECS["plain"], scale=0.4)).save(found / "wrong.onnx")
    bare(dtype=Dtype.FLOAT16).save(found / "half.onnx")
    return found


def verdicts(rows: list[GateRecord], gate: Gate) -> set[GateVerdict]:
    return {row.word for row in rows if row.gate is gate}


def test_graphs_alone(folder: Path) -> None:
    """Nothing is judged or timed: the graph gate alone."""
    options = CompareOptions(runtimes=["ort-cpu"], limits=_GRAPH_ALONE, patience_seconds=None)
    (row,) = compare_models(folder / "attention.onnx", folder / "newer.onnx", options)
    assert (row.gate, row.word, row.base) == (Gate.GRAPH, GateVerdict.REGRESSION, "1 node run")
    assert row.evidence.startswith("Attention is now expanded into ")
    assert "Opset 23 became 25." in row.evidence
    (row,) = compare_models(folder / "newer.onnx", folder / "attention.onnx", options)
    assert row.word is GateVerdict.BETTER


def test_a_time_limit_that_is_over(folder: Path) -> None:
    """Every gate has a row that is *skipped: budget*; none fails."""
    plan = TimingPlan(deadline=Deadline(budget_seconds=0.0))
    options = CompareOptions(runtimes=["ort-cpu"], plan=plan, patience_seconds=None)
    rows = compare_models(folder / "attention.onnx", folder / "newer.onnx", options)
    assert [row.gate for row in rows] == [Gate.AGREEMENT, Gate.GRAPH, Gate.MEMORY, Gate.TIME]
    assert {(row.word, row.outcome, row.reason) for row in rows} == {
        (GateVerdict.NOT_COMPARABLE, Outcome.SKIPPED, BUDGET_REASON)
    }


def test_a_time_limit_during_judging(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """An interruption by the limit keeps what was found and names the gates that it did not reach."""

    def interrupted(*_: object, **__: object) -> None:
        clock[0] = 100.0
        raise KeyboardInterrupt

    clock = [0.0]
    monkeypatch.setattr(compare_models_module, "judge_both", interrupted)
    limit = Deadline(budget_seconds=60.0, now=lambda: clock[0], start=0.0)
    options = CompareOptions(runtimes=["ort-cpu"], plan=TimingPlan(deadline=limit), patience_seconds=None)
    rows = compare_models(folder / "attention.onnx", folder / "newer.onnx", options)
    assert {(row.gate, row.reason) for row in rows} == {(gate, BUDGET_REASON) for gate in Gate}
    clock[0] = -1e9  # not by the limit, but by the user
    monkeypatch.setattr(compare_models_module, "judge_both", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        compare_models(folder / "attention.onnx", folder / "newer.onnx", options)


@pytest.mark.parametrize(
    ("base", "head", "sentence"),
    [
        (
            "attention",
            "half",
            (
                "{head} has inputs Q (float16), K (float16), V (float16); {base} has Q (float), K (float), V (float). "
                "Only models with the same inputs and outputs can be compared."
            ),
        ),
        (
            "half",
            "half",
            (
                "BASE and HEAD are the same file, {head}. Pass two files, or two environments with --base-python and "
                "--head-python."
            ),
        ),
    ],
)
def test_what_cannot_be_compared(folder: Path, base: str, head: str, sentence: str) -> None:
    """Refused before anything runs."""
    paths = [folder / f"{name}.onnx" for name in (base, head)]
    with pytest.raises(PlanError) as caught:
        compare_models(*paths, CompareOptions(runtimes=["ort-cpu"]))
    assert str(caught.value) == sentence.format(base=paths[0], head=paths[1])


def test_graphs_of_another_environment(folder: Path, tmp_path: Path) -> None:
    """Without timing the nodes that run there are unknown, so the verdict is never SAME."""
    python = environment(tmp_path / "old", NUMPY, faulty=True)
    options = CompareOptions(runtimes=["ort-cpu"], limits=_GRAPH_ALONE, pythons=(None, python))
    (row,) = compare_models(folder / "attention.onnx", folder / "attention.onnx", options)
    assert (row.gate, row.word) == (Gate.GRAPH, GateVerdict.NOT_COMPARABLE)
    assert row.evidence == "The nodes that run in another environment are known only if it is timed."


def test_names_of_base_follow_head() -> None:
    """Form, opset and attentions in their order; outputs keep their names, and unequal counts are not paired."""
    output = AgreementRecord(subject=Subject.OUTPUT, site="a", form="attention", opset=23)
    base = [*(AgreementRecord(site=site, form="attention", opset=23) for site in ("a", "b")), output]
    head = [msgspec.structs.replace(one, form="decomposed", opset=18) for one in base]
    head[:2] = [msgspec.structs.replace(one, site=site) for one, site in zip(head[:2], ("x", "y"), strict=True)]
    assert aligned(base, head) == head
    kept = aligned(base[:1], head)
    assert isinstance(kept[0], AgreementRecord)
    assert (kept[0].site, kept[0].opset) == ("a", 18)
    assert aligned([ExportRecord(nodes={"A": 1})], [*head]) == [ExportRecord(form="decomposed", opset=18)]
    assert aligned(base, []) == base


def test_cases_are_named_by_their_sizes() -> None:
    """Another scale is not another case: it must be reported as a change."""
    sizes = Sizes(batch_size=1, q_seq_len=2, kv_seq_len=3)
    found = by_sizes([AgreementRecord(target="m", case=case, sizes=sizes) for case in ("b1_scale0.4", "b1")])
    assert [record.case for record in found] == ["m_b1_q2_kv3"] * 2


def test_a_refusal_meets_what_was_judged() -> None:
    """A HEAD that does not run is one row, worse than a BASE that is right; the cases of BASE do not disappear."""
    judged = [AgreementRecord(case=case, site="a", verdict=Verdict.OK) for case in ("m_b1", "m_b2")]
    refused = [AgreementRecord(case="m", outcome=Outcome.FAILED, reason="It crashed.")]
    assert refused_alike(refused, judged) == refused
    (row,) = compare_paired(refused_alike(judged, refused), refused, [], GateLimits())
    assert (row.fails, row.evidence) == (True, "failed, ok before: It crashed.")


def test_a_refusal_of_one_case_leaves_the_others() -> None:
    """Other judgements of HEAD are still paired with BASE under their own names."""
    judged = [AgreementRecord(case=case, site="a", verdict=Verdict.OK) for case in ("m_b1", "m_b2")]
    partly = [AgreementRecord(case="m_b1", outcome=Outcome.FAILED), judged[1]]
    assert refused_alike(judged, partly) == judged


def test_timings_of_base_are_named_as_those_of_head() -> None:
    """The names are HEAD's; the nodes that ran stay BASE's."""
    base = TimingRecord(arm="BASE", form="a", python="old", opset=23, ran={"A": 1})
    head = TimingRecord(arm="HEAD", form="b", python="new", opset=24, ran={"B": 1})
    found = aligned_timing(base, head)
    assert found == msgspec.structs.replace(base, arm="HEAD", form="b", python="new")


def test_row_of_a_gate_that_is_not_applied() -> None:
    """It has its reason."""
    row = not_compared(Gate.TIME, "onnx-reference", "m.onnx", "It is for agreement only.")
    assert (row.word, row.evidence) == (GateVerdict.NOT_COMPARABLE, "It is for agreement only.")


@pytest.mark.slow
def test_another_opset_agrees(folder: Path) -> None:
    """The same attention, expanded by the runtime: judgements are the same, and outputs on the same inputs too."""
    rows = compare_models(
        folder / "attention.onnx", folder / "newer.onnx", CompareOptions(runtimes=["ort-cpu"], limits=_UNTIMED)
    )
    assert verdicts(rows, Gate.AGREEMENT) <= {GateVerdict.SAME, GateVerdict.BETTER}
    assert any((row.subject, row.site) == (Subject.OUTPUT, "Y") for row in rows)
    assert len([row for row in rows if row.gate is Gate.AGREEMENT]) > 10


@pytest.mark.slow
def test_a_planted_fault_fails(folder: Path) -> None:
    """Another scale: each file is right by itself, and their outputs on the same inputs differ."""
    rows = compare_models(
        folder / "attention.onnx", folder / "wrong.onnx", CompareOptions(runtimes=["ort-cpu"], limits=_UNTIMED)
    )
    failing = [row for row in rows if row.fails]
    assert {row.gate for row in failing} == {Gate.AGREEMENT}
    assert {(row.subject, row.site) for row in failing} == {(Subject.OUTPUT, "Y")}
    assert all("The scale was 0.3536 and is 0.4." in row.evidence for row in failing)


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.SUSPICIOUS])
def test_a_changed_scale_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    """The first sentence for an output that differs; a row that passes if none does."""
    end = AgreementRecord(subject=Subject.OUTPUT, site="Y", verdict=Verdict.OK)
    proof = ConversionProof(
        source=(end,), records=(msgspec.structs.replace(end, verdict=verdict, diagnosis="The error is 0.1."),)
    )
    monkeypatch.setattr(compare_judge, "verify_file", lambda *_, **__: [])
    monkeypatch.setattr(compare_judge, "prove_conversion", lambda *_, **__: proof)
    options = CompareOptions(runtimes=["ort-cpu"], limits=_JUDGED_ALONE, patience_seconds=None)
    rows = compare_models(folder / "attention.onnx", folder / "wrong.onnx", options)
    found = [(row.word, row.evidence) for row in rows if "scale" in row.evidence]
    if verdict is Verdict.OK:
        assert found == [(GateVerdict.CHANGED, "The scale was 0.3536 and is 0.4.")]
    else:
        sentence = "differs, ok before: The scale was 0.3536 and is 0.4. The error is 0.1."
        assert found == [(GateVerdict.REGRESSION, sentence)]


@pytest.mark.slow
def test_the_same_model_twice_is_timed_and_passes(folder: Path, tmp_path: Path) -> None:
    """A copy: every gate is applied, and none fails."""
    copy = tmp_path / "copy.onnx"
    copy.write_bytes((folder / "attention.onnx").read_bytes())
    options = CompareOptions(
        runtimes=["ort-cpu"],
        sizes=[{"q_seq_len": 64, "kv_seq_len": 64}],
        plan=TimingPlan(budget_seconds=8.0, extras=False),
    )
    rows = compare_models(folder / "attention.onnx", copy, options)
    assert {row.gate for row in rows} >= {Gate.AGREEMENT, Gate.GRAPH, Gate.TIME}
    assert not [row for row in rows if row.fails]
    (timed,) = (row for row in rows if row.gate is Gate.TIME)
    assert timed.base_seconds > 0 or timed.word is GateVerdict.UNDECIDED
