"""The sentences of a report, one kind at a time, and complete in golden texts."""

import math
from dataclasses import replace

import msgspec
import pytest

from sdpa_onnx.core.records.records import AgreementRecord, BakedAxis, ExportRecord, Outcome, Record, Subject, Verdict
from sdpa_onnx.report.run.findings import first_findings
from tests.conftest import GoldenCheck
from tests.report.synthetic import check, comparison, header, quick_records, tell, troubled_records, with_ratios
from tests.report.synthetic_saturation import cell

WRONG = {"outcome": Outcome.DISAGREES, "verdict": Verdict.WRONG, "max_bound_ratio": 38.2, "max_abs_error": 1.2e-3}
CASE = "batch 1, length 512, d_k 64"
FUSED, DECOMPOSED = "ort-cpu attention 23", "ort-cpu decomposed 18"


def one_with(words: str, lines: list[str]) -> str:
    """The only line that contains this text."""
    (line,) = [line for line in lines if words in line]
    return line


@pytest.mark.parametrize(
    ("name", "records"), [("findings_quick.txt", quick_records()), ("findings_troubled.txt", troubled_records())]
)
def test_whole_text(name: str, records: list[Record], golden: GoldenCheck) -> None:
    """All lines of a good and of a bad run."""
    golden(name, "\n".join(tell(records)) + "\n")


def test_no_records() -> None:
    """An empty run is reported as empty, not as success."""
    assert tell([]) == ["There are no records: nothing was checked and nothing was timed."]


def test_all_agree() -> None:
    """The largest error is named with its case and runtime."""
    first, where = tell([check(), check(max_bound_ratio=0.2, runtime="onnx-reference")])
    assert first == "All 2 checks agree with the float64 oracle (largest error: 20 % of its proven bound)."
    assert where == (f"The largest error is 0.200 of its proven bound (sdpa, onnx-reference attention 23, {CASE}).")


def test_one_check_agrees() -> None:
    """One check is no plural."""
    assert tell([check()])[0].startswith("The one check agrees with the float64 oracle (largest error: 11 % of")


_OUT_OF_TIME = {"outcome": Outcome.SKIPPED, "reason": "budget"}


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ([{}], "The saturation cell matches theory."),
        ([{}, {}], "All 2 saturation cells match theory."),
        ([{"outcome": Outcome.DISAGREES}], "The saturation cell does not match theory."),
        ([{}, {"outcome": Outcome.DISAGREES}], "1 of 2 saturation cells matches theory."),
        ([_OUT_OF_TIME], ""),
        ([{}, _OUT_OF_TIME], "The saturation cell matches theory."),
        ([{"outcome": Outcome.DISAGREES}, _OUT_OF_TIME], "The saturation cell does not match theory."),
    ],
)
def test_saturation_cells(outcomes: list[dict[str, object]], text: str) -> None:
    """A cell that did not run neither matches nor fails; one cell is no plural."""
    line = tell([check(), *(cell(**fields) for fields in outcomes)])[0]  # type: ignore[arg-type]
    assert text in line
    assert ("theory" in line) == bool(text)


def test_wrong() -> None:
    """A wrong check leads, with its evidence in the next line."""
    first, evidence = tell([check(), check(**WRONG, diagnosis="Looks like scale 1/d_k.", inputs="spread 1", seed=7)])
    assert first == f"WRONG: the output is off by up to 38.2 times its proven bound (sdpa, {FUSED}; 1 of 2 checks)."
    assert evidence == (
        "The output is off by up to 38.2 times its proven bound. Worst: largest error 0.00120, 38.2 times its proven "
        f"bound (sdpa, {FUSED}, {CASE}, inputs 'spread 1', seed 7). Looks like scale 1/d_k."
    )


def test_times_of_wrong_outputs_do_not_count() -> None:
    """If there are times too, the report states that they are not valid."""
    lines = tell([check(**WRONG), *comparison()])
    assert lines[2] == "Times of wrong outputs are not valid until the outputs are right."


def test_worst_is_by_bound_and_proof() -> None:
    """A proven fault is listed before a larger suspicion."""
    suspicious = {"outcome": Outcome.DISAGREES, "verdict": Verdict.SUSPICIOUS, "subject": Subject.OUTPUT, "site": "Y"}
    lines = tell(
        [
            check(**suspicious, max_bound_ratio=99.0),
            check(**WRONG, site="a"),
            check(**(WRONG | {"max_bound_ratio": 2.0}), site="a"),
        ]
    )
    assert lines[0].startswith("WRONG: the output of the attention is off by up to 38.2 times its proven bound and")


