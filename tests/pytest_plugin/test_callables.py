"""Two callables on a clock that only they advance, and synthetic samples: ratio, clock, verdict, warnings."""

import hashlib
import platform
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdpa_onnx.core.records.records import Outcome, RatioVerdict
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.verdict_rule import CLONE
from sdpa_onnx.pytest_plugin import callables
from sdpa_onnx.pytest_plugin.callables import BASELINE, CANDIDATE, judge_pair, time_callables
from sdpa_onnx.pytest_plugin.result import TimedPair
from sdpa_onnx.pytest_plugin.threads_used import ThreadsUsed, ThreadsWatch
from tests.measure.test_visits import FakeClock

# Pinned here, so that what these tests say does not move with the usual figure.
_CALIBRATION = Calibration(between_sd=0.0057, degrees=8.0)
_MILLISECOND = 1_000_000
# For a hash, outside Python's lock.
_WORK = bytes(1 << 20)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock of ours; calibration, load and threads that are not this machine's, which may have no idle core now."""
    monkeypatch.setattr(callables, "load_calibration", lambda: _CALIBRATION)
    used = ThreadsUsed(beyond=0.0, cores=1.0)
    monkeypatch.setattr(callables, "ThreadsWatch", lambda: SimpleNamespace(used=lambda: used))
    monkeypatch.setattr(callables, "announced", lambda: nullcontext(SimpleNamespace(warnings=lambda: ())))
    return FakeClock()


@pytest.mark.parametrize(
    ("nanoseconds", "ratio", "verdict"),
    [
        (2_000_000, 2.0, RatioVerdict.SLOWER),
        (500_000, 0.5, RatioVerdict.FASTER),
        (1_000_000, 1.0, RatioVerdict.EQUAL),
        (1_015_000, 1.015, RatioVerdict.INCONCLUSIVE),
    ],
)
def test_ratio_and_word(clock: FakeClock, nanoseconds: int, ratio: float, verdict: RatioVerdict) -> None:
    """The candidate over the baseline, never the other way round; 1.5 % more is not claimed of one process."""
    pair = time_callables(clock.arm("a", _MILLISECOND), clock.arm("b", nanoseconds), seconds=1.0, clock=clock)
    record = pair.candidate.record
    assert (record.ratio, record.verdict) == (pytest.approx(ratio), verdict)
    assert record.ratio_low < ratio < record.ratio_high
    assert (record.baseline, record.arm, record.launches, record.confidence) == (BASELINE, CANDIDATE, 1, 0.99)
    assert (pair.baseline.record.ratio, pair.baseline.record.verdict) == (1.0, None)
    assert record.median_seconds == pytest.approx(nanoseconds * 1e-9)
    assert pair.baseline.record.median_seconds == pytest.approx(1e-3)
    assert record.warnings == ()
    assert (record.runtime, record.runtime_version) == ("python", platform.python_version())


def test_no_difference_below_two_percent_is_claimed(clock: FakeClock) -> None:
    """Without any noise the interval still holds what two processes of one program differ by."""
    pair = time_callables(clock.arm("a", _MILLISECOND), clock.arm("b", _MILLISECOND), seconds=1.0, clock=clock)
    record = pair.candidate.record
    assert record.log_ratio_se == pytest.approx(0.0057)
    assert record.degrees == 8.0
    assert (record.ratio_low, record.ratio_high) == (pytest.approx(0.981, abs=1e-3), pytest.approx(1.019, abs=1e-3))


def test_a_round_is_the_mean_of_a_visit(clock: FakeClock) -> None:
    """Every block gives one number an arm, and a visit of 10 ms has ten calls of a millisecond."""
    pair = time_callables(clock.arm("a", _MILLISECOND), clock.arm("b", _MILLISECOND), seconds=1.0, clock=clock)
    assert len(pair.baseline.rounds) == len(pair.candidate.rounds) == pair.candidate.record.blocks
    assert pair.candidate.rounds == pytest.approx([1e-3] * pair.candidate.record.blocks)
    assert pair.candidate.iterations == 10


