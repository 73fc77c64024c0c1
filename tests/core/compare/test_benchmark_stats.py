"""The figures of rounds are pytest-benchmark's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from sdpa_onnx.core.compare.benchmark_stats import round_stats
from sdpa_onnx.errors import CaseError


@given(st.lists(st.floats(min_value=1e-9, max_value=10.0), min_size=1, max_size=40))
def test_figures_are_those_of_pytest_benchmark(rounds: list[float]) -> None:
    """Every figure of its table, at every number of rounds, equal ones and outliers among them."""
    theirs = Stats()
    for seconds in rounds:
        theirs.update(seconds)
    ours, expected = round_stats(rounds), theirs.as_dict()
    assert list(ours) == list(expected)
    # Its versions before 5.3 took the first round beyond the fence.
    assert ours.pop("hd15iqr") <= expected.pop("hd15iqr")
    assert ours == expected


def test_no_round_is_refused() -> None:
    """An arm that was never measured has no figures."""
    with pytest.raises(CaseError, match=r"^There is no round to summarise\. Measure at least one\.$"):
        round_stats([])
