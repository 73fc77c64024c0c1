"""The gate on time: in pairs just inside and just outside each limit."""

import math

import msgspec
import numpy as np
import pytest

from sdpa_onnx.core.compare.gate_effects import Machine, welch
from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import RunSide, compare_stored
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.records.verdicts import Outcome, RatioVerdict
from sdpa_onnx.core.timing.holm import holm
from sdpa_onnx.core.timing.paired import RatioEstimate
from tests.core.gate_problems import (
    MACHINE,
    TORCH,
    at_high_end,
    at_low_end,
    beside,
    paired,
    stored,
    timed,
)


@pytest.mark.parametrize(
    ("ratio", "word"),
    [
        (at_low_end(1.0501), GateVerdict.REGRESSION),
        (at_low_end(1.0499), GateVerdict.UNDECIDED),
        (at_high_end(1.0501), GateVerdict.UNDECIDED),
        (at_high_end(1.0499), GateVerdict.WORSE),
        (at_low_end(1.0002), GateVerdict.WORSE),
        (at_low_end(0.9998), GateVerdict.SAME),
        (at_high_end(1.0002), GateVerdict.SAME),
        (at_high_end(0.9998), GateVerdict.BETTER),
    ],
)
def test_limits_of_the_margin(ratio: float, word: GateVerdict) -> None:
    """An interval above 1 + margin fails; the limits of the interval decide every other verdict too."""
    (row,) = paired(beside(ratio))
    assert row.word is word
    assert row.fails is (word is GateVerdict.REGRESSION)
    assert row.ratio == pytest.approx(ratio)


def test_a_proven_difference_below_one_per_cent_is_the_same() -> None:
    """A significant but negligible slow-down counts as no change."""
    (row,) = paired(beside(1.006, log_ratio_se=0.0005))
    assert (row.word, row.ratio_low > 1) == (GateVerdict.SAME, True)


def test_another_margin_is_used() -> None:
    """What fails at 5 % passes where 20 % is allowed."""
    assert paired(beside(1.12))[0].word is GateVerdict.REGRESSION
    assert paired(beside(1.12), limits=GateLimits(margin=0.2))[0].word is GateVerdict.WORSE


def test_noisy_is_told_loudly_and_passes() -> None:
    """If a clone differs from the baseline, the gate is not applied, however large the ratio."""
    (row,) = paired(beside(1.5, verdict=RatioVerdict.NOISY))
    assert (row.word, row.outcome) == (GateVerdict.UNDECIDED, Outcome.SKIPPED)
    assert row.evidence == (
        "HEAD takes 1.500 times as long [1.482, 1.518]. NOISY: a second process of the baseline differs "
        "from the baseline, so no time of this comparison is reliable. The time gate was not applied; "
        "measure again on a quieter machine "
        "or for longer."
    )


def test_strict_fails_what_is_open_and_nothing_else() -> None:
    """--strict: undecided fails, the same passes."""
    strict = GateLimits(strict=True)
    assert paired(beside(1.04), limits=strict)[0].fails
    assert not paired(beside(1.04))[0].fails
    assert not paired(beside(1.0), limits=strict)[0].fails


def test_an_allowed_gate_is_told_and_passes() -> None:
    """--allow time."""
    (row,) = paired(beside(1.2), limits=GateLimits(allowed=frozenset({Gate.TIME})))
    assert (row.word, row.outcome) == (GateVerdict.WORSE, Outcome.OK)
    assert row.evidence.endswith("Allowed here (--allow time).")


def test_an_undecidable_machine_passes_and_is_told() -> None:
    """More threads than idle cores: a reason, and no number."""
    reason = "Undecidable on this machine now: 2 threads, and 1 idle core."
    base, head = beside(1.0, outcome=Outcome.SKIPPED, reason=reason)
    (row,) = paired((base, head))
    assert (row.word, row.evidence, row.ratio) == (GateVerdict.NOT_COMPARABLE, f"Not comparable: {reason}", None)


def test_what_it_would_take_is_told() -> None:
    """An open result names the number of launches, or that the ratio is too close to the limit."""
    assert "About 3 more launches (larger --seconds)" in paired(beside(1.04))[0].evidence
    assert "too close to the limit" in paired(beside(1.0501))[0].evidence