def test_short_calls_are_timed_many_at_a_stroke(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of 100 ns is timed in batches of 500, one of 1 us in batches of 50, and both are reported per call."""
    monkeypatch.setattr(callables, "_VISIT_SECONDS", 1e-4)
    pair = time_callables(clock.arm("a", 100), clock.arm("b", 1000), seconds=0.01, clock=clock)
    assert pair.baseline.record.median_seconds == pytest.approx(100e-9)
    assert pair.candidate.record.median_seconds == pytest.approx(1000e-9)
    assert (pair.baseline.iterations, pair.candidate.iterations) == (1000, 100)  # at least two strokes a visit
    assert pair.candidate.record.calls == 100 * pair.candidate.record.blocks


def test_a_long_call_is_not_repeated_since_the_other_is_short(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each arm has its own number of calls: 100 ns and 100 ms; measuring ends after 20 blocks of one such call."""
    monkeypatch.setattr(callables, "_VISIT_SECONDS", 1e-4)
    pair = time_callables(clock.arm("a", 100), clock.arm("b", 100 * _MILLISECOND), seconds=0.1, clock=clock)
    assert (pair.candidate.iterations, pair.candidate.record.blocks) == (1, 20)
    assert clock.calls.count("b") < 100


@pytest.mark.parametrize(("seconds", "blocks"), [(0.001, 20), (1.2, 40), (1e6, 160)])
def test_seconds_decide_the_blocks(clock: FakeClock, seconds: float, blocks: int) -> None:
    """Blocks of 30 ms until the time is over: never fewer than 20, never more than 160."""
    pair = time_callables(clock.arm("a", _MILLISECOND), clock.arm("b", _MILLISECOND), seconds=seconds, clock=clock)
    assert pair.candidate.record.blocks == pytest.approx(blocks, abs=1)


def test_what_a_callable_raises_is_passed_on(clock: FakeClock) -> None:
    """Not wrapped, and a tracer that was set is set again."""

    def bad() -> None:
        raise ZeroDivisionError("mine")

    def tracer(*_: object) -> None: ...

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with pytest.raises(ZeroDivisionError, match=r"^mine$"):
            time_callables(clock.arm("a", _MILLISECOND), bad, seconds=1.0, clock=clock)
        kept = sys.gettrace()
    finally:
        sys.settrace(before)
    assert kept is tracer


def test_nothing_is_traced_meanwhile(clock: FakeClock) -> None:
    """Coverage would slow the arms down, and one more than the other."""
    seen: set[object] = set()

    def call() -> None:
        seen.add(sys.gettrace())
        clock.wall += _MILLISECOND

    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        time_callables(call, call, seconds=0.01, clock=clock)
    finally:
        sys.settrace(before)
    assert seen == {None}


def test_a_sleeper_waits_and_a_worker_does_not() -> None:
    """The system counts how often a thread gives up its core by itself; the real clock, without a figure of time."""
    import time

    from sdpa_onnx.measure.visits import SystemClock

    assert callables._trial(lambda: time.sleep(1e-4), SystemClock())[1]
    assert not callables._trial(lambda: sum(range(100)), SystemClock())[1]


def _arm(wall: float, cpu: float, *, steady: bool = True) -> ArmSamples:
    """30 blocks of 4 calls, all alike."""
    return ArmSamples(wall_seconds=np.full((1, 30, 4), wall), cpu_seconds=np.full((1, 30, 4), cpu), steady=steady)


def _judged(baseline: ArmSamples, candidate: ArmSamples, clone: ArmSamples | None = None, **changes: Any) -> TimedPair:
    samples = {BASELINE: baseline, CANDIDATE: candidate, CLONE: baseline if clone is None else clone}
    return judge_pair(
        samples, counts=dict.fromkeys(samples, 1), calibration=_CALIBRATION, **{"waits": False, **changes}
    )


@pytest.mark.parametrize(
    ("baseline", "candidate", "waits", "clock", "ratio"),
    [
        (_arm(1.0, 1.0), _arm(1.2, 1.2), False, "wall", 1.2),  # quiet
        (_arm(2.0, 1.0), _arm(3.0, 1.2), False, "cpu", 1.2),  # disturbed: wall time is a lottery
        (_arm(2.0, 1.0), _arm(3.0, 1.2), True, "wall", 1.5),  # waits by itself: CPU time would hide it
        (_arm(2.0, 1.0), _arm(3.0, 6.0), False, "wall", 1.5),  # the candidate has threads: CPU time adds up
        (_arm(2.0, 0.0), _arm(3.0, 0.0), True, "wall", 1.5),  # the CPU clock saw nothing
    ],
    ids=["quiet", "disturbed", "waits", "threads", "idle"],
)
def test_the_clock(baseline: ArmSamples, candidate: ArmSamples, waits: bool, clock: str, ratio: float) -> None:
    """CPU time only for one thread that others disturb, never for one that sleeps or has helpers."""
    record = _judged(baseline, candidate, waits=waits).candidate.record
    assert (record.clock, record.ratio) == (clock, pytest.approx(ratio))


def test_rounds_are_of_the_clock_that_decided() -> None:
    """The figures of pytest-benchmark agree with those in our line."""
    pair = _judged(_arm(2.0, 1.0), _arm(3.0, 1.2))
    assert pair.candidate.record.clock == "cpu"
    assert pair.candidate.rounds == pytest.approx([1.2] * 30)


def _used(idle: float | None, beyond: float = 0.45) -> ThreadsUsed:
    return ThreadsUsed(beyond=beyond, cores=0.9, idle=idle)


@pytest.mark.parametrize(("beyond", "clock"), [(0.45, "wall"), (0.04, "cpu")])
def test_threads_that_take_turns_are_threads(beyond: float, clock: str) -> None:
    """On a busy machine two threads have no more CPU than wall time; the share of the calling thread shows them."""
    record = _judged(_arm(2.0, 1.0), _arm(3.0, 1.2), used=_used(None, beyond)).candidate.record
    assert record.clock == clock


def test_threads_without_cores_get_no_ratio() -> None:
    """Equal code got the verdict FASTER here: no interval, no such verdict, and a remedy."""
    told = (
        "Undecidable on this machine now: the callables use several threads, but only 0.5 cores are idle; set "
        "OPENBLAS_NUM_THREADS=1, or the variable of your library, before Python starts."
    )
    pair = _judged(_arm(2.0, 1.0), _arm(3.0, 1.2), used=_used(0.5))
    record = pair.candidate.record
    assert (record.outcome, record.reason, record.warnings) == (Outcome.SKIPPED, told, (told,))
    assert (record.ratio, record.verdict, record.log_ratio_se) == (None, None, None)
    assert (pair.baseline.record.outcome, pair.baseline.record.warnings) == (Outcome.OK, (told,))


@pytest.mark.parametrize("used", [_used(2.0), _used(1.9), _used(0.5, 0.04)])
def test_a_machine_with_cores_decides(used: ThreadsUsed) -> None:
    """Two idle cores, nearly, or one thread on a busy machine: the ratio is valid."""
    record = _judged(_arm(2.0, 1.0), _arm(3.0, 1.2), used=used).candidate.record
    assert (record.outcome, record.verdict) == (Outcome.OK, RatioVerdict.SLOWER)


def _helped() -> None:
    """Half of the work in a second thread."""
    thread = threading.Thread(target=hashlib.sha256, args=(_WORK,))
    thread.start()
    hashlib.sha256(_WORK)
    thread.join()


@pytest.mark.parametrize(("call", "several"), [(_helped, True), (lambda: hashlib.sha256(_WORK), False)])
def test_helpers_are_seen_whatever_the_load(call: Callable[[], object], several: bool) -> None:
    """The system's CPU clocks of process and thread, without a figure of time."""
    watch = ThreadsWatch()
    for _ in range(5):
        call()
    assert watch.used().several is several


@pytest.mark.parametrize(("factor", "verdict"), [(1.018, RatioVerdict.SLOWER), (1.021, RatioVerdict.NOISY)])
def test_a_clone_that_differs_voids_the_word(factor: float, verdict: RatioVerdict) -> None:
    """The interval's half width is 1.9 %: a second baseline inside it is fine, beyond it nothing holds."""
    record = _judged(_arm(1.0, 1.0), _arm(2.0, 2.0), _arm(factor, factor)).candidate.record
    assert record.verdict is verdict
    assert [warning[:30] for warning in record.warnings] == (
        ["A clone of the baseline takes "] if verdict is RatioVerdict.NOISY else []
    )


def test_another_timing_is_told(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two timings at once disturb each other: a warning on both records, before any other."""
    notice = SimpleNamespace(warnings=lambda: ("Another timing of sdpa_onnx (process 7) ran at the same time.",))
    monkeypatch.setattr(callables, "announced", lambda: nullcontext(notice))
    pair = time_callables(clock.arm("a", _MILLISECOND), clock.arm("b", _MILLISECOND), seconds=0.1, clock=clock)
    assert pair.candidate.record.warnings == pair.baseline.record.warnings == notice.warnings()


def test_doubts_are_told() -> None:
    """No steady state, and clocks that differ by more than the noise."""
    record = _judged(_arm(1.0, 1.0), _arm(1.5, 1.0, steady=False)).candidate.record
    assert record.warnings == (
        "The candidate reached no steady state in the warm-up.",
        "The ratio is 1.500 by wall time and 1.000 by CPU time: one arm waits or sleeps.",
    )
