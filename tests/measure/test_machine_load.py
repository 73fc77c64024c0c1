"""How busy the machine is, from planted /proc/stat files and clocks."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdpa_onnx.measure import machine_load
from sdpa_onnx.measure.machine_load import OthersLoad, busy_seconds, idle_cores, usable_cores

_TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores 0 and 2 of four are ours."""
    monkeypatch.setattr(machine_load, "usable_cores", lambda: {0, 2})


def _stat(folder: Path, lines: str) -> Path:
    path = folder / "stat"
    path.write_text(lines)
    return path


def test_busy_time_of_our_cores(tmp_path: Path) -> None:
    """User, nice, system, interrupts and steal of the usable cores; no idling, waiting, guests or other cores."""
    stat = _stat(
        tmp_path,
        "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 4 1000 2000 8 16 32 64 128\ncpu1 7 7 7 7 7 7 7 7\ncpu2 100 0 0 5\nctxt 5\n",
    )
    assert busy_seconds(stat) == (63 + 100) / _TICKS


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    """No file, or none of our cores in it: nothing is known."""
    assert busy_seconds(tmp_path / "none") is None
    assert busy_seconds(_stat(tmp_path, "cpu1 1 1 1 1\n")) is None


def _readings(*values: float) -> Iterator[float]:
    yield from values


@pytest.mark.parametrize(("busy", "ours", "share"), [(10.8, 1.5, 0.6), (10.2, 1.5, 0.0), (11.0, 1.0, 2.0)])
def test_what_others_took(busy: float, ours: float, share: float) -> None:
    """Busy time less our own over wall time; ticks that came late do not make it negative."""
    all_busy, all_ours, now = _readings(10.0, busy), _readings(1.0, ours), _readings(0.0, 0.5)
    load = OthersLoad(ours=lambda: next(all_ours), busy=lambda: next(all_busy), now=lambda: next(now))
    assert load.share() == pytest.approx(share)


def test_unknown_stays_unknown() -> None:
    """None is no zero."""
    assert OthersLoad(ours=lambda: 0.0, busy=lambda: None).share() is None
    assert idle_cores(0.0, busy=lambda: None) is None


def test_idle_cores() -> None:
    """Two cores, of which others used half of one for 0.3 s."""
    busy, now = _readings(5.0, 5.15), _readings(1.0, 1.3)
    found = idle_cores(busy=lambda: next(busy), sleep=lambda _: None, now=lambda: next(now))
    assert found == pytest.approx(1.5, abs=0.05)  # our own CPU time while we look


def test_this_machine() -> None:
    """The real files can be read."""
    assert usable_cores()
    assert busy_seconds() is None or (busy_seconds() or 0.0) > 0
