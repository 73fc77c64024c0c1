"""Inspecting a file loads each graph once, whatever the number of sizes, and reads it once."""

from collections import Counter

import onnx
import pytest

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.runtimes.worker.engines.onnxruntime import OrtArm
from sdpa_onnx.workflows.check import lifted_model
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.check.kept_sessions import kept_sessions
from sdpa_onnx.workflows.verify.axis_links import size_sets
from sdpa_onnx.workflows.verify.inspect_axes import try_axes
from sdpa_onnx.workflows.verify.inspect_file import inspect_judgeable, what_runs
from tests.graph.models import fixed_batch, fixed_length, fixed_mask


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The sessions of ONNX Runtime that are opened."""
    counts: Counter[str] = Counter()
    real = OrtArm._open

    def counted(self: OrtArm, path: object) -> object:
        counts["opened"] += 1
        return real(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(OrtArm, "_open", counted)
    return counts


def _inspect(model: OnnxModel) -> None:
    records, able = inspect_judgeable(model, target="t")
    trial = try_axes(able, records, "ort-cpu", target="t")
    assert trial.records[0].sizes_tried
    what_runs(model, "ort-cpu")


@pytest.mark.parametrize("case", ["bare", "length", "mask"])
def test_each_graph_is_loaded_once(case: str, bare_model: OnnxModel, opened: Counter[str]) -> None:
    """The file, and the file that is judged without and with taps, at several sizes."""
    made = {"bare": bare_model, "length": fixed_length(), "mask": fixed_mask(size=0)}[case]
    _inspect(load_model(made))
    assert opened["opened"] <= 3


def test_the_graph_is_read_once(bare_model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown and what is judged are one reading, where no operator of onnxruntime has other outputs."""
    counts: Counter[str] = Counter()
    real = lifted_model.find_attentions

    def counted(*given: object, **options: object) -> object:
        counts["read"] += 1
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(lifted_model, "find_attentions", counted)
    inspect_judgeable(load_model(onnx.load_from_string(bare_model.to_bytes())), target="t")
    inspect_judgeable(load_model(fixed_batch()), target="t")
    assert counts["read"] <= 3


def test_sessions_are_shared_by_graph_and_options(bare_model: OnnxModel) -> None:
    """A session given out again is the same one, and another option opens another; the end of a block closes none."""
    feeds = draw_feeds(bare_model, size_sets(bare_model.facts.axes, count=1)[0], spread=1.0, seed=0)
    with kept_sessions(get_runtime("ort-cpu")) as kept:
        with kept.load(bare_model, LoadOptions()) as first:
            report = first.ran()
        plain = LoadOptions(optimise=False)
        with kept.load(bare_model, LoadOptions()) as second, kept.load(bare_model, plain) as other:
            assert second.ran() is report
            assert other.ran() is not report
            assert second.run(feeds).keys() == other.run(feeds).keys()
