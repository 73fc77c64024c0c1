"""Source and result run one after the other, so that only one session at a time holds a large model."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Session
from sdpa_onnx.runtimes.engine_runtime import EngineRuntime, EngineSession
from sdpa_onnx.runtimes.worker.engines.onnxruntime import OrtCpu
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.convert.paired_runs import PairedModels, RunEffort
from tests.workflows.convert_sources import with_projections


@dataclass(slots=True)
class _Counted:
    """A session of ONNX Runtime that counts itself while it is open."""

    real: Session
    open_now: list["_Counted"]

    def __enter__(self) -> Self:
        self.open_now.append(self)
        self.real.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open_now.remove(self)
        self.real.__exit__(kind, error, trace)

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        return self.real.run(inputs)

    def ran(self) -> RanReport:
        return self.real.ran()


class _Counting(EngineRuntime):
    """ONNX Runtime that counts how many sessions are open when one is loaded."""

    def __init__(self) -> None:
        super().__init__(OrtCpu())
        self.open_now: list[_Counted] = []
        self.others: list[int] = []

    def load(self, model: OnnxModel, options: LoadOptions) -> EngineSession:
        self.others.append(len(self.open_now))
        return _Counted(super().load(model, options), self.open_now)  # type: ignore[return-value]  # no bind


@pytest.mark.parametrize("is_large", [False, True])
def test_one_session_at_a_time(monkeypatch: pytest.MonkeyPatch, *, is_large: bool) -> None:
    """Source, result and tapped result each open after the last is closed; progress is reported after each group."""
    if is_large:
        monkeypatch.setattr("sdpa_onnx.graph.files.large._LARGE_BYTES", 0)
    runtime = _Counting()
    done = convert_model(load_model(with_projections()), Form.ORT_MHA)
    progress: list[tuple[int, int]] = []
    pairs = PairedModels(
        source=done.source, result=done.model, runtime=runtime, effort=RunEffort(count=2, spreads=(1.0,))
    )
    runs = list(pairs.runs(lambda done, of: progress.append((done, of))))
    assert runtime.others == [0, 0, 0]
    assert progress == ([(1, 1)] if is_large else [(1, 2), (2, 2)])
    assert [run.step.word == "hidden rows" for run in runs] == [False, False, True]
    for run in runs:
        assert not isinstance(run.result, str)
        exact = run.wide.values["y"]
        has_key = np.isfinite(exact)  # a row without one is NaN in the source
        np.testing.assert_allclose(run.result["y"][has_key], exact[has_key], rtol=0.0, atol=1e-5)
