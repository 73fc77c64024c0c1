"""The parts of a command share one process per runtime, which starts early and ends with the command."""

import psutil
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, own_process
from sdpa_onnx.workflows.isolate.shared_workers import shared_workers
from tests.workflows.dying_child import kill

_PATIENCE_SECONDS = 60.0
_ORT = get_runtime("ort-cpu")


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_one_process_for_all_parts() -> None:
    """It starts with the block, serves every part, and ends with the block; outside, each part has its own."""
    before = _children()
    with shared_workers(["ort-cpu"], _PATIENCE_SECONDS):
        (started,) = _children() - before
        for _ in range(2):
            with own_process(_ORT, _PATIENCE_SECONDS) as part:
                assert isinstance(part, GuardedRuntime)
                part.start()
                assert _children() - before == {started}
                assert part.workers == 1
    assert _children() <= before
    with own_process(_ORT, _PATIENCE_SECONDS) as part:
        assert isinstance(part, GuardedRuntime)
        part.start()
        assert len(_children() - before) == 1
    assert _children() <= before


def test_next_part_after_a_crash() -> None:
    """A process that died is replaced by another one."""
    graph = build_attention_model(
        AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4), opset=23, dtype=Dtype.FLOAT32
    )
    with shared_workers(["ort-cpu"], _PATIENCE_SECONDS):
        with own_process(_ORT, _PATIENCE_SECONDS) as part:
            assert isinstance(part, GuardedRuntime)
            part.start()
            assert part._worker is not None
            kill(part._worker)
        with own_process(_ORT, _PATIENCE_SECONDS) as part, part.load(load_model(graph), LoadOptions()) as session:
            assert session.ran().node_counts
            assert isinstance(part, GuardedRuntime)
            assert part.workers == 2


@pytest.mark.parametrize(("names", "seconds"), [(["onnx-reference"], _PATIENCE_SECONDS), (["ort-cpu"], 30.0)])
def test_other_runtime_or_time_is_not_shared(names: list[str], seconds: float) -> None:
    """It gets a process of its own, which ends with its part."""
    with shared_workers(names, seconds):
        before = _children()
        with own_process(_ORT, _PATIENCE_SECONDS) as part:
            assert isinstance(part, GuardedRuntime)
            part.start()
            assert len(_children() - before) == 1
        assert _children() == before


@pytest.mark.parametrize("name", ["all", "torch"])
def test_no_process_is_started_early(name: str) -> None:
    """The name "all" is no runtime, and torch runs models in our own process."""
    before = _children()
    with shared_workers([name], _PATIENCE_SECONDS):
        assert _children() == before


def test_unknown_runtime() -> None:
    """Its process ends with the block, and whoever looks for it reports it."""
    before = _children()
    with shared_workers(["no-such"], _PATIENCE_SECONDS):
        pass
    assert _children() == before
