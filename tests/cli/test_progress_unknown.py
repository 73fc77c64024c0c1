"""Progress before anything is done: the elapsed time, no percentage and no time left."""

import io

from sdpa_onnx.cli.progress import Progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _run(*times: float, total: float, done: float) -> str:
    stream, clock = _Terminal(), iter([0.0, *times])
    with Progress(total, stream=stream, now=lambda: next(clock)) as progress:
        progress.at("loading")
        if done:
            progress.advance(done)
            progress.at("timing")
    return stream.getvalue()


def test_nothing_is_claimed_before_something_is_done() -> None:
    """No "0 %", no "unknown"."""
    assert _run(5.0, 5.0, total=10.0, done=0.0).startswith("\r  5 s  loading\r")


def test_no_time_left_below_zero() -> None:
    """Work that takes longer than expected."""
    text = _run(5.0, 5.0, 6.0, 8.0, 8.0, total=10.0, done=12.0)
    assert "100%  about 0 s left  timing" in text
