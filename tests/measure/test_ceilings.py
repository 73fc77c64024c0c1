"""Ceilings: memory is measured only where it is needed, because twice a large cache takes seconds to fill."""

import pytest

from sdpa_onnx.measure import ceilings
from sdpa_onnx.measure.ceilings import measure_ceilings


def test_memory_is_measured_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the bandwidth is not known; products and exponentials are measured in any case."""
    monkeypatch.setattr(ceilings, "measure_bandwidth", lambda **_: 5e9)
    without, with_memory = (measure_ceilings(threads=1, seconds=0.001, memory=memory) for memory in (False, True))
    assert (without.bytes_per_second, with_memory.bytes_per_second) == (-1.0, 5e9)
    assert without.gemm_flops_per_second > 0
    assert without.exps_per_second > 0
