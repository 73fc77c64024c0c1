"""Limits that are found by trial: the range and the step of each axis, and the sum of two."""

from collections.abc import Mapping

import pytest

from sdpa_onnx.core.attention.limit_search import search_limits

_START = {"x": 8, "y": 5}


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("x > 0", []),
        ("x <= 300", ["x <= 300"]),
        ("3 <= x <= 9", ["3 <= x <= 9"]),
        ("x % 4 == 0", ["x = 4*n"]),
        ("y % 5 == 0 and x >= 7", ["x >= 7", "y = 5*n"]),
        ("y % 49 == 5 and y <= 200", ["y <= 152, y = 49*n + 5"]),
        ("x + y <= 32", ["x + y <= 32"]),
        ("x <= 27 and y <= 25", ["x <= 27", "y <= 25"]),
        ("x == 8 and y <= 7", ["y <= 7"]),
        ("x in (8, 16) and y == 5", ["x <= 16, x = 8*n"]),
        ("x in (16, 8, 24) and y > 2", ["x <= 24, x = 8*n", "y >= 3"]),
    ],
)
def test_what_is_found(condition: str, found: list[str]) -> None:
    """The condition that the trial obeys, and nothing where an axis runs at one size only."""

    def runs(sizes: Mapping[str, int]) -> bool:
        return bool(eval(condition, dict(sizes)))  # noqa: S307  # of the list above

    limits = search_limits(["x", "y"], _START, runs=runs, longest=1024, source="tried")
    assert [str(limit) for limit in limits] == found
    assert {limit.source for limit in limits} <= {"tried"}


def test_few_runs() -> None:
    """An axis costs a handful of runs, so that a slow module can be searched."""
    runs: list[Mapping[str, int]] = []

    def counted(sizes: Mapping[str, int]) -> bool:
        runs.append(sizes)
        return sizes["x"] % 16 == 2

    search_limits(["x"], {"x": 50}, runs=counted, longest=1024, source="")
    assert len(runs) < 60
