"""Judge every node of a model by itself, at several sizes; works for attentions that no site describes.

Judges attentions, sums and products by their proven bounds; a limit that is no proof makes no finding unless half of
the digits are lost. Does not shrink anything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.nodes_apart import has_subgraph
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.locate.bad_node import BadNode, BadNodeKind
from sdpa_onnx.workflows.locate.first_bad_node import first_bad_node
from sdpa_onnx.workflows.locate.node_steps import flat_model
from sdpa_onnx.workflows.locate.reference_nodes import node_label

__all__ = ["NodeSurvey", "SurveyInputs", "survey_nodes", "unread_attentions"]

# Attention operators of the ONNX domain and of onnxruntime's com.microsoft domain.
_ATTENTIONS = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyInputs:
    """One set of inputs.

    Args:
        label: The sizes as text, such as "batch 2, keys 13".
        step: "spread 1" or "given".
        sizes: Sizes of the axes.
        feeds: Arrays by graph input name.
    """

    label: str
    step: str
    sizes: dict[str, int]
    feeds: Feeds


@dataclass(slots=True, kw_only=True)
class NodeSurvey:
    """The result of judging every node.

    Args:
        bad: The first bad node or group, or None.
        bad_inputs: The inputs on which it is bad.
        right: Labels of the inputs on which every node that could be judged is right.
        not_judged: What could not be judged, and the reason, as text.
        is_finished: False if the time limit was reached before all inputs were tried.
    """

    bad: BadNode | None = None
    bad_inputs: SurveyInputs | None = None
    right: list[str] = field(default_factory=list)
    not_judged: tuple[str, ...] = ()
    is_finished: bool = True


def unread_attentions(model: OnnxModel) -> int:
    """Count the attention operators that no site describes, with those in functions and subgraphs."""
    nodes = [*model.ir.graph.all_nodes(), *(node for one in model.ir.functions.values() for node in one.all_nodes())]
    count = sum(node.op_type in _ATTENTIONS and node.domain in ("", CONTRIB_DOMAIN) for node in nodes)
    return max(0, count - len(model.sites))


def survey_nodes(
    model: OnnxModel,
    runtime: Runtime,
    input_sets: Iterable[SurveyInputs],
    *,
    threads: int,
    is_out_of_time: Callable[[], bool],
) -> NodeSurvey:
    """Judge every node by itself, and the whole model, on each set of inputs, up to the first bad node.

    Args:
        model: Any model.
        runtime: The runtime that runs it.
        input_sets: Sets of inputs.
        threads: Threads inside one operator.
        is_out_of_time: Called before each set but the first; True stops the survey.
    """
    survey = NodeSurvey()
    not_judged: dict[str, None] = {}
    for number, inputs in enumerate(input_sets):
        if number and is_out_of_time():
            survey.is_finished = False
            break
        try:
            bad = first_bad_node(model, runtime, inputs.feeds, threads=threads, findings_only=True)
        except SessionError as error:
            not_judged[f"{inputs.label}: {str(error).rstrip('.')}"] = None
            continue
        if bad.kind is not BadNodeKind.NOT_FOUND:
            survey.bad, survey.bad_inputs = bad, inputs
            break
        if bad.judged:
            survey.right.append(inputs.label)
        not_judged |= {f"'{one.node}' ({one.op_type}): {one.reason}": None for one in bad.not_judged}
    nested = (node for node in flat_model(model).ir.graph if has_subgraph(node))
    inside = (
        f"the nodes inside '{node_label(node)}' ({node.op_type}): only its outputs were compared" for node in nested
    )
    survey.not_judged = (*inside, *not_judged)
    return survey