def test_holm_over_the_table() -> None:
    """One of many must be further away: what fails alone is not proven among a hundred."""
    ratio = at_low_end(1.0502)
    assert paired(beside(ratio))[0].word is GateVerdict.REGRESSION
    rows = paired(beside(ratio), *(beside(1.0) for _ in range(99)))
    assert rows[0].word is GateVerdict.UNDECIDED
    assert "Not proven among 100 comparisons" in rows[0].evidence
    assert paired(beside(1.2), *(beside(1.0) for _ in range(99)))[0].word is GateVerdict.REGRESSION


def test_holm_is_that_of_a_table_by_hand() -> None:
    """Smallest times n, next times n - 1, never falling, never above 1."""
    assert holm([0.04, 0.01, 0.5, 0.02]) == pytest.approx([0.08, 0.04, 0.5, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_look_at_which_it_stopped_counts() -> None:
    """After four launches alpha is 0.2 %, after eight 0.5 %: the same figures decide later, not sooner."""
    ratio = at_low_end(1.0499)
    assert paired(beside(ratio, launches=4))[0].word is GateVerdict.UNDECIDED
    assert paired(beside(ratio, launches=8))[0].word is GateVerdict.REGRESSION


def test_false_alarms_of_a_table_without_a_change() -> None:
    """A table of ten equal arms, drawn 400 times: alarms are as rare as promised; at the margin itself too."""
    rng = np.random.default_rng(0)
    for centre in (0.0, math.log(1.05)):
        alarms = 0
        for _ in range(400):
            scale = 0.003 * np.sqrt(rng.chisquare(11, 10) / 11)
            logs = centre + 0.003 * rng.standard_normal(10)
            rows = paired(*(beside(math.exp(log), log_ratio_se=float(se)) for log, se in zip(logs, scale, strict=True)))
            alarms += any(row.fails for row in rows)
        assert alarms <= 8  # 1 % of 400 is 4; 9 or more has a chance of 2 %


def ratio_of_runs(base: float, head: float, *changes: dict[str, object]) -> GateRecord:
    """The time gate on two stored runs of one arm against torch."""
    sides = [timed(ratio=ratio, **change) for ratio, change in zip((base, head), changes or ({}, {}), strict=True)]
    (row,) = stored([sides[0], TORCH], [sides[1], TORCH], Gate.TIME)
    return row


def test_stored_runs_are_compared_by_the_ratio_of_ratios() -> None:
    """Raw seconds do not count: a machine half as fast, and the same ratio, is no change."""
    row = ratio_of_runs(0.9, 0.9, {}, {"median_seconds": 0.010})
    assert (row.word, row.ratio) == (GateVerdict.SAME, pytest.approx(1.0))
    assert row.base_seconds is None
    row = ratio_of_runs(0.9, 0.99)
    assert (row.word, row.ratio) == (GateVerdict.REGRESSION, pytest.approx(1.1))


def test_errors_of_stored_runs_add() -> None:
    """Both runs have an error: what one interleaved comparison proves, two stored ones do not."""
    ratio = at_low_end(1.0501)
    assert paired(beside(ratio))[0].word is GateVerdict.REGRESSION
    row = ratio_of_runs(1.0, ratio)
    assert row.word is GateVerdict.UNDECIDED
    assert row.evidence.endswith("compare the two models instead of two runs.")


def test_welch() -> None:
    """Standard errors in squares; degrees between the smaller and the sum, after Satterthwaite."""
    before = RatioEstimate(log_ratio=0.1, standard_error=0.003, degrees=11, launches=4)
    now = RatioEstimate(log_ratio=0.3, standard_error=0.004, degrees=15, launches=8)
    found = welch(before, now)
    assert found.log_ratio == pytest.approx(0.2)
    assert found.standard_error == pytest.approx(0.005)
    assert found.degrees == pytest.approx(0.005**4 / (0.003**4 / 11 + 0.004**4 / 15))
    assert welch(before, before).degrees == pytest.approx(22)


_MATCHLESS = (
    ({"log_ratio_se": None}, {}, "Not comparable: BASE: The timing has no standard error."),
    ({}, {"degrees": None}, "Not comparable: HEAD: The timing has no standard error."),
    ({}, {"clock": "cpu"}, "Not comparable: clock differs: wall, now cpu, and a ratio by CPU time is not known "),
    ({"threads": 2}, {}, "Not comparable: the runs have no common pinned baseline (torch), "),
)


@pytest.mark.parametrize(("base", "head", "sentence"), _MATCHLESS)
def test_stored_records_that_are_not_comparable(
    base: dict[str, object], head: dict[str, object], sentence: str
) -> None:
    """Told with the reason, never gated."""
    row = ratio_of_runs(1.0, 1.5, base, head)
    assert (row.word, row.outcome) == (GateVerdict.NOT_COMPARABLE, Outcome.SKIPPED)
    assert row.evidence.startswith(sentence)


@pytest.mark.parametrize(
    ("baselines", "sentence"),
    [
        (("ort-cpu", "ort-cpu"), "Both refer to 'ort-cpu': if that did not change, give --pinned 'ort-cpu'."),
        (
            ("a", "b"),
            (
                "BASE refers to 'a' and HEAD to 'b': time both with one baseline (bench --baseline ARM) and name it "
                "with --pinned ARM."
            ),
        ),
    ],
)
def test_what_could_be_pinned_is_told(baselines: tuple[str, str], sentence: str) -> None:
    """Runs without torch: the arm that both refer to, or that there is none."""
    row = ratio_of_runs(1.0, 1.5, {"baseline": baselines[0]}, {"baseline": baselines[1]})
    none = (
        "Not comparable: the runs have no common pinned baseline (torch), and raw seconds of two runs are not "
        "comparable."
    )
    assert row.evidence == f"{none} {sentence}"


def test_stored_runs_that_different_clocks_decided() -> None:
    """By CPU time, which both know; by how much the two clocks of a run differ is an error, and never a regression."""
    busy = {"clock": "cpu", "ratio_cpu": 1.3}
    row = ratio_of_runs(1.0, 1.3, {"ratio_cpu": 1.002}, busy)
    assert (row.word, row.ratio) == (GateVerdict.REGRESSION, pytest.approx(1.3 / 1.002))
    assert ratio_of_runs(1.3, 1.3, {"ratio_cpu": 1.0}, busy).word is GateVerdict.UNDECIDED


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        (Machine(environment={**MACHINE.environment, "cpu": "B"}, versions=MACHINE.versions), "cpu differs: A, now B."),
        (Machine(environment=MACHINE.environment, versions={"torch": "2.14.0"}), "the version of torch differs: "),
        (Machine(), "cpu is not known for both runs."),
    ],
)
def test_other_machines_are_not_comparable(machine: Machine, sentence: str) -> None:
    """The pinned baseline is only pinned on one kind of machine and in one version."""
    sides = (
        RunSide(records=[timed(), TORCH], machine=MACHINE),
        RunSide(records=[timed(ratio=1.5), TORCH], machine=machine),
    )
    (row,) = (row for row in compare_stored(*sides, GateLimits()) if row.gate is Gate.TIME)
    assert row.word is GateVerdict.NOT_COMPARABLE
    assert row.evidence.startswith(f"Not comparable: {sentence}")


