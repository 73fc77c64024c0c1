"""Find the first node of a model that a runtime computes wrongly, by its local error.

The inputs of each node are the reference's values, so that only the error of that node is judged. All
nodes run in one session as disconnected subgraphs, so that the runtime cannot fuse them. Does not search
for groups of nodes that are wrong only together: `fused_span` does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.precision import Precision, find_precision
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.judge.node_rule import NodeAgreement, judge_node_output
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.nodes_apart import has_subgraph, nodes_apart
from sdpa_onnx.graph.site_outputs import outputs_of, scores_stages
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Unsupported
from sdpa_onnx.workflows.locate.bad_node import BadNode, BadNodeKind, NotJudged
from sdpa_onnx.workflows.locate.fused_span import FusedSpan, find_fused_span
from sdpa_onnx.workflows.locate.node_steps import NodeStep, NodeWalk, flat_model
from sdpa_onnx.workflows.locate.reference_nodes import NoReference, node_label

__all__ = ["first_bad_node"]

Array = NDArray[np.generic]

# Limit of the inputs, reference outputs and constants of the nodes that run in one session.
_CHUNK_BYTES = 256 * 2**20


def first_bad_node(
    model: OnnxModel,
    runtime: Runtime,
    feeds: Mapping[str, Array],
    *,
    threads: int = 1,
    search_fusions: bool = True,
    findings_only: bool = False,
) -> BadNode:
    """Find the first node, in topological order, whose own error exceeds what its arithmetic allows.

    Attention nodes are judged by their proven bound, others by `core.judge.node_rule`. Functions are
    inlined; a Loop, If or Scan is judged as one node. A node that the reference cannot evaluate
    is listed as not judged, and the nodes after it read the runtime's own output of it.

    Args:
        model: Any model, with or without attention.
        runtime: The runtime to judge.
        feeds: Arrays by input name, exactly as the runtime received them when it disagreed.
        threads: Threads inside one operator.
        search_fusions: If every node is right by itself, judge the model's outputs, and
            find the smallest group of nodes that is wrong.
        findings_only: Leave out what only exceeds a limit that is no proof, unless half of the digits are lost: for
            models that nothing else has found wrong.

    Raises:
        RuntimeUnavailableError: If the runtime is not available.
    """
    flat = flat_model(model)
    options = LoadOptions(threads=threads)
    report = _ran_report(flat, runtime, options)
    precision = find_precision(report.precision)
    is_bad = _is_finding if findings_only else _is_bad
    search = _Search(flat=flat, runtime=runtime, options=options, precision=precision, is_bad=is_bad)
    found = search.walk(feeds)
    if found is not None:
        return found
    right = BadNode(
        runtime=runtime.name,
        kind=BadNodeKind.NOT_FOUND,
        judged=search.judged,
        not_judged=tuple(search.not_judged),
    )
    if not search_fusions:
        return right
    walk = NodeWalk(flat, feeds, precision, search.stand_in)
    span = find_fused_span(flat, runtime, options, walk, is_bad=is_bad)
    if span is None:
        return right
    if isinstance(span, NoReference):
        return replace(right, note=span.reason)
    return _fused(right, span)


def _fused(right: BadNode, span: FusedSpan) -> BadNode:
    """Add the group of nodes that is wrong together to the result for single nodes."""
    return replace(
        right,
        kind=BadNodeKind.FUSED,
        node=span.nodes[0],
        op_type=span.op_type,
        value=span.value,
        verdict=span.agreement.verdict,
        error=span.agreement.error,
        allowed=span.agreement.allowed,
        evidence=span.agreement.evidence,
        group=span.nodes,
        fused=span.fused,
        by_optimisation=span.by_optimisation,
    )


def _ran_report(model: OnnxModel, runtime: Runtime, options: LoadOptions) -> RanReport:
    """The report of the runtime on the whole model; if it does not load, only its element type is known."""
    unknown = RanReport(providers={}, node_counts={}, precision=model.facts.attention_dtype.value)
    if isinstance(runtime.supports(model), Unsupported):
        return unknown
    try:
        with runtime.load(model, options) as session:
            return session.ran()
    except (SessionError, ModelError):
        return unknown


@dataclass(slots=True, kw_only=True)
class _Search:
    """The state of one search: the nodes judged so far."""

    flat: OnnxModel
    runtime: Runtime
    options: LoadOptions
    precision: Precision
    is_bad: Callable[[NodeAgreement], bool]
    judged: int = 0
    not_judged: list[NotJudged] = field(default_factory=list)

    def walk(self, feeds: Mapping[str, Array]) -> BadNode | None:
        """Judge one chunk of nodes after the other, up to the first that contains a bad node."""
        walk = NodeWalk(self.flat, feeds, self.precision, self.stand_in)
        for chunk in _chunks(walk):
            bad = self._judge_chunk(chunk, walk.constants)
            if bad:
                node, value, agreement = bad[0]
                return BadNode(
                    runtime=self.runtime.name,
                    kind=BadNodeKind.ALONE,
                    node=node_label(node),
                    op_type=_operator(node),
                    value=value,
                    verdict=agreement.verdict,
                    error=agreement.error,
                    allowed=agreement.allowed,
                    evidence=agreement.evidence,
                    also=tuple(dict.fromkeys(node_label(other) for other, _, _ in bad if other is not node)),
                    judged=self.judged,
                    not_judged=tuple(self.not_judged),
                )
        return None

    def stand_in(
        self, node: ir.Node, values: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> dict[str, Array] | NoReference:
        """The runtime's outputs of one node that the reference cannot evaluate."""
        apart = nodes_apart(self.flat.ir, [node], values, constants)
        outputs = self._outputs(apart.model, apart.feeds)
        return NoReference(outputs) if isinstance(outputs, str) else outputs

    def _judge_chunk(
        self, chunk: Sequence[NodeStep], constants: Mapping[str, Array]
    ) -> list[tuple[ir.Node, str, NodeAgreement]]:
        outputs = self._run([step for step in chunk if not step.reason], constants)
        bad: list[tuple[ir.Node, str, NodeAgreement]] = []
        for step in chunk:
            result = outputs.get(id(step), step.reason)
            if isinstance(result, str):
                skipped = NotJudged(node=node_label(step.node), op_type=_operator(step.node), reason=result)
                self.not_judged.append(skipped)
                continue
            self.judged += 1
            judgements = ((name, self._judge(step, name, result[name])) for name in step.truths)
            worst = [(name, one) for name, one in judgements if self.is_bad(one)]
            bad += [(step.node, name, agreement) for name, agreement in worst[:1]]
        return bad

    def _run(self, steps: Sequence[NodeStep], constants: Mapping[str, Array]) -> dict[int, dict[str, Array] | str]:
        """Outputs of each step; if the runtime refuses a set of nodes, try its halves, down to single nodes."""
        if not steps:
            return {}
        values = {name: array for step in steps for name, array in step.reads.items()}
        apart = nodes_apart(self.flat.ir, [step.node for step in steps], values, constants)
        outputs = self._outputs(apart.model, apart.feeds)
        if isinstance(outputs, str):
            if len(steps) == 1:
                return {id(steps[0]): outputs}
            middle = len(steps) // 2
            return self._run(steps[:middle], constants) | self._run(steps[middle:], constants)
        return {id(step): {name: outputs[name] for name in step.truths} for step in steps}

    def _outputs(self, model: OnnxModel, feeds: Mapping[str, Array]) -> dict[str, Array] | str:
        supported = self.runtime.supports(model)
        if isinstance(supported, Unsupported):
            return supported.reason
        try:
            with self.runtime.load(model, self.options) as session:
                return session.run(feeds)
        except (SessionError, ModelError) as error:
            return str(error).rstrip(".")

    def _judge(self, step: NodeStep, name: str, actual: Array) -> NodeAgreement:
        role = next((role for role, own in outputs_of(step.node).items() if own == name), None)
        if step.attention is None or role is None:
            return judge_node_output(step.truths[name], actual)
        spec, inputs = step.attention
        modes = scores_stages(step.node) or (QkOutputMode.SCORES,)
        judged = judge_attention_outputs(spec, inputs, {role: actual}, precision=self.precision, qk_modes=modes)
        agreement = judged[role]
        error, ratio = agreement.max_abs_error or 0.0, agreement.max_bound_ratio
        return NodeAgreement(
            verdict=agreement.verdict,
            error=error,
            allowed=error / ratio if ratio else 0.0,
            evidence=agreement.diagnosis,
            is_finding=not agreement.verdict.is_right,
        )


def _is_bad(agreement: NodeAgreement) -> bool:
    return not agreement.verdict.is_right


def _is_finding(agreement: NodeAgreement) -> bool:
    return agreement.is_finding


def _operator(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _chunks(walk: NodeWalk) -> Iterator[list[NodeStep]]:
    """Steps that run in one session: as many as fit into `_CHUNK_BYTES`; a node with a subgraph runs alone."""
    chunk: list[NodeStep] = []
    held = 0
    for step in walk.steps():
        alone = has_subgraph(step.node)
        if chunk and (alone or held + step.size_bytes > _CHUNK_BYTES):
            yield chunk
            chunk, held = [], 0
        chunk.append(step)
        held += step.size_bytes
        if alone:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk
