"""Limits of axes: obeyed, tested at the edge, found where a module or a file refuses sizes, and no fault."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sdpa_onnx.core.records.records import ExportRecord, Outcome
from sdpa_onnx.errors import PlanError, SessionError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.model_facts import LIMITS_KEY, TRACED_KEY
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.export.export_target import export_and_prove
from sdpa_onnx.workflows.verify.dynamic_axes import AxesProof, prove_axes
from sdpa_onnx.workflows.verify.verify_file import verify_file
from tests.sweep.fakes import Faulty


class _Short(nn.Module):
    """Self-attention that adds 0.5 beyond 40 tokens: the trace keeps the branch of its sample."""

    def forward(self, x: Tensor) -> Tensor:
        mixed = nn.functional.scaled_dot_product_attention(x, 2 * x, x + 1)
        return mixed if x.shape[1] <= 40 else mixed + 0.5

    def sample(self) -> tuple[Tensor, ...]:
        return (torch.randn(2, 8, 4),)


class _Windows(nn.Module):
    """Attention of the windows of images, four to an image, each with its own position."""

    def forward(self, x: Tensor) -> Tensor:
        x = (x.unflatten(0, (-1, 4)) + torch.linspace(-1, 1, 4)[None, :, None, None]).flatten(0, 1)
        return nn.functional.scaled_dot_product_attention(x, 2 * x, x + 1)

    def sample(self) -> tuple[Tensor, ...]:
        return (torch.randn(8, 8, 4),)


class _Frames(nn.Module):
    """A memory of 16 n + 2 tokens; the last two have no position."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        place = torch.linspace(-1, 1, 16).repeat((memory.shape[1] - 2) // 16)
        keys = torch.cat([memory[:, :-2] + place[:, None], memory[:, -2:]], dim=1)
        return nn.functional.scaled_dot_product_attention(x, keys, keys + 1)

    def sample(self) -> tuple[Tensor, ...]:
        return (torch.randn(2, 8, 4), torch.randn(2, 50, 4))