def test_suspicious_end_of_a_module() -> None:
    """The end of a module has a rule, not a proven bound."""
    lines = tell(
        [
            check(
                outcome=Outcome.DISAGREES,
                verdict=Verdict.SUSPICIOUS,
                subject=Subject.OUTPUT,
                site="Y",
                max_bound_ratio=1.5,
            )
        ]
    )
    assert lines[0].startswith(
        "Output 'Y' differs by up to 1.5 times the allowed error (sdpa, ort-cpu attention 23; 1 of 1"
    )


@pytest.mark.parametrize("ratio", [math.inf, math.nan])
def test_not_finite(ratio: float) -> None:
    """NaN is infinitely wrong and never printed as a number."""
    lines = tell([check(**(WRONG | {"max_bound_ratio": ratio}))])
    assert lines[0] == f"WRONG: the output is not finite where it must be (sdpa, {FUSED}; 1 of 1 check)."


@pytest.mark.parametrize(("ratio", "agrees"), [(1.0, True), (1.0000001, False), (math.nan, False)])
def test_a_forgotten_outcome_does_not_hide_a_fault(ratio: float, agrees: bool) -> None:
    """An error above its bound is wrong whatever the outcome in the record; just inside is not."""
    first = tell([check(max_bound_ratio=ratio)])[0]
    assert first.startswith("The one check agrees") is agrees
    assert ("WRONG" in first) is not agrees


def test_unjudged_is_not_ok() -> None:
    """A check without a verdict is counted as skipped."""
    lines = tell([check(verdict=None)])
    assert lines[0] == "No output was checked against the float64 oracle. Skipped: 1 check."
    assert lines[1] == f"1 check skipped (sdpa, {FUSED}, {CASE}): no verdict was recorded."


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNSUPPORTED, Outcome.SKIPPED])
def test_not_ok_is_counted_and_grouped(outcome: Outcome) -> None:
    """The first line counts, the next gives the reason once for all of them."""
    bad = {"outcome": outcome, "verdict": None, "reason": "no kernel"}
    lines = tell([check(), check(**bad), check(**bad)])
    told = "Skipped: 2 checks." if outcome is Outcome.SKIPPED else f"Not ok: 2 checks {outcome}."
    assert lines[0].endswith(f" {told}")
    assert lines[1] == f"2 checks {outcome} (sdpa, {FUSED}, {CASE} and 1 more): no kernel."


def test_many_reasons_are_cut() -> None:
    """Two reasons are printed, the others counted."""
    words = ("one", "two", "three", "four", "five", "six", "seven")
    lines = tell([check(outcome=Outcome.FAILED, verdict=None, reason=f"reason {word}") for word in words])
    assert lines[3] == "5 more reasons (5 records) in the report."


def test_a_long_reason_is_one_short_line() -> None:
    """A traceback in a reason does not flood the first lines."""
    line = tell([check(outcome=Outcome.FAILED, verdict=None, reason="word\n" * 100)])[1]
    assert "\n" not in line
    assert line.endswith("word...")
    assert len(line) < 260


@pytest.mark.parametrize("done", [0, 40, 96])
def test_unfinished(done: int) -> None:
    """The report of an unfinished run starts with that."""
    cut = replace(header(), finished=None, done_cells=done)
    first = first_findings([check()], cut)[0]
    assert first.startswith(f"This run is not finished: {done} of 96 cells are done. The one check agrees")


def test_finished_with_cells_missing() -> None:
    """An end time does not make up for missing cells."""
    assert first_findings([], replace(header(), done_cells=95))[0].startswith(
        "This run is not finished: 95 of 96 cells are done. There"
    )


def test_export_that_is_right() -> None:
    """Dynamic axes are claimed only where sizes were tried."""
    right = ExportRecord(target="sdpa", dynamic_axes=("batch_size",), sizes_tried=5)
    assert "1 export ran at sizes that were not traced (5 sizes each); no axis is baked." in tell([right])
    assert tell([msgspec.structs.replace(right, sizes_tried=0)])[1:] == []


def test_baked_axis() -> None:
    """A baked axis is not ok whatever the outcome in the record, and the line names the node."""
    baked = (BakedAxis(axis="q_seq_len", node="Reshape_3"), BakedAxis(axis="batch_size"))
    lines = tell([check(), ExportRecord(target="sdpa", form="decomposed", opset=18, baked=baked)])
    assert lines[0].endswith(" Not ok: 1 export disagrees.")
    assert lines[1] == ("1 export disagrees (sdpa, decomposed 18): baked: q_seq_len at Reshape_3 and batch_size.")


