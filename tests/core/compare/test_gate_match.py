"""Matching of records: by what they are, renamed ones where that is plain."""

import numpy as np

from sdpa_onnx.core.compare.gate_match import match_records
from tests.core.gate_problems import TORCH, agreed, timed


def shape(base: list[object], head: list[object]) -> list[tuple[int, int]]:
    """How many records of each side each match has."""
    found = match_records(base, head)  # type: ignore[type-var]  # records of one kind
    return [(len(match.base), len(match.head)) for match in found]


def test_order_does_not_count() -> None:
    """The same records in any order are the same pairs."""
    records = [agreed(case=f"case{number}", inputs=f"spread {number % 3}") for number in range(30)]
    mixed = [records[int(index)] for index in np.random.default_rng(0).permutation(30)]
    assert all(match.pair is not None and match.pair[0] == match.pair[1] for match in match_records(records, mixed))


def test_an_arm_by_its_name_first() -> None:
    """Two arms that differ in name only keep their own partners."""
    base = [timed(arm="a", ratio=1.0), timed(arm="b", ratio=2.0)]
    pairs = [match.pair for match in match_records(base, base[::-1])]
    assert [pair is not None and pair[0].ratio == pair[1].ratio for pair in pairs] == [True, True]


def test_a_renamed_arm() -> None:
    """One arm with another name, and nothing else like it, is the same."""
    assert shape([timed(arm="old name"), TORCH], [timed(arm="new name"), TORCH]) == [(1, 1), (1, 1)]


def test_two_renamed_arms_are_not_guessed() -> None:
    """Two candidates are no match."""
    assert shape([timed(arm="a"), timed(arm="b")], [timed(arm="c"), timed(arm="d")]) == [(0, 1)] * 2 + [(1, 0)] * 2


def test_another_opset_and_other_threads() -> None:
    """The same arm at another opset, or with other threads, is matched; the gates evaluate the difference."""
    assert shape([timed()], [timed(opset=24, arm="ort-cpu attention 24")]) == [(1, 1)]
    assert shape([timed()], [timed(threads=2)]) == [(1, 1)]


def test_other_options_dtypes_and_targets_are_others() -> None:
    """These are never the same thing."""
    for changes in ({"options": {"a": "1"}}, {"dtype": "float16"}, {"target": "x"}, {"case": "x"}, {"cache": "cold"}):
        assert shape([timed()], [timed(**changes)]) == [(0, 1), (1, 0)]


def test_duplicates() -> None:
    """As often: in pairs. Otherwise: together, for a gate to say so."""
    assert shape([timed()] * 2, [timed()] * 2) == [(1, 1), (1, 1)]
    assert shape([timed()] * 2, [timed()] * 3) == [(2, 3)]


def test_nothing() -> None:
    """No records, no matches; records on one side only are returned."""
    assert shape([], []) == []
    assert shape([], [agreed()]) == [(0, 1)]
    assert shape([agreed()], []) == [(1, 0)]
