"""Look at every node of a model by itself, at several sizes: what needs no attention that can be read.

Judges by the rule for nodes, attentions by their proven bound. Makes nothing smaller.
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

__all__ = ["NodeSurvey", "SurveyInputs", "look_at_nodes", "unread_attentions"]

# What stands for attention in a file, in the standard or in onnxruntime's own domain.
_ATTENTIONS = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyInputs:
    """One set of inputs.

    Args:
        words: Where, such as "batch 2, keys 13".
        step: "spread 1" or "given".
        sizes: Of the axes.
        feeds: By graph input name.
    """

    words: str
    step: str
    sizes: dict[str, int]
    feeds: Feeds


@dataclass(slots=True, kw_only=True)
class NodeSurvey:
    """What was seen.

    Args:
        bad: The first bad node or group, or None.
        place: Where it is bad.
        right: Places at which every node that could be judged is right.
        not_judged: What could not be judged, and why, in words.
        is_finished: False if the time was up before every place was looked at.
    """

    bad: BadNode | None = None
    place: SurveyInputs | None = None
    right: list[str] = field(default_factory=list)
    not_judged: tuple[str, ...] = ()
    is_finished: bool = True


def unread_attentions(model: OnnxModel) -> int:
    """How many attention operators, those in functions and subgraphs included, no site describes."""
    nodes = [*model.ir.graph.all_nodes(), *(node for one in model.ir.functions.values() for node in one.all_nodes())]
    count = sum(node.op_type in _ATTENTIONS and node.domain in ("", CONTRIB_DOMAIN) for node in nodes)
    return max(0, count - len(model.sites))


def look_at_nodes(
    model: OnnxModel, runtime: Runtime, places: Iterable[SurveyInputs], *, threads: int, is_over: Callable[[], bool]
) -> NodeSurvey:
    """Judge every node by itself, and the whole, place after place, up to the first bad one.

    Args:
        model: Any model.
        runtime: Where it runs.
        places: Sets of inputs.
        threads: Threads inside one operator.
        is_over: Asked before each place but the first; True ends it.
    """
    looked = NodeSurvey()
    not_judged: dict[str, None] = {}
    for number, place in enumerate(places):
        if number and is_over():
            looked.is_finished = False
            break
        try:
            bad = first_bad_node(model, runtime, place.feeds, threads=threads)
        except SessionError as error:
            not_judged[f"{place.words}: {str(error).rstrip('.')}"] = None
            continue
        if bad.kind is not BadNodeKind.NOT_FOUND:
            looked.bad, looked.place = bad, place
            break
        if bad.judged:
            looked.right.append(place.words)
        not_judged |= {f"'{one.node}' ({one.op_type}): {one.reason}": None for one in bad.not_judged}
    nested = (node for node in flat_model(model).ir.graph if has_subgraph(node))
    inside = (f"what stands inside '{node_label(node)}' ({node.op_type}): only its results were" for node in nested)
    looked.not_judged = (*inside, *not_judged)
    return looked
