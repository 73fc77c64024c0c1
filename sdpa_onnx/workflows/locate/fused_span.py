"""Find the smallest span of consecutive nodes that a runtime computes wrongly only when they run together.

Called when each node is right by itself: the fault is then in a fusion or another graph
optimisation. The inputs of each span are the reference's values. Does not judge single nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.judge.node_rule import (
    NodeAgreement,
    NodeExpectation,
    NodeRule,
    format_of,
    judge_node_output,
)
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.cut import cut_out
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Unsupported
from sdpa_onnx.workflows.locate.node_steps import NodeWalk
from sdpa_onnx.workflows.locate.reference_nodes import NoReference, moved, node_label, widened

__all__ = ["FusedSpan", "find_fused_span"]

Array = NDArray[np.generic]
Evaluate = Callable[[ir.Node, Mapping[str, Array]], "dict[str, Array] | NoReference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedSpan:
    """A span of consecutive nodes that are wrong together.

    Args:
        nodes: Their names, in graph order.
        op_type: Their operators, comma-separated.
        value: The wrong output.
        agreement: The judgement of that output.
        fused: Operators that ran but are not in the model, with their node counts.
        by_optimisation: Whether it is right without graph optimisation; None = that could not be tried.
    """

    nodes: tuple[str, ...]
    op_type: str
    value: str
    agreement: NodeAgreement
    fused: Mapping[str, int]
    by_optimisation: bool | None


@dataclass(frozen=True, slots=True)
class _Finding:
    """The first bad output of a span."""

    value: str
    agreement: NodeAgreement
    fused: Mapping[str, int]


def find_fused_span(
    model: OnnxModel, runtime: Runtime, options: LoadOptions, walk: NodeWalk, *, is_bad: Callable[[NodeAgreement], bool]
) -> FusedSpan | NoReference | None:
    """Judge the whole model, then shrink the wrong span from its end and from its start.

    The end is found by bisection, which assumes that every prefix is wrong once it contains the
    fault. The result itself is judged, so that a wrong assumption makes the span longer, never right.
    Every value of the model stays in memory while this runs.

    Args:
        model: The flat model.
        runtime: The runtime to judge.
        options: Load options, with graph optimisation.
        walk: A new walk through the model.
        is_bad: Which judgements to report.

    Returns:
        None if the model's outputs are right; NoReference if they cannot be judged.
    """
    for step in walk.steps(keep=True):
        if step.reason:
            return NoReference(f"'{node_label(step.node)}' has no reference: {step.reason}")
    spans = _Spans(model=model, runtime=runtime, options=options, walk=walk, is_bad=is_bad)
    nodes = spans.nodes
    found = spans.judge(0, len(nodes))
    if found is None or isinstance(found, NoReference):
        return found
    end = _smallest(1, len(nodes), lambda end: spans.is_bad(0, end))
    start = end - _smallest(1, end, lambda length: spans.is_bad(end - length, end))
    found = spans.judge(start, end) or found
    if isinstance(found, NoReference):
        return found
    unoptimised = spans.judge(start, end, options=replace(options, optimise=False))
    group = nodes[start:end]
    return FusedSpan(
        nodes=tuple(node_label(node) for node in group),
        op_type=", ".join(dict.fromkeys(node.op_type for node in group)),
        value=found.value,
        agreement=found.agreement,
        fused=found.fused,
        by_optimisation=None if isinstance(unoptimised, NoReference) else unoptimised is None,
    )


def _smallest(low: int, high: int, is_bad: Callable[[int], bool]) -> int:
    """The smallest bad number by bisection; `high` is bad, and so is every number above a bad one."""
    while low < high:
        middle = (low + high) // 2
        if is_bad(middle):
            high = middle
        else:
            low = middle + 1
    return high


class _Spans:
    """Spans of nodes of one model, each judged with the reference's values as inputs."""

    def __init__(
        self,
        model: OnnxModel,
        runtime: Runtime,
        options: LoadOptions,
        walk: NodeWalk,
        is_bad: Callable[[NodeAgreement], bool],
    ) -> None:
        self._is_bad = is_bad
        self._model = model
        self._runtime = runtime
        self._options = options
        self._walk = walk
        self.nodes = [node for node in model.ir.graph if any(value.name in walk.values for value in node.outputs)]

    def is_bad(self, start: int, end: int) -> bool:
        return isinstance(self.judge(start, end), _Finding)

    def judge(self, start: int, end: int, options: LoadOptions | None = None) -> "_Finding | NoReference | None":
        """The first bad output of nodes start to end, or None if all are right."""
        group = self.nodes[start:end]
        inputs, outputs = self._inputs_and_outputs(group)
        feeds = {name: self._walk.values[name] for name in inputs}
        truths = self._truths(group, feeds, outputs)
        if isinstance(truths, NoReference):
            return truths
        try:
            part = cut_out(self._model, inputs=inputs, outputs=outputs)
            supported = self._runtime.supports(part)
            if isinstance(supported, Unsupported):
                return NoReference(supported.reason)
            with self._runtime.load(part, options or self._options) as session:
                actual = session.run(feeds)
                judged = {name: judge_node_output(truth, actual[name]) for name, truth in truths.items()}
                bad = [name for name, one in judged.items() if self._is_bad(one)]
                return _Finding(bad[0], judged[bad[0]], dict(session.ran().fused)) if bad else None
        except (SessionError, ModelError) as error:
            return NoReference(str(error).rstrip("."))

    def _inputs_and_outputs(self, group: Sequence[ir.Node]) -> tuple[list[str], list[str]]:
        """Names of the group's inputs and outputs; constants are not inputs."""
        inside = set(group)
        produced = [value for node in group for value in node.outputs if value.name in self._walk.values]
        names = {value.name for value in produced}
        read = dict.fromkeys(name for node in group for name in self._walk.read_names[node])
        inputs = [name for name in read if name not in names and name in self._walk.values]
        read_outside = {name for node in self.nodes if node not in inside for name in self._walk.read_names[node]}
        graph_outputs = {value.name for value in self._model.ir.graph.outputs}
        needed = read_outside | graph_outputs
        outputs = [value.name or "" for value in produced if value.name in needed]
        return inputs, outputs

    def _truths(
        self, group: Sequence[ir.Node], feeds: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, NodeExpectation] | NoReference:
        wide = {name: widened(array) for name, array in feeds.items()}
        exact = self._chain(group, wide, self._walk.exact)
        own = self._chain(group, feeds, self._walk.reference.own)
        perturbed = self._chain(group, moved(feeds, self._walk.unit), self._walk.exact)
        if isinstance(exact, NoReference):
            return exact
        truths: dict[str, NodeExpectation] = {}
        for name in outputs:
            dtype = self._walk.values[name].dtype
            is_float = format_of(dtype) is not None
            own_result = None if isinstance(own, NoReference) else own[name]
            changed = None if isinstance(perturbed, NoReference) else perturbed[name]
            truths[name] = NodeExpectation(
                rule=NodeRule.OTHER,
                exact=exact[name] if is_float or own_result is None else own_result,
                own=own_result,
                moved=None if changed is None else changed.astype(np.float64) if is_float else changed,
                bound=None,
                dtype=dtype,
            )
        return truths

    def _chain(
        self, group: Sequence[ir.Node], feeds: Mapping[str, Array], evaluate: Evaluate
    ) -> dict[str, Array] | NoReference:
        """Evaluate the group node by node; each node reads the outputs of the nodes before it."""
        values = dict(feeds)
        for node in group:
            names = self._walk.read_names[node]
            reads = {name: values[name] if name in values else self._walk.constants[name] for name in names}
            found = evaluate(node, reads)
            if isinstance(found, NoReference):
                return found
            values |= found
        return values
