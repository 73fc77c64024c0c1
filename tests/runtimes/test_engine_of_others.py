"""An engine in a file of somebody else, which knows nothing of ours: judged, refused and timed."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdpa_onnx.errors import SessionError
from sdpa_onnx.runtimes.arm_job import ArmJob
from sdpa_onnx.runtimes.array_files import write_arrays
from sdpa_onnx.runtimes.base import LoadOptions, Unsupported
from sdpa_onnx.runtimes.engine import engine_place
from sdpa_onnx.runtimes.engine_runtime import EngineRuntime, graph_names
from sdpa_onnx.runtimes.timing_worker import TimingWorker
from sdpa_onnx.runtimes.workers import WorkerFailedError
from tests.runtimes.models import LIMITS, PROBLEMS, decomposed, draw, formula, model

PLAIN = PROBLEMS["plain"]
TEXT = """
import numpy as np


class RefusalError(Exception):
    pass


class Loaded:
    def __init__(self, job):
        self.outputs = job["outputs"]

    def run(self, feeds):
        query, key, value = (feeds[name][0].astype(np.float64) for name in "QKV")
        if query.shape[2] == 1:
            raise RefusalError("takes no single query")
        scores = query @ key.swapaxes(2, 3) / np.sqrt(query.shape[3])
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        found = weights / weights.sum(axis=3, keepdims=True) @ value
        return {self.outputs[0]: found.astype(np.float32)}

    def close(self):
        pass


class Mine:
    name = "mine"

    def version(self):
        return "mine 1.0"

    def refuses(self, nodes):
        return "has no Attention" if any(node["op_type"] == "Attention" for node in nodes) else None

    def open(self, job):
        return Loaded(job)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    """An engine of that file."""
    path = tmp_path / "mine.py"
    path.write_text(TEXT)
    specification = importlib.util.spec_from_file_location("mine", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.Mine()


@pytest.fixture
def found(engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Its place, as a worker gets it."""
    monkeypatch.setattr("sdpa_onnx.runtimes.engine.inspect.getfile", lambda _: str(tmp_path / "mine.py"))
    place = engine_place(engine)
    assert place == f"{tmp_path.resolve() / 'mine.py'}:Mine"
    return place


def test_judged(engine: Any) -> None:
    """Its numbers arrive; what it refuses, before loading or in a run, has its name."""
    runtime = EngineRuntime(engine)
    feeds = draw(PLAIN)
    with runtime.load(decomposed(), LoadOptions()) as session:
        assert np.abs(session.run(feeds)["Y"] - formula(PLAIN, feeds)).max() < LIMITS["float32"]
        assert session.ran().node_counts["Softmax"] == 1
        with pytest.raises(SessionError) as caught:
            session.run({**feeds, "Q": feeds["Q"][:, :, :1]})
    assert str(caught.value) == "mine takes no single query."
    assert runtime.supports(model(PLAIN)) == Unsupported("mine has no Attention")


def test_timed(found: str, tmp_path: Path) -> None:
    """A worker opens the file itself, and words the same refusal the same."""
    loaded, feeds = decomposed(), draw(PLAIN)
    loaded.save(tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs", feeds)
    write_arrays(tmp_path / "single", {**feeds, "Q": feeds["Q"][:, :, :1]})
    with TimingWorker(found, python=None, threads=1, patience_seconds=60.0) as worker:
        for inputs, refused in (("inputs", ""), ("single", "mine takes no single query.")):
            job = ArmJob(
                runtime="mine",
                engine=found,
                model=tmp_path / "model.onnx",
                inputs=tmp_path / inputs,
                names=graph_names(loaded),
            )
            if not refused:
                assert worker.load(job).version == "mine 1.0"
                assert (worker.visit(3).wall_ns > 0).all()
                continue
            with pytest.raises(WorkerFailedError) as caught:
                worker.load(job)
            assert str(caught.value) == refused