class _Table(nn.Module):
    """Learned positions of at most 40 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 160).reshape(1, 40, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.table[:, : x.shape[1]]
        return nn.functional.scaled_dot_product_attention(x, 2 * x, x + 1)

    def sample(self) -> tuple[Tensor, ...]:
        return (torch.randn(2, 8, 4),)


class _Context(nn.Module):
    """Cached and new tokens fill a context of 32."""

    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        keys = torch.cat([past, x], dim=1)
        return nn.functional.scaled_dot_product_attention(x, keys, keys + 1, attn_mask=torch.zeros(1, 32))

    def sample(self) -> tuple[Tensor, ...]:
        return (torch.randn(2, 10, 4), torch.randn(2, 22, 4))


_MODULES = {
    "x_seq_len <= 40": _Short,
    "batch_size = 4*n": _Windows,
    "memory_seq_len = 16*n + 2": _Frames,
    "x_seq_len <= 40 by a table": _Table,
    "x_seq_len <= 32": _Context,
}
_EDGES = {
    "x_seq_len <= 40": (1, 40),
    "batch_size = 4*n": (4, 20),
    "memory_seq_len = 16*n + 2": (2, 194),
    "x_seq_len <= 40 by a table": (1, 40),
    "x_seq_len <= 32": (1, 32),
}


@functools.cache
def _exported(module: type[nn.Module]) -> OnnxModel:
    made = module().eval()
    return export_module(made, made.sample(), opset=18)  # type: ignore[operator]  # each has one


def _foreign(model: OnnxModel, *, source: object | None = None) -> OnnxModel:
    """The graph as another exporter writes it, without notes; with a module only if one is given."""
    found = load_model(onnx.load_from_string(model.to_bytes()))
    for key in (LIMITS_KEY, TRACED_KEY):
        found.ir.metadata_props.pop(key, None)
    return replace(found, source=source, bind=model.bind if source is not None else None)


def _proof(model: OnnxModel, traced: Mapping[str, int] | None = None, **options: object) -> AxesProof:
    chosen = {"runtime": get_runtime("ort-cpu"), "target": "t", **options}
    return prove_axes(model, traced=traced, **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "limit", [pytest.param(limit, marks=pytest.mark.slow if limit != "x_seq_len <= 32" else ()) for limit in _MODULES]
)
def test_stated_limits_are_obeyed_and_tested(limit: str) -> None:
    """Every size that is run is inside, the edges are run, and the export is right."""
    model = _exported(_MODULES[limit])
    proof = _proof(model, model.facts.traced)
    assert (proof.reason, proof.outcome) == ("", Outcome.OK)
    (found,) = proof.limits
    assert str(found) == limit.removesuffix(" by a table")
    assert found.tested == _EDGES[limit]


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit",
    [
        pytest.param("batch_size = 4*n", marks=pytest.mark.slow),
        "memory_seq_len = 16*n + 2",
        pytest.param("x_seq_len <= 40 by a table", marks=pytest.mark.slow),
    ],
)
def test_a_size_that_the_module_refuses_is_no_fault(limit: str) -> None:
    """Of a file without notes, the limits are found by running the module, and its error is their source."""
    model = _exported(_MODULES[limit])
    proof = _proof(_foreign(model, source=model.source), model.facts.traced)
    assert (proof.reason, proof.outcome, proof.refusals) == ("", Outcome.OK, ())
    (found,) = proof.limits
    assert str(found) == limit.removesuffix(" by a table")
    assert found.source.startswith("the module itself does not run at ")
    assert "RuntimeError at " in found.source
    assert found.tested


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit",
    [
        "batch_size = 4*n",
        pytest.param("memory_seq_len = 16*n + 2", marks=pytest.mark.slow),
        pytest.param("x_seq_len <= 40 by a table", marks=pytest.mark.slow),
    ],
)
def test_limits_of_a_file_without_its_module(limit: str) -> None:
    """What every runtime refuses is a limit of the file and no fixed axis."""
    model = _exported(_MODULES[limit])
    proof = _proof(_foreign(model), model.facts.traced)
    assert (proof.reason, proof.baked, proof.outcome) == ("", (), Outcome.OK)
    (found,) = proof.limits
    assert str(found) == limit.removesuffix(" by a table")
    assert found.source.startswith("the file does not run at ")


def test_a_branch_without_its_note_is_wrong() -> None:
    """The same file is judged wrong against its module beyond the branch, where nothing states the limit."""
    model = _exported(_Short)
    proof = _proof(_foreign(model, source=model.source), model.facts.traced)
    assert (proof.limits, proof.outcome) == ((), Outcome.DISAGREES)


def test_a_runtime_that_refuses_alone_is_at_fault() -> None:
    """Sizes that another runtime runs are no limit of the file."""

    def refuses(inputs: Mapping[str, NDArray[np.generic]], outputs: dict[str, NDArray[np.generic]]) -> object:
        if inputs["x"].shape[1] > 40:
            raise SessionError("It ran out of something.")
        return outputs

    model = _exported(_Windows)
    proof = _proof(_foreign(model), model.facts.traced, runtime=Faulty(fault=refuses))  # type: ignore[arg-type]
    assert proof.outcome is Outcome.DISAGREES


def test_a_file_that_refuses_what_its_module_runs_is_at_fault() -> None:
    """The table of the file is shorter than that of its module."""
    longer = _Table().eval()
    longer.table = nn.Parameter(torch.linspace(-1, 1, 160).reshape(1, 40, 4).repeat(1, 5, 1))
    model = _exported(_Table)
    proof = _proof(_foreign(model, source=longer), model.facts.traced)
    assert (proof.limits, proof.outcome) == ((), Outcome.DISAGREES)


def test_the_file_states_its_limits(tmp_path: Path) -> None:
    """They are in the record of the export and in the file, with what was tested; sizes outside are refused."""
    path = tmp_path / "short.onnx"
    result = export_and_prove(lambda: _exported(_Short), target="short", path=path)
    assert result.is_right
    (limit,) = result.record.limits
    assert limit.tested == (1, 40)
    model = load_model(path)
    assert model.facts.limits == (limit,)
    records = list(verify_file(model, ["ort-cpu"], CheckOptions(sizes={"x_seq_len": 40}), target="short.onnx"))
    assert {record.outcome for record in records} == {Outcome.OK}
    assert [record.limits for record in records if isinstance(record, ExportRecord)] == [(limit,)]
    with pytest.raises(PlanError) as caught:
        list(verify_file(model, ["ort-cpu"], CheckOptions(sizes={"x_seq_len": 41}), target="short.onnx"))
    assert str(caught.value).startswith(
        "x_seq_len 41 is outside the limits of the file: it holds for x_seq_len <= 40 only ("
    )


def test_sizes_that_the_module_refuses_are_not_requested() -> None:
    """One sentence with the module's own error, before anything is judged."""
    model = _exported(_Windows)
    check = CheckOptions(sizes={"batch_size": 6, "x_seq_len": 5})
    with pytest.raises(PlanError) as caught:
        list(verify_file(_foreign(model, source=model.source), ["ort-cpu"], check, target="windows.onnx"))
    assert str(caught.value).startswith("The module itself does not run at batch_size 6, x_seq_len 5: RuntimeError at ")


