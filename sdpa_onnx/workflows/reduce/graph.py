"""Cut out of a model the nodes that a runtime refuses or crashes on.

Works on any graph, with or without attention. Does not judge numbers: a wrong attention is cut
out by its site.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.cut import cut_out
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Unsupported
from sdpa_onnx.workflows.check.case_trial import not_taken
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.locate.node_steps import NodeWalk, flat_model
from sdpa_onnx.workflows.locate.reference_nodes import NoReference, read_names
from sdpa_onnx.workflows.reduce.trials import KeptFailure, OutOfTimeError, ReductionTrials, message_shape

__all__ = ["ShrunkGraph", "part_of", "record_values", "run_failure", "shrink_graph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrunkGraph:
    """The smallest refused part so far.

    Args:
        model: The part, as a model.
        feeds: Its inputs.
        message: The runtime's error.
        is_finished: True if every part was tried, False if the time limit was reached first.
    """

    model: OnnxModel
    feeds: Feeds
    message: str
    is_finished: bool = True


def run_failure(model: OnnxModel, runtime: Runtime, feeds: Feeds, *, threads: int) -> tuple[KeptFailure, str] | None:
    """Run a model; return the failure and the runtime's error, or None if it runs."""
    support = runtime.supports(model)
    if isinstance(support, Unsupported):
        message = not_taken(runtime.name, support.reason)
        return KeptFailure(kind=Conformity.REFUSED, sign=message_shape(message)), message
    try:
        with runtime.load(model, LoadOptions(threads=threads)) as session:
            session.run(feeds)
    except ProcessDiedError as error:
        return KeptFailure(kind=Conformity.CRASHED), str(error)
    except SessionError as error:
        return KeptFailure(kind=Conformity.REFUSED, sign=message_shape(str(error))), str(error)
    return None


def record_values(model: OnnxModel, feeds: Feeds) -> Feeds:
    """The inputs and every value that ONNX's reference evaluator can compute from them, in the model's types."""
    flat = flat_model(model)
    no_reference = NoReference("only values that the evaluator can compute are recorded")
    walk = NodeWalk(flat, feeds, find_precision(flat.facts.attention_dtype), lambda *_: no_reference)
    for _ in walk.steps(keep=True):
        pass
    return {**walk.constants, **walk.values}


def shrink_graph(
    model: OnnxModel, feeds: Feeds, message: str, trials: ReductionTrials, *, runtime: Runtime, threads: int
) -> ShrunkGraph:
    """Find the fewest consecutive nodes that a runtime still refuses with the same error.

    Args:
        model: A model that the runtime refuses.
        feeds: Its inputs.
        message: The runtime's error.
        trials: Time limit, count and the failure that must stay the same.
        runtime: The runtime that refuses it.
        threads: Threads inside one operator.
    """
    values = record_values(model, feeds)
    best = ShrunkGraph(model=model, feeds=feeds, message=message)
    try:
        for part in _consecutive_parts(model):
            part_feeds = {name: values[name] for name in part.input_names if name in values}
            if len(part_feeds) < len(part.input_names):
                continue  # an input could not be computed
            trials.check_time()
            trials.count += 1
            stop = run_failure(part, runtime, part_feeds, threads=threads)
            if stop is not None and trials.failure.is_same(stop[0]):
                return ShrunkGraph(model=part, feeds=part_feeds, message=stop[1])
    except OutOfTimeError:
        return ShrunkGraph(model=best.model, feeds=best.feeds, message=best.message, is_finished=False)
    return best


def _consecutive_parts(model: OnnxModel) -> Iterator[OnnxModel]:
    """Sequences of consecutive nodes as models, shortest first: 1, 2, 4, ... nodes."""
    nodes = [node for node in model.ir.graph if node.op_type != "Constant"]
    constants = _constant_values(model.ir.graph)
    length = 1
    while length < len(nodes):
        for start in range(0, len(nodes) - length + 1, max(1, length // 2)):
            part = _part(model, nodes[start : start + length], constants)
            if part is not None:
                yield part
        length *= 2


def part_of(model: OnnxModel, nodes: Sequence[ir.Node]) -> OnnxModel | None:
    """Some nodes of a model as a model, with the constants they read; None if they cannot be cut out."""
    return _part(model, nodes, _constant_values(model.ir.graph))


def _part(model: OnnxModel, nodes: Sequence[ir.Node], constants: set[str]) -> OnnxModel | None:
    produced = {value.name for node in nodes for value in node.outputs}
    read = [name for node in nodes for name in read_names(node)]
    inputs = [name for name in dict.fromkeys(read) if name and name not in produced and name not in constants]
    used = set(read)
    outputs = [name for node in nodes for name in (value.name for value in node.outputs) if name and name not in used]
    try:
        return cut_out(model, inputs=inputs, outputs=outputs)
    except ModelError:
        return None


def _constant_values(graph: ir.Graph) -> set[str]:
    """Initializers and values computed only from them. A part contains them instead of reading them as inputs."""
    fixed = {name for name in graph.initializers if name not in {value.name for value in graph.inputs}}
    for node in graph:
        if all(value is None or value.name in fixed for value in node.inputs):
            fixed |= {value.name for value in node.outputs if value.name}
    return fixed
