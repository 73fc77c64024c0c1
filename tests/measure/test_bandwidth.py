"""The bandwidth of reading memory: the fastest reader counts, and real ones read all that they should."""

from collections.abc import Callable, Iterator

import pytest

from sdpa_onnx.measure import bandwidth
from sdpa_onnx.measure.bandwidth import measure_bandwidth


class _Clock:
    """Time that passes only where a reader lets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_the_fastest_reader_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two readers that take 2 and 4 seconds for 8 bytes; the first call of each is slow and does not count."""
    clock = _Clock()
    calls: list[float] = []

    def reader(seconds: float) -> Callable[[], None]:
        def call() -> None:
            calls.append(seconds)
            clock.now += seconds if calls.count(seconds) > 1 else 10 * seconds

        return call

    def readers(*_: int) -> Iterator[Callable[[], object]]:
        yield from (reader(4.0), reader(2.0))

    monkeypatch.setattr(bandwidth, "time", clock)
    monkeypatch.setattr(bandwidth, "_readers", readers)
    assert measure_bandwidth(size_bytes=8, threads=1, seconds=10.0) == 4.0


def test_a_call_longer_than_its_time_is_still_made_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading twice a large cache takes longer than the time for it."""
    clock, calls = _Clock(), list[float]()

    def call() -> None:
        calls.append(clock.now)
        clock.now += 5.0

    monkeypatch.setattr(bandwidth, "time", clock)
    monkeypatch.setattr(bandwidth, "_readers", lambda *_: iter([call]))
    assert measure_bandwidth(size_bytes=10, threads=1, seconds=0.2) == 2.0
    assert calls == [0.0, 5.0, 10.0]


def test_the_real_readers_run() -> None:
    """Each of them, at a size of a moment."""
    assert measure_bandwidth(size_bytes=1 << 16, threads=1, seconds=0.002) > 0
    assert measure_bandwidth(size_bytes=1 << 16, threads=2, seconds=0.002) > 0
