"""`compare` in Python takes models in memory, files and stored runs, and refuses what does not fit together."""

from dataclasses import replace
from pathlib import Path

import pytest

import sdpa_onnx as so
from sdpa_onnx.core.records.gate_records import Gate
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel

_SPEC = so.AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)
_RUN = Path(__file__).parents[1] / "compat" / "run"


def _model(spec: so.AttentionSpec = _SPEC) -> OnnxModel:
    return so.load(build_attention_model(spec, opset=23, dtype=so.Dtype.FLOAT32))


def test_models_in_memory() -> None:
    """The gates of the command, without a file."""
    rows = so.compare(_model(), _model(), skip=["time", "memory"], sizes={"q_seq_len": 5})
    assert isinstance(rows, so.RecordList)
    assert {row.gate for row in rows} == {Gate.AGREEMENT, Gate.GRAPH}
    assert not any(row.fails for row in rows)


def test_a_model_that_computes_something_else_fails() -> None:
    """A planted scale is a regression of the agreement gate."""
    wrong = _model(replace(_SPEC, scale=0.9))
    rows = so.compare(_model(), wrong, skip=["time", "memory", "graph"])
    assert any(row.fails for row in rows)


def test_stored_runs() -> None:
    """A run folder with itself is the same."""
    rows = so.compare(_RUN, str(_RUN))
    assert rows
    assert not any(row.fails for row in rows)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pinned": "torch"}, "pinned applies only to stored results. Leave out pinned."),
        ({"skip": ["speed"]}, "There is no gate 'speed'. Known: agreement, graph, memory, time."),
        ({"skip": [*Gate]}, "skip names every gate, so nothing is left to compare. Leave one out."),
        ({"runtimes": ["torch"]}, "Runtime 'torch' runs a PyTorch module and not the model. Choose another runtime."),
        ({"inputs": {}, "at": [{"q_seq_len": 3}]}, "inputs already fixes the sizes. Leave out at and sizes."),
    ],
)
def test_what_does_not_apply(options: dict[str, object], text: str) -> None:
    """One sentence, before anything runs."""
    with pytest.raises(PlanError) as refused:
        so.compare(_model(), _model(), **options)  # type: ignore[arg-type]
    assert str(refused.value) == text


def test_options_of_models_and_kinds() -> None:
    """Stored runs have no sizes, and a run is not compared with a model."""
    with pytest.raises(PlanError) as refused:
        so.compare(_RUN, _RUN, at=[{"q_seq_len": 3}])
    assert str(refused.value) == "at applies only to models. Leave out at."
    with pytest.raises(PlanError, match=r"^missing\.onnx does not exist\."):
        so.compare(_RUN, "missing.onnx")
