"""Signatures are precise: mypy finds the types that a user relies on, and each planted mistake."""

from pathlib import Path

import pytest

_SAMPLE = Path(__file__).with_name("typing_sample.py")


@pytest.mark.slow
def test_types_of_the_functions() -> None:
    """Errors are those of the lines that say so, and no others."""
    mypy = pytest.importorskip("mypy.api")
    wrong = [number for number, line in enumerate(_SAMPLE.read_text().splitlines(), 1) if "# wrong" in line]
    found, problems, _ = mypy.run(["--strict", "--no-error-summary", "--config-file=pyproject.toml", str(_SAMPLE)])
    assert problems == ""
    lines = [int(text.split(":")[1]) for text in found.splitlines() if ": error:" in text]
    assert sorted(set(lines)) == wrong, found
