"""`--budget`: counted from the start of the process, kept by a timer where nobody looks at the clock."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

from sdpa_onnx.cli.time_limit import command_deadline, process_age
from sdpa_onnx.measure.time_limit import interrupted_at


def test_without_a_limit_nothing_ends() -> None:
    """No budget, no deadline and no timer."""
    deadline = command_deadline(None)
    assert math.isinf(deadline.seconds_left)
    with interrupted_at(deadline):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_reserve_is_kept() -> None:
    """Some of it, at most six seconds, for the end of the command; what has passed since its start counts."""
    budgets = {10.0: 8.5, 1000.0: 994.0}
    assert {budget: command_deadline(budget).budget_seconds for budget in budgets} == budgets
    assert command_deadline(1000.0).seconds_left < 994.0


def test_age_of_the_process(tmp_path: Path) -> None:
    """The system knows when a process began; without it CPU time is a lower bound."""
    assert process_age() >= time.process_time() - 0.5  # of several threads it may be a little more
    assert process_age(tmp_path / "none") <= time.process_time()


_INTERRUPTED = """
import signal, time
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.time_limit import interrupted_at

before = signal.getsignal(signal.SIGALRM)
try:
    with interrupted_at(Deadline(budget_seconds=0.01)):
        while True:
            time.sleep(0.01)
except KeyboardInterrupt:
    print(signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM) is before)
"""


def test_what_looks_at_no_clock_is_interrupted() -> None:
    """As by Ctrl-C; then timer and handler are as before. In a process of its own, which a late alarm would end."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("(0.0, 0.0) True\n", "")
