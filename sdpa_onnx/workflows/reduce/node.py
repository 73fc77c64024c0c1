"""Cut the first bad node, or group of nodes, out of a model whose attentions are all right by themselves.

Does not search for the node: `workflows.locate` does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.cut import cut_out
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime
from sdpa_onnx.workflows.check.case_trial import CaseTrial
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.locate.bad_node import BadNode, BadNodeKind
from sdpa_onnx.workflows.locate.first_bad_node import first_bad_node
from sdpa_onnx.workflows.locate.node_steps import NodeWalk, flat_model
from sdpa_onnx.workflows.locate.reference_nodes import NoReference, node_label
from sdpa_onnx.workflows.reduce.expected import BoundedOutput
from sdpa_onnx.workflows.reduce.find import case_of
from sdpa_onnx.workflows.reduce.graph import part_of
from sdpa_onnx.workflows.reduce.trials import KeptFailure

__all__ = ["BadPart", "attention_trial", "bad_failure", "cut_bad_node", "cut_found"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadPart:
    """A part of a model that is wrong by itself.

    Args:
        model: The part; the whole flattened model if no part can be cut out.
        feeds: Its inputs: the values of the reference.
        failure: WRONG or SUSPICIOUS, with the output.
        expected: The reference of the wrong output; its bound is finite only at the element with the largest error.
        message: The failure in one sentence or more.
        precision: The declared arithmetic.
    """

    model: OnnxModel
    feeds: Feeds
    failure: KeptFailure
    expected: dict[str, BoundedOutput]
    message: str
    precision: str


def bad_failure(bad: BadNode) -> KeptFailure:
    """The failure of a bad node, which must stay the same while the case shrinks."""
    return KeptFailure(kind=bad.verdict.conformity, output=bad.value)


def cut_bad_node(model: OnnxModel, runtime: Runtime, feeds: Feeds, *, threads: int) -> BadPart | None:
    """Find the first bad node and cut it out as a model; None if every node and the whole model are right.

    Args:
        model: Any model that runs.
        runtime: The runtime that runs it.
        feeds: Inputs of the whole model.
        threads: Threads inside one operator.
    """
    bad = first_bad_node(model, runtime, feeds, threads=threads, findings_only=True)
    if bad.kind is BadNodeKind.NOT_FOUND:
        return None
    return cut_found(model, runtime, feeds, bad, threads=threads)


def cut_found(model: OnnxModel, runtime: Runtime, feeds: Feeds, bad: BadNode, *, threads: int) -> BadPart:
    """Cut a bad node or group out as a model of its own.

    Args:
        model: The model that contains it.
        runtime: The runtime that runs it.
        feeds: Inputs of the whole model.
        bad: The bad node or group.
        threads: Threads inside one operator.
    """
    flat = flat_model(model)
    precision = _precision(flat, runtime, feeds, threads)
    values, exact = _reference_values(flat, feeds, precision, bad.value)
    part, part_feeds = _part(flat, bad, values) or _upstream_part(flat, bad, feeds)
    with runtime.load(part, LoadOptions(threads=threads)) as session:
        actual = session.run(part_feeds).get(bad.value)
    expected = {} if actual is None or exact is None else {bad.value: _bounded(actual, exact, bad)}
    return BadPart(
        model=part,
        feeds=part_feeds,
        failure=bad_failure(bad),
        expected=expected,
        message=bad.sentence(),
        precision=precision,
    )


def attention_trial(
    model: OnnxModel, runtime: Runtime, feeds: Feeds, bad: BadNode, *, seed: int, threads: int
) -> CaseTrial | None:
    """The bad node as an attention case, on the values of the reference; None if it is no supported attention."""
    if bad.kind is not BadNodeKind.ALONE:
        return None
    flat = flat_model(model)
    walk = NodeWalk(
        flat,
        feeds,
        find_precision(_precision(flat, runtime, feeds, threads)),
        lambda *_: NoReference("the values are already judged"),
    )
    for step in walk.steps():
        if node_label(step.node) != bad.node:
            continue
        if step.attention is None:
            return None
        spec, inputs = step.attention
        opset = min(flat.opset, 25)
        return CaseTrial(case=case_of(spec, inputs), inputs=inputs, seed=seed, threads=threads, opset=opset)
    return None


def _precision(flat: OnnxModel, runtime: Runtime, feeds: Feeds, threads: int) -> str:
    with runtime.load(flat, LoadOptions(threads=threads)) as session:
        session.run(feeds)
        return session.ran().precision


def _part(flat: OnnxModel, bad: BadNode, values: Feeds) -> tuple[OnnxModel, Feeds] | None:
    labels = bad.group or (bad.node,)
    part = part_of(flat, [node for node in flat.ir.graph if node_label(node) in labels])
    if part is None or any(name not in values for name in part.input_names) or bad.value not in part.output_names:
        return None
    return part, {name: values[name] for name in part.input_names}


def _upstream_part(flat: OnnxModel, bad: BadNode, feeds: Feeds) -> tuple[OnnxModel, Feeds]:
    """The subgraph from the model's inputs to the bad value; the whole model if that cannot be cut out."""
    inputs = list(flat.input_names)
    try:
        part = cut_out(flat, inputs=inputs, outputs=[bad.value])
    except ModelError:
        return flat, feeds
    return part, {name: feeds[name] for name in part.input_names if name in feeds}


def _reference_values(flat: OnnxModel, feeds: Feeds, precision: str, name: str) -> tuple[Feeds, Array | None]:
    """Every value that the reference computes, and the exact value of `name`."""
    walk = NodeWalk(flat, feeds, find_precision(precision), lambda *_: NoReference("the values are already judged"))
    exact: Array | None = None
    for step in walk.steps(keep=True):
        if name in step.truths:
            exact = step.truths[name].exact
    return {**walk.constants, **walk.values}, exact


def _bounded(actual: Array, exact: Array, bad: BadNode) -> BoundedOutput:
    """Expect the exact value; the bound is finite at one element only, because the limit differs per element."""
    oracle = exact.astype(np.float64)
    bound = np.full(oracle.shape, np.inf)
    if actual.shape != oracle.shape:
        return BoundedOutput(oracle=oracle, bound=np.zeros_like(oracle))
    error = np.abs(actual.astype(np.float64) - oracle)
    distance = np.abs(error - bad.error) if np.isfinite(error).all() else np.where(np.isfinite(error), np.inf, 0.0)
    bound.flat[int(distance.argmin())] = bad.allowed
    return BoundedOutput(oracle=oracle, bound=bound)
