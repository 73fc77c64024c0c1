"""From the product with the keys to the softmax: the scale, the softcap and the masks that stand between."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.element_types import DTYPES
from sdpa_onnx.graph.lift.factors import Factor, factor_of
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.paths import PathNode
from sdpa_onnx.graph.lift.refused import UnreadReason

__all__ = ["MaskTerm", "ScoreChain", "is_idle", "read_chain", "softmax_axis"]

# What is put in place of a hidden score, at most: exp(-745) is 0 in float64 already.
_HIDES = -1000.0
# Between these a cast rounds, and is read as the declared arithmetic of a runtime; to others it quantizes.


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTerm:
    """One thing that hides keys or is added to the scores.

    Args:
        node: Where it enters.
        value: Float, added to the scores; or a condition.
        rank: Of the scores there.
        hides: For a condition: whether True hides the key. None = the value is added.
        fill: For a condition: what stands in place of a hidden score.
        factor: What the sum was multiplied by afterwards.
    """

    node: ir.Node
    value: ir.Value
    rank: int
    hides: bool | None = None
    fill: float = -math.inf
    factor: float = 1.0


@dataclass(slots=True, kw_only=True)
class ScoreChain:
    """What stands between product and softmax, in the operator's terms.

    Args:
        rank: Of the scores, at first of the product and at last of the softmax.
        factor: Scale on QK^T so far.
        softcap: 0.0 = none.
        masks: In the order in which they enter.
        heads: Heads that a Reshape shows where the product has batch and heads in one axis.
        warnings: What the user should know.
    """

    rank: int
    factor: Factor = field(default_factory=Factor)
    softcap: float = 0.0
    masks: list[MaskTerm] = field(default_factory=list)
    heads: int | None = None
    warnings: list[str] = field(default_factory=list)


def read_chain(search: GraphFacts, way: Sequence[PathNode], rank: int) -> ScoreChain | UnreadReason:
    """Read the nodes of a way, the product's side first.

    Args:
        search: The graph.
        way: Nodes from the product to the softmax.
        rank: Of the product's output.
    """
    chain = ScoreChain(rank=rank)
    for step in way:
        refused = _read_step(search, chain, step)
        if refused is not None:
            return refused
    return chain


def is_idle(search: GraphFacts, step: PathNode) -> bool:
    """Whether a node passes its numbers on as they are, rounding aside: a cast, an identity, an idle dropout."""
    node = step.node
    if not is_standard(node) or step.position != 0:
        return False
    match node.op_type:
        case "Identity":
            return True
        case "Cast":
            given, target = node.inputs[0], node.attributes.get("to")
            from_float = given is not None and (given.dtype is None or given.dtype in DTYPES)
            return from_float and target is not None and target.as_int() in DTYPES
        case "Dropout":
            training = node.inputs[2] if len(node.inputs) > 2 else None
            return training is None or search.scalar_of(training) == 0
        case _:
            return False


def _read_step(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    if is_idle(search, step):
        return None
    node = step.node
    read = _READS.get(node.op_type)
    if read is not None:
        return read(search, chain, step)
    name = search.name_of(node)
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return UnreadReason(f"the scores are quantized: {node.op_type} at node {name}")
    return UnreadReason(f"{node.op_type} stands between the scores and the softmax: node {name}")


def _scaled(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    factor = factor_of(search, step.node, step.position)
    name = search.name_of(step.node)
    if step.node.op_type == "Div" and step.position == 1:
        return UnreadReason(f"something is divided by the scores: node {name}")
    if factor is None:
        return UnreadReason(f"the scale is not constant: node {name}")
    if chain.masks and factor.number <= 0:
        return UnreadReason(f"masked scores are multiplied by {factor.number:g}: node {name}")
    chain.factor *= factor
    chain.softcap *= abs(factor.number)
    chain.masks = [_times(term, factor.number) for term in chain.masks]
    return None


def _times(term: MaskTerm, number: float) -> MaskTerm:
    return MaskTerm(
        node=term.node,
        value=term.value,
        rank=term.rank,
        hides=term.hides,
        fill=term.fill * number,
        factor=term.factor * number,
    )


def _capped(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    if chain.masks or chain.softcap:
        return UnreadReason(
            f"Tanh stands after {'a mask' if chain.masks else 'another Tanh'}: node {search.name_of(step.node)}"
        )
    chain.softcap = 1.0
    return None


def _added(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    node = step.node
    other = node.inputs[1 - step.position]
    if other is None or (node.op_type == "Sub" and step.position == 1):
        return UnreadReason(f"the scores are subtracted: node {search.name_of(node)}")
    factor = -1.0 if node.op_type == "Sub" else 1.0
    chain.masks.append(MaskTerm(node=node, value=other, rank=chain.rank, factor=factor))
    return None


def _chosen(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    node = step.node
    fill = search.scalar_of(node.inputs[3 - step.position])
    condition = node.inputs[0]
    if fill is None or condition is None:
        return UnreadReason(f"what replaces hidden scores is not constant: node {search.name_of(node)}")
    if fill > _HIDES:
        return UnreadReason(f"scores are replaced by {fill:g}, which does not hide them: node {search.name_of(node)}")
    chain.masks.append(MaskTerm(node=node, value=condition, rank=chain.rank, hides=step.position == 2, fill=fill))
    return None


def _raised(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    """A lower limit that no visible score reaches."""
    node = step.node
    name = search.name_of(node)
    if node.op_type == "Clip" and len(node.inputs) > 2 and node.inputs[2] is not None:
        return UnreadReason(f"scores are limited from above: node {name}")
    limits = [value for position, value in enumerate(node.inputs) if position != step.position and value is not None]
    numbers = [search.scalar_of(value) for value in limits]
    if not numbers or any(number is None or number > _HIDES for number in numbers):
        return UnreadReason(f"scores are limited from below by what is not known to hide them: node {name}")
    chain.warnings.append(
        f"scores are lifted to {max(number for number in numbers if number is not None):g} at node {name}: "
        "a row without visible keys gives a mean there and 0 here"
    )
    return None


def _reshaped(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    node = step.node
    before, after = search.sizes_of(node.inputs[0]), search.sizes_of(node.outputs[0])
    name = search.name_of(node)
    ranks = (chain.rank, None if after is None else len(after))
    if after is None or ranks not in ((3, 4), (4, 3)):
        return UnreadReason(f"the scores are reshaped in a way that is not read: node {name}")
    if before is not None and before[-2:] != after[-2:] and _known(before, after):
        return UnreadReason(f"the scores are reshaped across queries and keys: node {name}")
    if len(after) == 4:
        if not isinstance(after[1], int):
            return UnreadReason(f"the number of heads is not static: node {name}")
        chain.heads = after[1]
    chain.rank = len(after)
    return None


def _known(before: Sequence[object], after: Sequence[object]) -> bool:
    """Whether two axes that differ are numbers on both sides, so that they really differ."""
    return any(
        isinstance(one, int) and isinstance(other, int) and one != other
        for one, other in zip(before[-2:], after[-2:], strict=True)
    )


def softmax_axis(search: GraphFacts, softmax: ir.Node, rank: int) -> int:
    """The axis, counted from the end: -1 is the last."""
    axis = softmax.attributes.get("axis")
    number = axis.as_int() if axis else (-1 if search.opset >= 13 else 1)
    return number if number < 0 else number - rank


_READS: Mapping[str, Callable[[GraphFacts, ScoreChain, PathNode], UnreadReason | None]] = {
    "Mul": _scaled,
    "Div": _scaled,
    "Tanh": _capped,
    "Add": _added,
    "Sub": _added,
    "Where": _chosen,
    "Max": _raised,
    "Clip": _raised,
    "Reshape": _reshaped,
    "Unsqueeze": _reshaped,
    "Squeeze": _reshaped,
}
