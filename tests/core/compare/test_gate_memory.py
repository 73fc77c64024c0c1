"""The gate on memory: planted changes, just inside and just outside."""

import pytest

from sdpa_onnx.core.records.gate_records import Gate, GateVerdict
from tests.core.gate_problems import stored, timed

_MIB = 2**20


@pytest.mark.parametrize(
    ("before", "now", "word"),
    [
        (100 * _MIB, 110 * _MIB, GateVerdict.SAME),
        (100 * _MIB, 110 * _MIB + 1, GateVerdict.REGRESSION),
        (1 * _MIB, 5 * _MIB, GateVerdict.SAME),
        (1 * _MIB, 5 * _MIB + 1, GateVerdict.REGRESSION),
        (110 * _MIB, 90 * _MIB, GateVerdict.BETTER),
        (0, 4 * _MIB + 1, GateVerdict.REGRESSION),
    ],
)
def test_memory(before: int, now: int, word: GateVerdict) -> None:
    """Worse by a share and by a size: either alone passes."""
    (row,) = stored([timed(peak_memory_bytes=before)], [timed(peak_memory_bytes=now)], Gate.MEMORY)
    assert (row.word, row.fails) == (word, word is GateVerdict.REGRESSION)
    assert (row.base_bytes, row.head_bytes) == (before, now)


def test_memory_that_was_not_measured_is_no_row() -> None:
    """A peak on one side only yields no gate record."""
    assert stored([timed(peak_memory_bytes=None)], [timed()], Gate.MEMORY) == []


def test_memory_evidence() -> None:
    """Both figures and what is allowed."""
    (row,) = stored([timed()], [timed(peak_memory_bytes=200 * _MIB)], Gate.MEMORY)
    assert row.evidence == (
        "The peak above the loaded state is 200.0 MiB, before 100.0 MiB. It grew by more than the allowed "
        "10 % and 4.0 MiB."
    )
