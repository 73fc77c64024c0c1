"""Read the nodes from the product of query and key to the softmax: scale, softcap and masks.

Does not convert the masks; `masks_read` does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.element_types import DTYPES
from sdpa_onnx.graph.lift.factors import Factor, HeadScale, factor_of, head_scale_of
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.paths import PathNode
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.lift.softmax.quantised_chain import QUANTISING, QuantisedChain
from sdpa_onnx.graph.lift.softmax.sinks import SINK_NOTE, Sink, subtracts_row_max

__all__ = ["MaskTerm", "ScoreChain", "passes_through", "read_chain", "softmax_axis"]

# A fill up to this number hides a score: exp(-745) is already 0 in float64.
_HIDES = -1000.0
# Nodes that change scores in another way than `ScoreQuantisers` has stages for.
_NOT_WITH_PAIRS = frozenset({"Tanh", "Max", "Clip", "Concat", "Pad"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTerm:
    """One mask or bias applied to the scores.

    Args:
        node: The node that applies it.
        value: A float value added to the scores, or a boolean condition.
        rank: Rank of the scores at that node.
        hides: For a condition: whether True hides the key. None = the value is added.
        fill: For a condition: the number that replaces a hidden score.
        factor: Product of the constants by which later nodes multiply the masked scores.
    """

    node: ir.Node
    value: ir.Value
    rank: int
    hides: bool | None = None
    fill: float = -math.inf
    factor: float = 1.0


@dataclass(slots=True, kw_only=True)
class ScoreChain:
    """The nodes between product and softmax, as parameters of the operator.

    Args:
        rank: Rank of the scores after the nodes read so far.
        factor: Scale on QK^T so far.
        softcap: 0.0 = none.
        head_scales: Constants of one value a head, in the order in which they are applied.
        masks: In the order in which they are applied.
        heads: Head count from a Reshape, where the product has batch and heads in one axis.
        is_scaled: Whether a factor was read.
        pairs: The nodes that round the scores to integers and back.
        sink: A column that the softmax has besides those of the keys; nothing but rounding follows it.
        warnings: Warnings for the user.
    """

    rank: int
    factor: Factor = field(default_factory=Factor)
    softcap: float = 0.0
    head_scales: list[HeadScale] = field(default_factory=list)
    masks: list[MaskTerm] = field(default_factory=list)
    heads: int | None = None
    is_scaled: bool = False
    pairs: QuantisedChain = field(default_factory=QuantisedChain)
    sink: Sink | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def last_mask(self) -> str:
        """The name of the mask that is applied last; "" without one."""
        return (self.masks[-1].value.name or "") if self.masks else ""

    @property
    def added(self) -> ir.Value | None:
        """The only mask, if it is added to the scores as it is and they have no sink."""
        (only,) = self.masks if len(self.masks) == 1 and self.sink is None else (None,)
        return only.value if only is not None and only.hides is None and only.factor == 1.0 else None


def read_chain(search: GraphFacts, path: Sequence[PathNode], rank: int) -> ScoreChain | UnreadReason:
    """Read the nodes of a path.

    Args:
        search: The graph.
        path: Nodes from the product to the softmax, in order.
        rank: Rank of the product's output.
    """
    chain = ScoreChain(rank=rank)
    is_quantised = any(step.node.op_type in QUANTISING for step in path)
    for step in path:
        name = f"{step.node.op_type} at node {search.name_of(step.node)}"
        if is_quantised and step.node.op_type in _NOT_WITH_PAIRS:
            return UnreadReason(f"the scores are quantized, and {name} is not read together with that")
        refused = _read_step(search, chain, step)
        if refused is not None:
            return refused
    return _unsaturated(search, chain) or chain


def _unsaturated(search: GraphFacts, chain: ScoreChain) -> UnreadReason | None:
    """Why pairs cannot be read: the fill of a hidden score has to become the lowest integer, as -inf does."""
    if chain.pairs.open is not None:
        return UnreadReason("the scores are quantized and not dequantized before the softmax")
    masked = chain.pairs.found.get("masked", [])
    for term in chain.masks if masked else []:
        if term.hides is not None and not masked[0].saturates_below(term.fill):
            name = search.name_of(term.node)
            return UnreadReason(f"the scores are quantized, and the fill {term.fill:g} is not their least: node {name}")
    return None


def passes_through(search: GraphFacts, step: PathNode) -> bool:
    """Whether a node passes its input on unchanged except for rounding: a float Cast, Identity, or inactive Dropout.

    A Cast between float types rounds, which the error bound of the runtime's arithmetic covers; a Cast to any other
    type quantizes.
    """
    node = step.node
    if not is_standard(node) or step.position != 0:
        return False
    match node.op_type:
        case "Identity":
            return True
        case "Cast":
            source, target = node.inputs[0], node.attributes.get("to")
            from_float = source is not None and (source.dtype is None or source.dtype in DTYPES)
            return from_float and target is not None and target.as_int() in DTYPES
        case "Dropout":
            training = node.inputs[2] if len(node.inputs) > 2 else None
            return training is None or search.scalar_of(training) == 0
        case _:
            return False


def _read_step(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    if passes_through(search, step) or subtracts_row_max(search, step):
        return None
    node = step.node
    if chain.sink is not None:
        return UnreadReason(f"a {node.op_type} follows the sink of the softmax: node {search.name_of(node)}")
    read = _READS.get(node.op_type)
    if read is not None:
        return read(search, chain, step)
    name = search.name_of(node)
    if node.op_type in QUANTISING:
        return chain.pairs.read(search, node, "masked" if chain.masks else "scaled" if chain.is_scaled else "product")
    return UnreadReason(f"there is a {node.op_type} between the scores and the softmax: node {name}")


def _scaled(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    factor = factor_of(search, step.node, step.position)
    name = search.name_of(step.node)
    if step.node.op_type == "Div" and step.position == 1:
        return UnreadReason(f"a value is divided by the scores: node {name}")
    if factor is None:
        return _scaled_by_head(search, chain, step)
    if "scaled" in chain.pairs.found or "masked" in chain.pairs.found:
        return UnreadReason(f"scores are scaled after they are quantized: node {name}")
    chain.is_scaled = True
    if chain.masks and factor.number <= 0:
        return UnreadReason(
            f"scores masked by '{chain.last_mask}' are multiplied by {factor.number:g}: node {name} (apply the mask "
            "after it)"
        )
    chain.factor *= factor
    chain.softcap *= abs(factor.number)
    chain.masks = [_times(term, factor.number) for term in chain.masks]
    return None


def _scaled_by_head(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    scale = head_scale_of(search, step.node, step.position, chain.rank)
    if isinstance(scale, UnreadReason):
        return scale
    if chain.masks or chain.softcap or chain.pairs:
        masked = f"scores masked by '{chain.last_mask}'"
        scores = masked if chain.masks else "softcapped scores" if chain.softcap else "quantized scores"
        advice = " (apply the mask after it)" if chain.masks else ""
        return UnreadReason(f"{scores} are multiplied by one value a head: node {search.name_of(step.node)}{advice}")
    chain.head_scales.append(scale)
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
        what = f"the mask '{chain.last_mask}'" if chain.masks else "another Tanh"
        advice = " (apply the mask after Tanh)" if chain.masks else ""
        return UnreadReason(f"Tanh follows {what}: node {search.name_of(step.node)}{advice}")
    chain.softcap = 1.0
    return None


def _added(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    node = step.node
    other = node.inputs[1 - step.position]
    if other is None or (node.op_type == "Sub" and step.position == 1):
        return UnreadReason(f"the scores are subtracted: node {search.name_of(node)}")
    if "masked" in chain.pairs.found:
        return _masked_again(search, node, other)
    factor = -1.0 if node.op_type == "Sub" else 1.0
    chain.masks.append(MaskTerm(node=node, value=other, rank=chain.rank, factor=factor))
    return None


def _chosen(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    node = step.node
    fill = search.scalar_of(node.inputs[3 - step.position])
    condition = node.inputs[0]
    if condition is None:
        return UnreadReason(f"it has no condition: node {search.name_of(node)}")
    if fill is None:
        return UnreadReason(
            f"the number that replaces scores under the mask '{condition.name}' is not constant: node "
            f"{search.name_of(node)} (use -inf, or a constant of at most {_HIDES:g})"
        )
    if "masked" in chain.pairs.found:
        return _masked_again(search, node, condition)
    if fill > _HIDES:
        return UnreadReason(
            f"the mask '{condition.name}' replaces scores by {fill:g}, which does not hide them: node "
            f"{search.name_of(node)} (use -inf, or at most {_HIDES:g})"
        )
    chain.masks.append(MaskTerm(node=node, value=condition, rank=chain.rank, hides=step.position == 2, fill=fill))
    return None


def _masked_again(search: GraphFacts, node: ir.Node, mask: ir.Value) -> UnreadReason:
    return UnreadReason(
        f"masked scores are quantized before another mask, '{mask.name}': node {search.name_of(node)} (combine the "
        "masks into one)"
    )


def _raised(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    """Max or Clip with a lower limit below every visible score."""
    node = step.node
    name = search.name_of(node)
    if node.op_type == "Clip" and len(node.inputs) > 2 and node.inputs[2] is not None:
        return UnreadReason(f"scores are limited from above: node {name}")
    limits = [value for position, value in enumerate(node.inputs) if position != step.position and value is not None]
    numbers = [search.scalar_of(value) for value in limits]
    if not numbers or any(number is None or number > _HIDES for number in numbers):
        return UnreadReason(
            f"scores are limited from below by a value that is not known to hide them: node {name} (use a constant of "
            f"at most {_HIDES:g})"
        )
    chain.warnings.append(
        f"scores are raised to {max(number for number in numbers if number is not None):g} at node {name}: "
        "a query without visible keys is a mean in the source and 0 in the result"
    )
    return None


def _reshaped(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    node = step.node
    before, after = search.sizes_of(node.inputs[0]), search.sizes_of(node.outputs[0])
    name = search.name_of(node)
    ranks = (chain.rank, None if after is None else len(after))
    if after is None or ranks not in ((3, 4), (4, 3)):
        return UnreadReason(f"the scores have a Reshape that is not read: node {name}")
    if before is not None and before[-2:] != after[-2:] and _known(before, after):
        return UnreadReason(f"the scores are reshaped across queries and keys: node {name}")
    if len(after) == 4:
        if not isinstance(after[1], int):
            return UnreadReason(f"the number of heads is not static: node {name}")
        chain.heads = after[1]
    chain.rank = len(after)
    return None


def _widened(search: GraphFacts, chain: ScoreChain, step: PathNode) -> UnreadReason | None:
    sink = Sink.read(search, step, chain.rank)
    if isinstance(sink, UnreadReason):
        return sink
    chain.sink = sink
    chain.warnings.append(SINK_NOTE.format(node=search.name_of(step.node)))
    return None


def _known(before: Sequence[object], after: Sequence[object]) -> bool:
    """Whether the axes of queries or keys are static in both shapes and differ."""
    return any(
        isinstance(one, int) and isinstance(other, int) and one != other
        for one, other in zip(before[-2:], after[-2:], strict=True)
    )


def softmax_axis(search: GraphFacts, softmax: ir.Node, rank: int) -> int:
    """The softmax axis as a negative number: -1 is the last axis."""
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
    "Concat": _widened,
    "Pad": _widened,
    "Reshape": _reshaped,
    "Unsqueeze": _reshaped,
    "Squeeze": _reshaped,
}