def test_a_baseline_that_is_no_pinned_one_is_refused_unless_named() -> None:
    """Ratios to another file say nothing, for that file may have changed; a user may vouch for an arm."""
    pin = msgspec.structs.replace(TORCH, runtime="ort-cpu", arm="old.onnx", baseline="old.onnx", runtime_version="1")
    sides = [RunSide(records=[timed(ratio=ratio, baseline="old.onnx"), pin], machine=MACHINE) for ratio in (1.0, 1.2)]
    (row,) = (row for row in compare_stored(sides[0], sides[1], GateLimits()) if row.gate is Gate.TIME)
    assert row.word is GateVerdict.NOT_COMPARABLE
    rows = compare_stored(sides[0], sides[1], GateLimits(), pinned="old.onnx")
    assert [row.word for row in rows if row.gate is Gate.TIME] == [GateVerdict.REGRESSION]


def test_the_baseline_itself_is_not_asked_about() -> None:
    """torch is the yardstick."""
    assert stored([TORCH], [TORCH], Gate.TIME) == []


def test_a_skipped_gate_says_nothing() -> None:
    """--skip time."""
    assert paired(beside(2.0), limits=GateLimits(skipped=frozenset({Gate.TIME}))) == []


def test_records_of_earlier_versions_are_told() -> None:
    """An old run without standard errors is never a reason to fail."""
    old = TimingRecord(target="sdpa", case="b1_q512", group="b1_q512", arm="x", baseline="torch", ratio=1.0)
    new = msgspec.structs.replace(old, ratio=2.0, log_ratio_se=0.001, degrees=11.0, launches=4)
    (row,) = stored([old, TORCH], [new, TORCH], Gate.TIME)
    assert row.word is GateVerdict.NOT_COMPARABLE
