"""How many verdicts hold, and what follows for the reader."""

import msgspec
import pytest

from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import usual_factors
from sdpa_onnx.report.timing.case_groups import case_groups
from sdpa_onnx.report.timing.case_names import case_names
from sdpa_onnx.report.timing.case_table import case_table
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.doubt import TimingDoubt
from sdpa_onnx.report.timing.findings import timing_findings
from sdpa_onnx.report.timing.form_advice import form_advice
from sdpa_onnx.report.timing.ratio_points import ratio_picture
from sdpa_onnx.report.timing.tables import TIMING_TITLE
from sdpa_onnx.report.timing.trust import timing_trust, trust_sentence
from tests.report.synthetic_timing import CLOCKS, DECOMPOSED, FUSED, cells, judged, noisy


def sentence(*records: object) -> str:
    return trust_sentence(timing_trust(comparisons(list(records))))  # type: ignore[arg-type]


def test_all_hold() -> None:
    """Nothing to add."""
    assert sentence(*judged()) == "Timing: all 2 verdicts hold."


def test_open_and_noisy() -> None:
    """Each kind is counted once."""
    undecided = {DECOMPOSED: (0.96, RatioVerdict.FASTER), FUSED: (0.99, RatioVerdict.INCONCLUSIVE)}
    assert sentence(*judged(undecided), *noisy()) == (
        "Timing: 1 of 4 verdicts holds; 1 is open and 2 are noisy (ignore the ratio)."
    )


@pytest.mark.parametrize(
    ("fields", "is_doubtful"),
    [
        ({"warnings": ("The ratio of a was still changing during the measurement.",)}, True),
        ({"warnings": (CLOCKS,), "ratio_wall": 0.98, "ratio_cpu": 1.03}, True),
        ({"warnings": (CLOCKS,), "ratio_wall": 0.85, "ratio_cpu": 0.93}, False),
        ({"warnings": ("Another timing of sdpa_onnx ran.",)}, True),
        ({"warnings": ("Attention was expanded.",)}, False),
    ],
)
def test_checks_that_contradict_a_verdict(fields: dict[str, object], is_doubtful: bool) -> None:
    """Clocks contradict a verdict only if they disagree about which arm is faster."""
    torch, other, fused = judged()
    text = sentence(torch, other, msgspec.structs.replace(fused, **fields))
    assert ("; 1 is doubtful (" in text) is is_doubtful
    assert ("all 2 verdicts hold" in text) is not is_doubtful


OTHER = "Another timing of sdpa_onnx (process 7) ran at the same time."
MOVING = "The ratio of a was still changing during the measurement."


def doubted(*warnings: str) -> list[TimingRecord]:
    """A comparison in which these warnings are on the arms, in this order, the baseline left out."""
    torch, *others = judged()
    return [torch, *(msgspec.structs.replace(arm, warnings=(one,)) for arm, one in zip(others, warnings, strict=True))]


def test_no_verdict_can_be_trusted() -> None:
    """The reason and what to do are in the same sentence as the verdict on the times."""
    assert sentence(*doubted(OTHER, OTHER)) == (
        "Timing: none of the 2 verdicts can be trusted (another sdpa-onnx timing ran at the same time); repeat when "
        "the machine is quiet."
    )


def test_the_most_frequent_reason() -> None:
    """Of several reasons the most frequent is given, with its number."""
    assert "3 are doubtful (in 2 because another sdpa-onnx timing ran at the same time; repeat" in sentence(
        *judged(seq_len=64), *doubted(OTHER, OTHER), *doubted(MOVING, "Attention was expanded.")
    )


def test_doubt_is_shown_wherever_a_verdict_is() -> None:
    """The table, the dots, the verdict column and the sentences agree that nothing is proven."""
    records: list[Record] = [*doubted(OTHER, OTHER), *doubted(MOVING, MOVING)]
    found = comparisons(records)
    table = case_table(case_groups(found, case_names(found, usual_factors(records)))(4))
    shown = [cell for section in table.sections for row in section.rows for cell in row[1:]]
    assert shown
    assert all(cell.endswith("?") for cell in shown)
    assert "all proven" not in table.note
    assert {cell for cell in cells(records, TIMING_TITLE, "verdict") if cell != "-"} == {"faster?"}
    picture = ratio_picture(records)
    assert picture is not None
    assert not any(one.is_decided for panel in picture.panels for case in panel.cases for one in case.points)
    lines = timing_findings(records, usual_factors(records))
    assert not [line for line in lines if "faster in" in line or "is fastest" in line]
    assert any("doubtful in all 2 cases" in line for line in lines)
    assert form_advice(found) == []


def test_two_arms_by_two_clocks() -> None:
    """Two clocks contradict the order of two arms if they name different winners, whatever they say of the baseline."""
    torch, other, fused = judged()
    slow = msgspec.structs.replace(other, warnings=(CLOCKS,), ratio_wall=1.2, ratio_cpu=1.5)
    fast = msgspec.structs.replace(fused, ratio_wall=1.3, ratio_cpu=1.3)
    (one,) = comparisons([torch, slow, fast])
    assert one.judged(slow).doubt is None
    assert one.between(slow, fast).doubt is TimingDoubt.CLOCKS
    assert one.between(slow, msgspec.structs.replace(fast, ratio_wall=1.1)).doubt is None


def test_a_warm_up_that_did_not_settle() -> None:
    """Arms are visited in the same blocks, so that only times in seconds are approximate: said where they are shown."""
    first, *rest = judged()
    first = msgspec.structs.replace(first, steady=False)
    assert sentence(first, *rest) == "Timing: all 2 verdicts hold."
    assert sentence(first) == "The time in ms is approximate (warm-up not settled)."


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        (0, "Timing: all 2 verdicts hold."),
        (1, "Timing: all 2 verdicts hold. 1 of 2 ratios is of CPU time on a busy machine: a quiet one can differ."),
        (2, "Timing: all 2 verdicts hold. 2 of 2 ratios are of CPU time on a busy machine: a quiet one can differ."),
    ],
)
def test_a_busy_machine(busy: int, expected: str) -> None:
    """Processes that share a core change ratios of CPU time as well."""
    torch, *others = judged()
    clocks = [msgspec.structs.replace(one, clock="cpu") if n < busy else one for n, one in enumerate(others)]
    assert sentence(torch, *clocks) == expected


def test_nothing_compared() -> None:
    """No sentence without a comparison."""
    assert sentence() == ""
    assert sentence(judged()[0]) == ""