def test_sharpness_is_that_of_the_least_sharp_place() -> None:
    """What every place would have caught, not what the best one would."""
    records: list[Record] = [
        check(scale_error_proven=0.003),
        check(scale_error_proven=0.02),
        check(runtime="onnx-reference", scale_error_proven=0.01),
    ]
    assert one_with("Sensitivity", tell(records)) == (
        "Sensitivity: the checks would have proven a scale error of 1 % for every target and runtime."
    )
    assert not [line for line in tell([*records, check(runtime="torch")]) if "Sensitivity" in line]


def test_warnings_are_told_once() -> None:
    """One warning on many records is one line."""
    warned = {"warnings": ("Attention was expanded into 59 nodes.",)}
    lines = tell([check(**warned), check(**warned), check(runtime="torch", form="", opset=0, **warned)])
    assert lines[-1] == f"Warning on 3 records ({FUSED} and torch): Attention was expanded into 59 nodes."


def test_module_end_alone() -> None:
    """Without a proven bound none is claimed."""
    assert tell([check(subject=Subject.OUTPUT, site="Y")]) == ["The one check agrees with a float64 run of the module."]


def test_every_record_kind_is_counted() -> None:
    """No kind of record can fail unseen."""
    first = tell(troubled_records())[0]
    assert first.endswith("Not ok: 1 check failed, 1 check unsupported and 1 runtime unsupported. Skipped: 1 timing.")


def test_agreement_record_defaults_are_not_agreement() -> None:
    """An empty record proves nothing."""
    assert tell([AgreementRecord()])[0].startswith("No output was checked")


def test_fused_slower_than_decomposed() -> None:
    """Where the fused operator loses to the decomposed graph, the case is named."""
    ratios = {FUSED: (1.20, 1.18, 1.22), DECOMPOSED: (1.00, 0.99, 1.01)}
    lines = tell([*with_ratios(comparison(), ratios), *comparison(seq_len=1024)])
    assert one_with("against the decomposed graph", lines) == (
        "Attention (opset 23) on ort-cpu against the decomposed graph (opset 18) on ort-cpu: "
        "faster in 1 and slower in 1 of 2 cases. Slower for length 512 (1.20 x [1.17, 1.23])."
    )


def test_overlapping_intervals_decide_nothing() -> None:
    """Two arms over one baseline are compared by the quotient of their intervals."""
    ratios = {FUSED: (0.90, 0.85, 0.95), DECOMPOSED: (0.93, 0.90, 0.97)}
    lines = tell([*with_ratios(comparison(), ratios)])
    assert one_with("against the decomposed graph", lines).endswith("inconclusive in the only case.")


def test_winner_changes_with_length() -> None:
    """The lengths at which another arm becomes the fastest."""
    torch_wins = {FUSED: (1.5, 1.4, 1.6), DECOMPOSED: (1.5, 1.4, 1.6)}
    nobody = {FUSED: (1.0, 0.9, 1.1), DECOMPOSED: (1.5, 1.4, 1.6)}
    fused_wins = {FUSED: (0.7, 0.6, 0.8), DECOMPOSED: (1.5, 1.4, 1.6)}
    plan = {32: torch_wins, 64: torch_wins, 128: nobody, 256: fused_wins, 512: fused_wins, 1024: fused_wins}
    records = [record for length, ratios in plan.items() for record in with_ratios(comparison(seq_len=length), ratios)]
    assert one_with("fastest arm", tell([*records])) == (
        "The fastest arm changes with length (sdpa, batch 1, d_k 64): torch at 32 and 64; "
        "no clear winner at 128; ort-cpu attention 23 from 256 to 1024."
    )


def test_no_winner_anywhere() -> None:
    """No arm is crowned on overlapping intervals."""
    records = [record for length in (32, 64, 128) for record in comparison(seq_len=length, noise=0.9)]
    assert "No arm is clearly fastest at every length from 32 to 128 (sdpa, batch 1, d_k 64)." in tell([*records])


def test_roof_above_one() -> None:
    """A share above 100 % is explained, not hidden."""
    records = [msgspec.structs.replace(one, roof_share=1.07) for one in comparison()]
    line = one_with("roof", tell([*records]))
    assert "torch reaches 107 % (" in line
    assert line.endswith("A share above 100 % means that the measured roof is too low.")


def test_roof_unknown() -> None:
    """Without ceilings no share is claimed."""
    records = [msgspec.structs.replace(one, roof_share=None) for one in comparison()]
    assert not [line for line in tell([*records]) if "roof" in line]
