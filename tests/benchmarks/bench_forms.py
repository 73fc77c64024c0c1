"""Forms of one attention against each other on onnxruntime, interleaved, by the fixture `sdpa`.

The ratio, its interval and its word stand in the summary, and in the JSON beside pytest-benchmark's own entries.
Nothing is asserted of them: that one form is slower than another is no fault. For differences below 2 to 3 % see
`sdpa.compare_models`, which takes minutes instead of seconds.
"""

import pytest

from sdpa_onnx.pytest_plugin import Sdpa
from tests.benchmarks.judged import exported, judged

_LENGTHS = (128, 512, 1024)
_HEAD_DIM = 64
_BASELINE = ("attention", 23)


@pytest.mark.parametrize(("form", "opset"), [("decomposed", 18), ("blocked", 23)], ids=["decomposed-18", "blocked-23"])
@pytest.mark.parametrize("length", _LENGTHS, ids="length{}".format)
def test_form(sdpa: Sdpa, length: int, form: str, opset: int) -> None:
    """A form over the Attention node of opset 23: both right by the oracle first, inputs and outputs bound."""
    with (
        judged(exported(_HEAD_DIM, *_BASELINE), length) as baseline,
        judged(exported(_HEAD_DIM, form, opset), length) as candidate,
    ):
        result = sdpa.compare(baseline.call, candidate.call, name=f"{form}-{opset} over attention-23", seconds=2.0)
    assert result.ratio_low <= result.ratio <= result.ratio_high
