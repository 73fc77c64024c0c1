import io

import pytest

from sdpa_onnx.runtimes.worker_process import ending, last_line


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exit code 0"), (3, "exit code 3"), (-11, "SIGSEGV"), (-9, "SIGKILL"), (-200, "signal 200")],
)
def test_the_end_in_words(status: int, words: str) -> None:
    """A signal by its name, all else by its number."""
    assert ending(status) == words


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"one\ntwo  words.\n\n", "two words"),
        (b"x" * 9000 + b"\nend", "end"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_the_last_line(printed: bytes, line: str) -> None:
    """Empty lines, bytes that are no text and more than is kept are no hindrance."""
    assert last_line(io.BytesIO(printed)) == line