def test_the_judgement_at_usual_sizes_obeys_found_limits() -> None:
    """A file without notes is judged at sizes that its module accepts."""
    model = _exported(_Frames)
    foreign = _foreign(model, source=model.source)
    foreign.ir.meta[TRACED_KEY] = dict(model.facts.traced or {})
    foreign = replace(foreign, source=model.source)  # with facts that are read again
    records = list(verify_file(foreign, ["ort-cpu"], CheckOptions(sizes={}, spreads=(1.0,)), target="f.onnx"))
    assert records
    assert {record.outcome for record in records} == {Outcome.OK}


def test_an_empty_cache() -> None:
    """A cache without any token is a size like another one."""
    model = _exported(_Context)
    records = list(
        verify_file(model, ["ort-cpu"], CheckOptions(sizes={"x_seq_len": 32}, spreads=(1.0,)), target="context.onnx")
    )
    assert any(record.outcome is Outcome.OK for record in records)
    assert not [record.reason for record in records if record.outcome is Outcome.FAILED]


class _Cached(nn.Module):
    """Attention over a cache that may be empty, or that must not be."""

    def __init__(self, *, may_be_empty: bool = True) -> None:
        super().__init__()
        self.may_be_empty = may_be_empty

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        if not self.may_be_empty:
            cache = cache - cache.select(1, 0)[:, None]
        keys = torch.cat([cache, x], dim=1)
        return nn.functional.scaled_dot_product_attention(x, keys, keys + 1)

    def sample(self) -> tuple[Tensor, ...]:
        return (torch.randn(2, 6, 4), torch.randn(2, 10, 4))


def test_an_empty_cache_is_run() -> None:
    """Where the module runs with one, by default."""
    model = _exported(_Cached)
    proof = _proof(model, model.facts.traced, count=2)
    assert (proof.reason, proof.limits, proof.refusals, proof.sizes_tried) == ("", (), (), 3)
    assert {record.outcome for record in proof.records} == {Outcome.OK}


@pytest.mark.slow
def test_a_cache_that_must_not_be_empty() -> None:
    """A module that refuses an empty cache is no fault, and the record says what it raises."""
    module = _Cached(may_be_empty=False).eval()
    model = export_module(module, module.sample(), opset=18)
    proof = _proof(model, model.facts.traced, count=2)
    assert (proof.reason, proof.sizes_tried) == ("", 2)
    (refusal,) = proof.refusals
    assert refusal.startswith("The module itself does not run at batch_size 3, x_seq_len 2, cache_seq_len 0: ")
    alone = _proof(_foreign(model), model.facts.traced, count=2)
    assert (alone.reason, [str(limit) for limit in alone.limits]) == ("", ["cache_seq_len >= 1"])
