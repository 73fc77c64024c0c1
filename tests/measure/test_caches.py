"""The last-level cache from planted descriptions, and copies that exceed it."""

from pathlib import Path

import pytest

from sdpa_onnx.measure.caches import cold_copies, last_level_bytes

_MIB = 2**20


def _cache(folder: Path, number: int, kind: str, size: str) -> None:
    index = folder / f"index{number}"
    index.mkdir()
    (index / "type").write_text(f"{kind}\n")
    (index / "size").write_text(f"{size}\n")


def test_the_largest_that_holds_data(tmp_path: Path) -> None:
    """Instruction caches hold none; what cannot be read is left out."""
    for number, (kind, size) in enumerate(
        [("Data", "48K"), ("Instruction", "99M"), ("Unified", "2M"), ("Unified", "36864K"), ("Unified", "much")]
    ):
        _cache(tmp_path, number, kind, size)
    assert last_level_bytes(tmp_path) == 36 * _MIB


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    """A usual size is taken."""
    assert last_level_bytes(tmp_path / "none") == 32 * _MIB


@pytest.mark.parametrize(
    ("input_bytes", "free_kib", "copies"),
    [
        (4 * _MIB, 10**9, 16),  # 16 x 4 MiB = twice 32 MiB
        (5 * _MIB, 10**9, 13),
        (100 * _MIB, 10**9, 2),  # cold by itself, and marked so
        (100 * _MIB, 400 * 1024, 1),
        (1000, 10**9, 256),  # not more
        (4 * _MIB, 160 * 1024, 5),  # a quarter of 160 MiB for two arms
        (4 * _MIB, 1, 1),
    ],
)
def test_copies(tmp_path: Path, input_bytes: int, free_kib: int, copies: int) -> None:
    """Twice the cache together, within a share of the free memory."""
    memory = tmp_path / "meminfo"
    memory.write_text(f"MemTotal: 5 kB\nMemAvailable: {free_kib} kB\n")
    assert cold_copies(input_bytes, arms=2, cache_bytes=32 * _MIB, memory=memory) == copies


def test_copies_where_free_memory_is_unknown(tmp_path: Path) -> None:
    """As many as the cache asks for."""
    assert cold_copies(4 * _MIB, arms=2, cache_bytes=32 * _MIB, memory=tmp_path / "none") == 16
