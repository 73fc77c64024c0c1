"""The limit on a step: begun again by the next one, not held while a worker is waited for."""

import signal
import time

import pytest

from sdpa_onnx.errors import NoAnswerError
from sdpa_onnx.workflows.isolate import step_limit
from sdpa_onnx.workflows.isolate.step_limit import begin_step, limited_steps, no_step


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_limit, "_LEAST_SECONDS", 0.2)


def _wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _wait_in_an_import() -> None:
    try:
        _wait(30.0)
    except KeyboardInterrupt as error:
        raise ImportError("onnxruntime") from error


def test_a_long_step() -> None:
    """A step that does not end is an error with what the user can do."""
    with pytest.raises(NoAnswerError, match=r"within 0.2 s.* Wait\.$"), limited_steps(0.1, hint="Wait."):
        _wait(30.0)


def test_what_begins_again() -> None:
    """Waiting for a worker is no step, and the next step has the time of its own."""
    with limited_steps(1000.0, hint=""):
        signal.setitimer(signal.ITIMER_REAL, 500.0)
        begin_step()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 500.0
        with no_step():
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 500.0


def test_an_error_that_hides_the_interrupt() -> None:
    """Code that turns the interrupt into an error of its own is not believed."""
    with pytest.raises(NoAnswerError), limited_steps(0.1, hint=""):
        _wait_in_an_import()


def test_nothing_is_left() -> None:
    """After the block no timer runs, and the handler is the one before it."""
    before = signal.getsignal(signal.SIGALRM)
    with limited_steps(1000.0, hint=""):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
