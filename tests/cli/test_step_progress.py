"""Progress without a percentage: elapsed time and step, on a terminal and on a pipe."""

import io

import pytest

from sdpa_onnx.cli.detail import chosen_detail
from sdpa_onnx.cli.step_progress import StepProgress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _run(stream: io.StringIO, *times: float) -> str:
    """The output of a job whose steps begin at these seconds."""
    clock = iter([0.0, *times])
    with StepProgress("loading", stream=stream, now=lambda: next(clock), tick_seconds=0.0) as progress:
        for number in range(len(times)):
            progress.at(f"step {number + 1} of {len(times)}")
    return stream.getvalue()


def test_terminal_shows_the_step_and_removes_it() -> None:
    """Nothing in the first two seconds, then one line that is overwritten and erased."""
    text = _run(_Terminal(), 1.9, 2.0, 71.4)
    assert text == "\r  2 s  step 2 of 3\r 71 s  step 3 of 3\r" + " " * 18 + "\r"


def test_pipe_has_a_line_now_and_then() -> None:
    """One every 15 seconds, without a percentage or a time left."""
    assert _run(io.StringIO(), 3.0, 15.0, 29.9, 30.0) == " 15 s  step 2 of 4\n 30 s  step 4 of 4\n"


@pytest.mark.parametrize("stream", [_Terminal(), io.StringIO()], ids=["terminal", "pipe"])
def test_quiet_shows_nothing(stream: io.StringIO) -> None:
    """--quiet means one sentence on stdout and nothing else."""
    with chosen_detail({"quiet": True}):
        assert _run(stream, 20.0, 40.0) == ""
