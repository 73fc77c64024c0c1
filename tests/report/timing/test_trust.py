"""How many verdicts hold, and what follows for the reader."""

import msgspec
import pytest

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.trust import timing_trust, trust_sentence
from tests.report.synthetic_timing import CLOCKS, DECOMPOSED, FUSED, judged, noisy


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
    assert ("1 is doubtful (measure again)" in text) is is_doubtful
    assert ("all 2 verdicts hold" in text) is not is_doubtful


def test_a_warm_up_that_did_not_settle() -> None:
    """Arms are visited in the same blocks, so that only their times in seconds are approximate."""
    first, *rest = judged()
    assert sentence(msgspec.structs.replace(first, steady=False), *rest) == (
        "Timing: all 2 verdicts hold. 1 of 3 times in ms, but no ratio, is approximate (warm-up not settled)."
    )


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
