"""Findings of synthetic records: what is one, its sentence, its order, and the command that repeats it."""

import msgspec
import pytest

from sdpa_onnx.core.records.baked import BakedAxis, BakedSetting
from sdpa_onnx.core.records.cause_text import looks_like, named_cause
from sdpa_onnx.core.records.findings import Finding, group_findings
from sdpa_onnx.core.records.gate_records import GateRecord
from sdpa_onnx.core.records.records import AgreementRecord, ConformanceRecord, ExportRecord, Outcome, Subject, Verdict


def _wrong(
    site: str = "sdpa",
    *,
    ratio: float | None = 40.0,
    says: str = "",
    subject: Subject = Subject.ATTENTION,
    inputs: str = "spread 1",
    sequence: tuple[dict[str, int], ...] = (),
    not_finite: int | None = None,
    axes: dict[str, int] | None = None,
    verdict: Verdict = Verdict.WRONG,
) -> AgreementRecord:
    evidence = "8 of 8 elements exceed the proven bound, at worst 40 times at (0, 0)."
    return AgreementRecord(
        target="f.onnx",
        runtime="ort-cpu",
        outcome=Outcome.DISAGREES,
        verdict=verdict,
        subject=subject,
        site=site,
        inputs=inputs,
        max_bound_ratio=ratio,
        not_finite=not_finite,
        diagnosis=f"{evidence} {looks_like(says)}" if says else evidence,
        sequence=sequence,
        axes=axes or {},
        seed=3,
    )


def _only(*records: AgreementRecord | ConformanceRecord | ExportRecord | GateRecord) -> Finding:
    (finding,) = group_findings(records)
    return finding


@pytest.mark.parametrize(
    "clause", ["the scale is off by 1.8 %", "the text before 1.21 is followed (onnx up to 1.21), i.e. the old one"]
)
def test_cause_is_read_back(clause: str) -> None:
    """Whatever numbers it holds, and whatever sentence follows."""
    assert named_cause(f"Evidence. {looks_like(clause)} Its opset was '23'.") == clause
    assert named_cause(f"Evidence. {looks_like(clause, 'onnx 1.20')}") == f"{clause} (onnx 1.20)"
    assert named_cause("Evidence.") == ""


def test_most_frequent_cause_names_the_finding() -> None:
    """A few steps that resemble another fault, or none, do not rename it; figures may differ."""
    finding = _only(
        _wrong(says="the scale is off by 1.8 %", ratio=9.0),
        _wrong(says="the scale is off by 1.7 %", ratio=8.0),
        _wrong(says="the last key is missing", ratio=90.0),
        _wrong(ratio=900.0),
    )
    assert finding.sentence == "The scale is off by 1.8 %: wrong on ort-cpu."
    assert len(finding.records) == 4


@pytest.mark.parametrize(
    ("ratio", "not_finite", "words"),
    [
        (4.25, None, "is off by up to 4.25 times its proven bound and resembles no known fault"),
        (12345.0, None, "is off by up to 12,345 times its proven bound and resembles no known fault"),
        (None, 2, "is not finite where it must be and resembles no known fault"),
    ],
)
def test_unknown_cause(ratio: float | None, not_finite: int | None, words: str) -> None:
    """Without a known fault the sentence has the size of the error, and no coordinates."""
    assert _only(_wrong(ratio=ratio, not_finite=not_finite)).cause == f"The output of the attention {words}"


def test_unknown_causes_of_two_attentions_are_two_findings() -> None:
    """Nothing shows that they are the same; a named one is the same only with the same figures."""
    assert len(group_findings([_wrong("a"), _wrong("b")])) == 2
    off = [_wrong("a", says="the scale is off by 1.8 %"), _wrong("b", says="the scale is off by 9 %")]
    assert [one.cause for one in group_findings(off)] == [
        "The scale is off by 1.8 % in attention 'a'",
        "The scale is off by 9 % in attention 'b'",
    ]


@pytest.mark.parametrize(("count", "words"), [(2, "attentions 'a0' and 'a1'"), (4, "4 attentions")])
def test_same_cause_in_several_attentions(count: int, words: str) -> None:
    """A few are named, many are counted."""
    finding = _only(*(_wrong(f"a{number}", says="the last key is missing") for number in range(count)))
    assert finding.cause == f"The last key is missing in {words}"


def test_output_at_another_step_is_a_finding_of_its_own() -> None:
    """A wrong attention explains only the outputs of the same run of the model."""
    same = _wrong("Y", subject=Subject.OUTPUT)
    other = _wrong("Y", subject=Subject.OUTPUT, inputs="spread 4", ratio=7.0)
    first, second = group_findings([_wrong(says="the last key is missing"), same, other])
    assert [len(one.records) for one in (first, second)] == [2, 1]
    assert second.cause == "Output 'Y' is off by up to 7 times the allowed error"


def test_shape_and_numbers_of_outputs_are_two_findings() -> None:
    """An output that cannot be compared has another cause than numbers that differ."""
    numbers = [_wrong(name, subject=Subject.OUTPUT) for name in ("Y", "Z")]
    shape = AgreementRecord(
        target="f.onnx",
        runtime="ort-cpu",
        outcome=Outcome.DISAGREES,
        verdict=Verdict.WRONG,
        subject=Subject.OUTPUT,
        site="W",
        diagnosis="Output 'W' has shape (1, 2), the graph declares (1, 3) at these sizes. More.",
    )
    causes = [one.cause for one in group_findings([*numbers, shape])]
    assert causes == [
        "Outputs 'Y' and 'Z' are off by up to 40 times the allowed error",
        "Output 'W' has shape (1, 2), the graph declares (1, 3) at these sizes",
    ]


