"""Progress without a percentage: elapsed time and step, on a terminal and on a pipe; time left."""

import io
import re

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


# Seconds and share of the work at each report, and the end, as recorded on a busy machine (an Intel Xeon, 2 cores).
_RECORDED = {
    "verify, one block of width 256": """
        4.45 0 4.87 .0769 5.19 .1538 5.52 .2308 6.2 .3077 6.58 .3846 7.18 .4615 7.46 .5385 8.21 .6154 8.58 .7308
        9.25 .8462 10.12 1""",
    "verify, encoder-decoder": """
        4.82 0 5.35 .0769 5.73 .1538 6.11 .2308 6.84 .3077 7.31 .3846 7.77 .4615 8.1 .5385 8.96 .6154 9.47 .7308
        10.22 .8462 10.98 1""",
    "verify, blocked, beyond two lengths": """
        5.32 0 6.12 .0769 6.66 .1538 7.17 .2308 7.85 .3077 8.3 .3846 8.78 .4615 9.18 .5385 9.91 .6154 11.31 .6
        12.99 .6667 13.01 .6154 14.31 .7308 14.31 .8462 15.16 1""",
    "verify, six blocks of width 512": """
        11.14 0 27.85 .0769 36.05 .1538 46.16 .2308 63.55 .3077 74.23 .3846 92.17 .4615 103.84 .5385 126.39 .6154
        136.82 .7308 144.52 .8462 179.18 1""",
    "export, six blocks of width 512": """
        51.92 .1053 60.75 .2105 68.05 .3158 83.32 .4211 94.16 .5263 112.11 .6316 118.02 .7368 139.39 .8421 147.75 1""",
    "export, encoder-decoder": """
        11.53 .1053 11.89 .2105 12.26 .3158 12.76 .4211 13.07 .5263 13.5 .6316 13.75 .7368 14.45 .8421 15.03 1""",
}


@pytest.mark.parametrize("share", [0.3, 0.5])
@pytest.mark.parametrize("reports", _RECORDED.values(), ids=_RECORDED)
def test_the_time_left_is_truthful(reports: str, share: float) -> None:
    """After 30 % of the time that the work takes, what is shown is within a factor of 2 of what it then took."""
    numbers = [float(one) for one in reports.split()]
    *pairs, (end, _) = zip(numbers[::2], numbers[1::2], strict=True)
    shown_at = pairs[0][0] + share * (end - pairs[0][0])
    now, stream = [0.0], _Terminal()
    with StepProgress("loading", stream=stream, now=lambda: now[0], tick_seconds=0.0) as progress:
        for seconds, done in pairs:
            if seconds <= shown_at:
                now[0] = seconds
                progress.done(done)
        now[0] = shown_at
        progress.at("a step")
        found = re.search(r"a step, about (\d+) s left", stream.getvalue())
    assert found is not None
    left = end - shown_at
    assert left / 2 <= float(found.group(1)) <= left * 2


def test_nothing_is_known_before_a_step_is_done() -> None:
    """The first report starts the clock; the same share again, and a second that is left, are no news."""
    clock, stream = iter([0.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 19.5]), _Terminal()
    with StepProgress("loading", stream=stream, now=lambda: next(clock), tick_seconds=0.0) as progress:
        for done in (0.0, 0.0, 0.3):
            progress.done(done)
            progress.at(f"at {done}")
        progress.at("late")
    assert stream.getvalue().split("\r")[1:4] == ["  6 s  at 0.0", "  8 s  at 0.0", " 10 s  at 0.3, about 8 s left"]
    assert "late  " in stream.getvalue()


@pytest.mark.parametrize(
    ("after", "line"),
    [(2.0, " 30 s  proving: 2 of 4 sizes, about 32 s left\n"), (None, " 30 s  proving: 2 of 4 sizes\n")],
)
def test_sizes_count_with_what_follows_them(after: float | None, line: str) -> None:
    """Two of six runs in the 16 s since the first: four more take 32 s. An unknown rest has no time."""
    stream, now = io.StringIO(), [0.0]
    with StepProgress("loading", stream=stream, now=lambda: now[0], tick_seconds=0.0) as progress:
        reach = progress.sizes("proving", after=after)
        for now[0], done in ((14.0, 0), (14.9, 1), (30.0, 2)):
            reach(done, 4)
    assert stream.getvalue() == line
