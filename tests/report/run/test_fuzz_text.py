"""The sentences of a fuzz run count one case as one."""

import pytest

from sdpa_onnx.report.run.fuzz_text import FuzzReport, fuzz_summary
from sdpa_onnx.workflows.fuzz.run import CaseResult


@pytest.mark.parametrize(
    ("number", "word"), [(1, "1 case (numbers 4 to 4)"), (2000, "2,000 cases (numbers 4 to 2,003)")]
)
def test_cases_are_counted(number: int, word: str) -> None:
    """One case is no cases."""
    story = FuzzReport(
        runtime="ort-cpu",
        version="onnxruntime 1.32.0",
        seed=7,
        start=4,
        next_number=4 + number,
        counts={CaseResult.RIGHT: number},
        groups=(),
        wall_seconds=1.0,
        core_seconds=2.0,
        is_finished=True,
    )
    assert fuzz_summary(story)[0].startswith(f"ort-cpu (onnxruntime 1.32.0), seed 7: {word}: ")
