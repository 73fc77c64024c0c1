"""Read a node of onnxruntime, run it and verify the attention at its own values: the check that it is read right."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
import pytest
from _pytest.mark import ParameterSet
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.one_node import FORMAL_INPUTS, OneNode, build_one_node_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime

Array = NDArray[np.generic]
Reader = Callable[[GraphFacts], Iterator[FoundAttention]]

CONTRIB_OPSET = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Tapped:
    """One attention that was read, with all arrays of a run.

    Args:
        found: The result of the reader.
        model: The graph with the nodes that the reader added.
        arrays: Arrays by value name: feeds, constants, outputs, and the attention's values.
        source: The original graph.
        feeds: Input arrays by name.
    """

    found: FoundAttention
    model: ir.Model
    arrays: Mapping[str, Array]
    source: OnnxModel
    feeds: Mapping[str, Array]

    def plain(self) -> dict[str, Array]:
        """Outputs of the original graph."""
        return run(self.source, self.feeds)

    @property
    def attention(self) -> GraphAttention:
        assert self.found.attention is not None, self.found.reason
        return self.found.attention

    @property
    def spec(self) -> AttentionSpec:
        return self.attention.spec

    @property
    def inputs(self) -> AttentionInputs:
        own = {field: self.arrays[name] for field, name in self.attention.site.inputs.items()}
        return AttentionInputs(**own)

    def judged(self, spec: AttentionSpec | None = None, **changed: Array | None) -> Agreement:
        """Compare the output with the oracle for the attention that was read, or for another spec or inputs."""
        inputs = replace(self.inputs, **changed)
        expected = expect(spec or self.spec, inputs, precision=find_precision(self.attention.dtype))
        return judge(expected, self.arrays[self.attention.output.name or ""])


def contrib_node(
    op_type: str,
    feeds: Mapping[str, Array],
    outputs: tuple[str, ...],
    attributes: Mapping[str, int | float | list[int]],
    extra: tuple[str, ...] = (),
    *,
    opset: int = CONTRIB_OPSET,
) -> OneNode:
    """A node of onnxruntime whose inputs have the names of its specification."""
    formal = (*FORMAL_INPUTS[(CONTRIB_DOMAIN, op_type)], *extra)
    return OneNode(
        op_type=op_type,
        domain=CONTRIB_DOMAIN,
        opset=opset,
        attributes=attributes,
        inputs=tuple(name if name in feeds else "" for name in formal),
        outputs=outputs,
    )


def read_one(read: Reader, model: ir.Model) -> tuple[FoundAttention, ir.Model]:
    """The result of a reader for a graph with one attention, and the graph after reading."""
    search = GraphFacts(model)
    (found,) = read(search)
    return found, search.model


def tap(read: Reader, model: OnnxModel, feeds: Mapping[str, Array]) -> Tapped:
    """Read a model's one attention and run the resulting graph on onnxruntime."""
    found, grown = read_one(read, model.ir)
    assert found.attention is not None, found.reason
    tapped = OnnxModel(ir=grown, sites=(found.attention.site,))
    arrays = {**tapped.constants(), **feeds, **run(tapped.tapped(), feeds)}
    return Tapped(found=found, model=grown, arrays=arrays, source=model, feeds=feeds)


def run(model: OnnxModel, feeds: Mapping[str, Array]) -> dict[str, Array]:
    with get_runtime("ort-cpu").load(model, LoadOptions()) as session:
        return session.run({name: array for name, array in feeds.items() if name in model.input_names})


def contrib(
    read: Reader,
    op_type: str,
    feeds: Mapping[str, Array],
    *,
    outputs: tuple[str, ...] = ("output",),
    constants: Mapping[str, Array] | None = None,
    dynamic: bool = True,
    **attributes: float | list[int],
) -> Tapped:
    """Build one node of onnxruntime, read it and run it."""
    held = constants or {}
    node = contrib_node(op_type, {**feeds, **held}, outputs, attributes)
    return tap(read, build_one_node_model(node, feeds, dynamic=dynamic, constants=held), feeds)


def refused(
    read: Reader,
    op_type: str,
    feeds: Mapping[str, Array],
    *,
    outputs: tuple[str, ...] = ("output",),
    extra: tuple[str, ...] = (),
    **attributes: float | list[int],
) -> str:
    """The reason why one node is not read; nothing runs, and the graph stays unchanged."""
    model = build_one_node_model(contrib_node(op_type, feeds, outputs, attributes, extra), feeds)
    found, grown = read_one(read, model.ir)
    assert found.attention is None
    assert [node.op_type for node in grown.graph] == [op_type]
    assert all(list(value.consumers()) == [grown.graph[0]] for value in grown.graph.inputs)
    return found.reason


def cases(names: Iterable[str], quick: Iterable[str]) -> list[ParameterSet]:
    """All cases; those that are not quick run with the slow tests."""
    kept = set(quick)
    return [pytest.param(name, marks=() if name in kept else pytest.mark.slow) for name in names]


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def flags(*shape: int, seed: int = 0) -> NDArray[np.int32]:
    """Random zeros and ones; the first key is always visible."""
    drawn = (np.random.default_rng([seed, *shape]).random(shape) < 0.5).astype(np.int32)
    drawn[..., 0] = 1
    return drawn


def whole(*numbers: int) -> NDArray[np.int32]:
    return np.array(numbers, np.int32)


def dims(value: ir.Value | None) -> list[int | None]:
    assert value is not None
    assert value.shape is not None
    return [size if isinstance(size, int) else None for size in value.shape]
