"""An argument of the wrong kind is one sentence, in every function of the Python API, before anything runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sdpa_onnx as so
from sdpa_onnx.errors import PlanError, SdpaOnnxError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel

# As a caller without type checks sees it.
_API: Any = so
_SPEC = so.AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)


def _model() -> OnnxModel:
    return so.load(build_attention_model(_SPEC, opset=23, dtype=so.Dtype.FLOAT32))


_BY_NAME = "Give one model, or several by name: {'a': 'a.onnx', 'b': 'b.onnx'}."
_RECORDS = "Give the records that verify, bench and the others return."


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: _API.run("smoke", skip="foo"), "skip is 'foo', not a list. Write skip=['foo']."),
        (lambda: _API.run("smoke", runtimes="torch"), "runtimes is 'torch', not a list. Write runtimes=['torch']."),
        (lambda: _API.run("smoke", allow_code="m"), "allow_code is 'm', not a list. Write allow_code=['m']."),
        (lambda: _API.run("smoke", budget=-1), "budget is -1 s. Give at least 1."),
        (lambda: _API.conformance(only="nosuch"), "only is 'nosuch', not a list. Write only=['nosuch']."),
        (lambda: _API.conformance(opsets=23), "opsets is 23, not a list. Write opsets=[23]."),
        (lambda: _API.saturation(head_dims=64), "head_dims is 64, not a list. Write head_dims=[64]."),
        (lambda: _API.verify(_model(), runtimes=None), "runtimes is None, not a list. Leave it out for the default."),
        (lambda: _API.compare(_model(), _model(), budget=-1), "budget is -1 s. Give at least 0.1."),
        (
            lambda: _API.compare(_model(), _model(), seconds="x"),
            "seconds is 'x', not a number of seconds. Give at least 0.1.",
        ),
        (lambda: _API.compare(_model(), _model(), skip="time"), "skip is 'time', not a list. Write skip=['time']."),
        (lambda: _API.bench(_model(), at={"x": 0}), "at is {'x': 0}, not a list. Write at=[{'x': 0}]."),
        (lambda: _API.bench(_model(), at=["x"]), "at has 'x', not sizes by axis. Write at=[{'AXIS': 128}]."),
        (lambda: _API.bench(_model(), forms="as-is"), "forms is 'as-is', not a list. Write forms=['as-is']."),
        (lambda: _API.bench(_model(), threads="2"), "threads is '2', not a list. Write threads=['2']."),
        (lambda: _API.bench(_model(), seconds=-1), "seconds is -1 s. Give at least 0.1."),
        (lambda: _API.bench([]), f"models is a list without names. {_BY_NAME}"),
        (lambda: _API.bench(None), f"models is None. {_BY_NAME}"),
        (lambda: _API.convert(_model(), "auto", at={"x": 1}), "at is {'x': 1}, not a list. Write at=[{'x': 1}]."),
        (lambda: _API.to_table([1]), f"A int is not a record. {_RECORDS}"),
        (lambda: _API.to_table(1), "records is 1, not a list. Write records=[1]."),
        (lambda: _API.to_csv([None], "x.csv"), f"A NoneType is not a record. {_RECORDS}"),
    ],
)
def test_wrong_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], text: str) -> None:
    """What was given and what to write, and no file or folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlanError) as refused:
        call()
    assert str(refused.value) == text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", [None, 3, ["a.onnx"]])
def test_no_model(model: object) -> None:
    """Every function that takes a model refuses what is none."""
    for call in (
        _API.load,
        _API.verify,
        _API.inspect,
        _API.find_attention,
        _API.convert,
        lambda one: _API.bench({"a": one}),
    ):
        with pytest.raises(SdpaOnnxError) as refused:
            call(model)
        assert str(refused.value) == f"A {type(model).__name__} is not an ONNX model. Give a path or a model."


def test_iterators_are_lists() -> None:
    """A generator of records is taken as before."""
    assert len(_API.to_table(iter(_API.find_attention(_model())))) == 1
