"""The golden check of conftest.py: what it accepts, writes and says."""

from pathlib import Path

import pytest

from tests.conftest import check_golden


def test_equal_text_passes_and_clears_the_old_got(tmp_path: Path) -> None:
    """An accepted text leaves no .got file behind."""
    (tmp_path / "table.txt").write_text("a\nb\n")
    (tmp_path / "table.txt.got").write_text("old")
    check_golden(tmp_path, "table.txt", "a\nb\n")
    assert not (tmp_path / "table.txt.got").exists()


def test_other_text_fails_with_a_diff_and_writes_got(tmp_path: Path) -> None:
    """The message shows the changed lines; the file has all of the new text."""
    (tmp_path / "table.txt").write_text("a\nb\n")
    with pytest.raises(pytest.fail.Exception) as caught:
        check_golden(tmp_path, "table.txt", "a\nc\n")
    got = tmp_path / "table.txt.got"
    assert got.read_text() == "a\nc\n"
    assert str(caught.value) == "\n".join(
        [
            f"table.txt differs; all of it is in {got}",
            "--- table.txt",
            "+++ table.txt.got",
            "@@ -1,2 +1,2 @@",
            " a",
            "-b",
            "+c",
        ]
    )


def test_line_ends_count(tmp_path: Path) -> None:
    """A lost last line end is a difference, and it is said."""
    (tmp_path / "table.txt").write_text("a\n")
    with pytest.raises(pytest.fail.Exception, match="the line ends differ"):
        check_golden(tmp_path, "table.txt", "a")


def test_missing_golden_fails_and_writes_got(tmp_path: Path) -> None:
    """A new golden text is never accepted unseen."""
    with pytest.raises(pytest.fail.Exception, match="There is no golden file"):
        check_golden(tmp_path / "golden", "new.txt", "a\n")
    assert (tmp_path / "golden" / "new.txt.got").read_text() == "a\n"