def test_state_readings_and_axes() -> None:
    """Errors of state, of a reading and of the axes are findings of their own."""
    state = _wrong(sequence=({"q_seq_len": 2}, {"q_seq_len": 3}))
    reading = AgreementRecord(
        target="f.onnx",
        runtime="ort-cpu",
        outcome=Outcome.DISAGREES,
        verdict=Verdict.WRONG,
        subject=Subject.READING,
        site="a",
        diagnosis="The metadata contradicts the nodes.",
    )
    axes = ExportRecord(
        target="f.onnx",
        runtime="ort-cpu",
        outcome=Outcome.DISAGREES,
        reason="axis 'q_seq_len' is fixed at 'reshape' (evidence)",
        baked=(BakedAxis(axis="q_seq_len"),),
    )
    assert [one.sentence for one in group_findings([state, reading, axes])] == [
        "8 of 8 elements exceed the proven bound, at worst 40 times at (0, 0): wrong on ort-cpu.",
        "Axis 'q_seq_len' is fixed at 'reshape' (evidence): wrong on ort-cpu.",
        "The metadata contradicts the nodes: wrong on ort-cpu.",
    ]


def test_wrong_attention_explains_the_proof_of_the_axes() -> None:
    """The proof meets the same fault at other sizes; a fixed axis is another cause."""
    wrong = _wrong(says="the last key is missing")
    axes = ExportRecord(
        target="f.onnx",
        runtime="ort-cpu",
        outcome=Outcome.DISAGREES,
        reason="It is wrong wherever it was tried, e.g. at q_seq_len 5: 8 of 8 elements differ.",
    )
    assert [len(one.records) for one in group_findings([wrong, axes])] == [2]
    assert _only(axes).cause == "The file is wrong wherever it was tried, e.g. at q_seq_len 5: 8 of 8 elements differ"
    fixed = msgspec.structs.replace(axes, baked=(BakedAxis(axis="q_seq_len"),))
    assert len(group_findings([wrong, fixed])) == 2


def test_outputs_explain_the_proof_of_the_axes() -> None:
    """An output that differs and the same at other sizes are one finding; a setting of an attention is its cause."""
    output = _wrong("Y", subject=Subject.OUTPUT, ratio=7.0, verdict=Verdict.SUSPICIOUS)
    axes = ExportRecord(
        target="f.onnx",
        runtime="ort-cpu",
        outcome=Outcome.DISAGREES,
        reason="It is wrong wherever it was tried, e.g. at q_seq_len 5: The largest error is 2; allowed 0.1.",
    )
    differs = "Output 'Y' differs by up to 7 times the allowed error on ort-cpu (an output has no proven bound)."
    assert _only(output, axes).sentence == differs
    assert len(_only(output, axes).records) == 2
    why = "attention 'a' is not causal; the module's attention is (m.py:3)"
    lost = BakedSetting(setting="is_causal", site="a", fixed="it is False", own="it is True", evidence=why)
    found = _only(output, msgspec.structs.replace(axes, settings=(lost,), reason=f"A{why[1:]}."))
    assert found.sentence == f"A{why[1:]}: wrong on ort-cpu."
    assert (found.worst, len(found.records)) == (output, 2)
    fixed = msgspec.structs.replace(axes, baked=(BakedAxis(axis="q_seq_len"),))
    assert len(group_findings([output, fixed])) == 2


def test_failures_of_one_reason_are_one_finding() -> None:
    """Whatever their figures are; they come after what is wrong."""
    failed = [
        AgreementRecord(target="f.onnx", runtime="ort-cpu", outcome=Outcome.TIMED_OUT, reason=f"No answer in {n} s.")
        for n in (1, 2)
    ]
    first, second = group_findings([*failed, _wrong()])
    assert first.verdict is Verdict.WRONG
    assert second.sentence == "No answer in 1 s: failed on ort-cpu."
    assert len(second.records) == 2


def test_models_and_runtimes_are_separate() -> None:
    """The same fault on two runtimes is two findings."""
    elsewhere = AgreementRecord(target="f.onnx", runtime="openvino", outcome=Outcome.FAILED, reason="It crashed.")
    assert [one.runtime for one in group_findings([elsewhere, _wrong()])] == ["ort-cpu", "openvino"]


def test_rows_of_a_comparison() -> None:
    """13 rows of `compare` with one cause are one finding."""
    rows = [
        GateRecord(
            target="f.onnx",
            runtime="ort-cpu",
            outcome=Outcome.DISAGREES,
            site="sdpa",
            inputs=f"step {number}",
            evidence=f"wrong, before ok: {number} of 64 elements differ. {looks_like('the scale is off by 1.8 %')}",
            amount=float(number),
        )
        for number in range(13)
    ]
    finding = _only(*rows)
    assert (finding.sentence, len(finding.records)) == ("The scale is off by 1.8 %: wrong on ort-cpu.", 13)
    assert finding.worst is rows[-1]


def test_command_that_repeats_it() -> None:
    """The worst record with its seed and sizes; a path with a space is quoted; a target that is no file has none."""
    finding = _only(_wrong(axes={"q_seq_len": 5}))
    assert finding.repeat() == "sdpa-onnx verify f.onnx --runtime ort-cpu --seed 3 --size q_seq_len=5"
    assert finding.repeat("a b.onnx").startswith("sdpa-onnx verify 'a b.onnx' ")
    assert _only(ExportRecord(target="m:Class", outcome=Outcome.FAILED, reason="No.")).repeat() == ""
    row = ConformanceRecord(outcome=Outcome.DISAGREES, diagnosis="D.", repeat="sdpa-onnx conformance --feature x")
    assert _only(row).repeat() == "sdpa-onnx conformance --feature x"
