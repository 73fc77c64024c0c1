"""Run a graph in float64, node by node: the reference for the outputs of a file, on any runtime.

Nothing is rounded between nodes, unlike in `locate.node_steps`, except values that depend on sizes and constants
alone: these are part of the graph's definition and are computed in the graph's own type. Judges nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.mask_rule import full_mask
from sdpa_onnx.core.judge.attention_outputs import oracle_outputs
from sdpa_onnx.core.judge.node_rule import format_of
from sdpa_onnx.errors import CaseError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.nodes_apart import has_subgraph
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.workflows.locate.float64_bodies import BodyRun, Scope
from sdpa_onnx.workflows.locate.node_steps import flat_model
from sdpa_onnx.workflows.locate.reference_nodes import NodeReference, NoReference, node_label, read_names, widened

__all__ = ["Float64Graph", "Float64Run"]

Array = NDArray[np.generic]
# Computes a node's outputs in the model's own type: (node, arrays that it reads) -> outputs, or why not.
_StandIn = Callable[[ir.Node, Mapping[str, Array]], "dict[str, Array] | NoReference"]

_STEPS = frozenset({"Cast", "Floor", "Ceil", "Round"})
_SIZES = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Float64Run:
    """The values of one run in float64.

    Args:
        values: Arrays by requested name; values that could not be computed are missing.
        by_oracle: Names of attentions that only the oracle could compute: they cannot confirm their own lift.
        stood_in: Nodes that the runtime computed in the model's own type.
        reason: Why a value is missing; "" if none is.
    """

    values: dict[str, Array]
    by_oracle: tuple[str, ...] = ()
    stood_in: tuple[str, ...] = ()
    reason: str = ""


class Float64Graph:
    """A graph that runs in float64 on ONNX's own evaluator.

    Args:
        model: The graph, with its attentions; functions are inlined.

    Attributes:
        stand_in: Computes the outputs of a node that has no reference and is no attention.

    Source: DESIGN section 2: the outputs of a larger model are compared with a float64 run of the same graph.
    """

    def __init__(self, model: OnnxModel) -> None:
        self._flat = flat_model(model)
        self._graph = self._flat.ir.graph
        self._reference = NodeReference(self._flat.ir)
        self.stand_in: _StandIn = lambda node, _: NoReference(f"no runtime is given to compute {node.op_type}")
        self._sites = {site.output: site for site in (*model.sites, *model.body_sites)}
        self._readers: dict[str, int] = {}
        for node in self._graph:
            for name in read_names(node):
                self._readers[name] = self._readers.get(name, 0) + 1

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of integers that are computed from floats: a rounding before them can change them by one.

        A position bucket is an example. Pass the value of the runtime to `run`: with another integer the graph
        computes another function.
        """
        return tuple(
            name
            for node in self._graph
            if node.domain == "" and node.op_type in _STEPS and node.inputs[0] is not None and _is_step(node)
            for value in node.outputs
            if (name := value.name)
        )

    def run(
        self, feeds: Mapping[str, Array], wanted: Collection[str], *, given: Mapping[str, Array] | None = None
    ) -> Float64Run:
        """Compute the values of these names.

        Args:
            feeds: Arrays by graph input name, in the model's own types.
            wanted: Names of values of the main graph.
            given: Arrays that are not computed but used as passed, by value name, see `steps`.
        """
        (found,) = self.run_all([(feeds, given or {})], wanted)
        return found

    def run_all(
        self, inputs: Sequence[tuple[Mapping[str, Array], Mapping[str, Array]]], wanted: Collection[str]
    ) -> list[Float64Run]:
        """Compute the values of these names for several (feeds, given), see `run`.

        All runs compute one node before the next: each weight is read and widened once, and only the weights of one
        node are in memory.
        """
        weights = _Weights(self._graph)
        walks = [
            _Run(self._reference, self.stand_in, self._sites, dict(self._readers), given, weights, feeds, wanted)
            for feeds, given in inputs
        ]
        for node in self._graph:
            for walk in walks:
                walk.step(node)
            weights.drop()
        return [walk.finished() for walk in walks]


def _is_step(node: ir.Node) -> bool:
    """Whether a node computes integers from floats."""
    read, made = node.inputs[0], node.outputs[0]
    if read is None or read.dtype is None or not read.dtype.is_floating_point():
        return False
    return node.op_type != "Cast" or (made.dtype is not None and made.dtype.is_integer())


class _Weights:
    """The initializers that one node reads, for all runs; float64 copies are four times the size of a float16 file."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._own: dict[str, Array | None] = {}
        self._wide: dict[str, Array] = {}

    def own(self, name: str) -> Array | None:
        """The array in the graph's own type, read at the first call after `drop`; None if none has this name."""
        if name not in self._own:
            value = self._graph.initializers.get(name)
            self._own[name] = None if value is None or value.const_value is None else value.const_value.numpy()
        return self._own[name]

    def wide(self, name: str, own: Array) -> Array:
        """The same in float64, computed at the first call after `drop`."""
        if name not in self._wide:
            self._wide[name] = widened(own)
        return self._wide[name]

    def drop(self) -> None:
        """Forget the arrays."""
        self._own.clear()
        self._wide.clear()


class _Run:
    """One run over the nodes; a value is dropped after its last reader."""

    def __init__(
        self,
        reference: NodeReference,
        stand_in: _StandIn,
        sites: Mapping[str, AttentionSite],
        left: dict[str, int],
        given: Mapping[str, Array],
        weights: _Weights,
        feeds: Mapping[str, Array],
        wanted: Collection[str],
    ) -> None:
        self._reference, self._stand_in = reference, stand_in
        self._given, self._weights, self._wanted = given, weights, wanted
        self._sites, self._left = sites, left
        self._values = {name: widened(array) for name, array in feeds.items()}
        self._scope = Scope(values=self._values)
        self._bodies = BodyRun(compute=self._outputs, constant=weights.own, opset=reference.opset)
        self._found = {name: self._values[name] for name in wanted if name in self._values}
        self._by_oracle: list[str] = []
        self._stood_in: list[str] = []
        self._reason = ""

    def step(self, node: ir.Node) -> None:
        """Compute the next node of the graph."""
        result = self._outputs(node, self._scope)
        if isinstance(result, NoReference):
            self._reason = self._reason or f"'{node_label(node)}' ({node.op_type}): {result.reason}"
            return
        self._values |= result
        self._found |= {name: widened(array) for name, array in result.items() if name in self._wanted}
        self._forget(node, result)

    def finished(self) -> Float64Run:
        """The requested values, after all nodes are computed."""
        constants = {name: self._weights.own(name) for name in self._wanted if name not in self._found}
        found = self._found | {name: widened(array) for name, array in constants.items() if array is not None}
        missing = [name for name in self._wanted if name not in found]
        return Float64Run(
            values=found,
            by_oracle=tuple(dict.fromkeys(self._by_oracle)),
            stood_in=tuple(dict.fromkeys(self._stood_in)),
            reason=self._reason if missing else "",
        )

    def _outputs(self, node: ir.Node, scope: Scope) -> dict[str, Array] | NoReference:
        names = [value.name for value in node.outputs if value.name]
        if names and all(name in self._given for name in names):
            return {name: self._given[name] for name in names}
        values = scope.values
        reads: dict[str, Array] = {}
        for name in read_names(node):
            array = values[name] if name in values else self._weights.own(name)
            if array is None:
                return NoReference(f"its input '{name}' has no value")
            reads[name] = array
        own = self._in_own_type(node, reads, scope)
        if own is not None:
            return own
        inside = self._bodies.outputs(node, scope) if has_subgraph(node) else None
        if inside is not None and not isinstance(inside, NoReference):
            return inside
        weights = {name: self._weights.wide(name, array) for name, array in reads.items() if name not in values}
        exact = self._reference.exact(node, reads | weights)
        return self._stand_for(node, reads, exact, scope) if isinstance(exact, NoReference) else exact

    def _in_own_type(self, node: ir.Node, reads: Mapping[str, Array], scope: Scope) -> dict[str, Array] | None:
        """Outputs that float64 must not or need not change: sizes, constants, and rows gathered from a table."""
        table = node.inputs[0] if node.op_type == "Gather" and node.domain == "" else None
        is_sized = node.op_type in _SIZES or all(name in scope.sized or name not in scope.values for name in reads)
        if not is_sized and (table is None or not table.is_initializer()):
            return None
        own = self._reference.own(node, reads)
        if isinstance(own, NoReference):
            return None
        if is_sized:
            scope.sized.update(own)
        return own if is_sized else {name: widened(array) for name, array in own.items()}

    def _stand_for(
        self, node: ir.Node, reads: Mapping[str, Array], why: NoReference, scope: Scope
    ) -> dict[str, Array] | NoReference:
        """Outputs of a node that has no reference: an attention by the oracle, another one by the runtime."""
        by_oracle = self._by_the_oracle(node, why, scope)
        if not isinstance(by_oracle, NoReference):
            return by_oracle
        outputs = self._stand_in(node, reads)
        if isinstance(outputs, NoReference):
            return by_oracle
        if any(format_of(array.dtype) is not None for array in outputs.values()):
            self._stood_in.append(node_label(node))
        return {name: widened(array) for name, array in outputs.items()}

    def _by_the_oracle(self, node: ir.Node, why: NoReference, scope: Scope) -> dict[str, Array] | NoReference:
        """Outputs of an attention of another operator set, as far as the oracle can compute them."""
        made = (value.name or "" for value in node.outputs)
        site = next((self._sites[name] for name in made if name in self._sites), None)
        if site is None or any(name not in scope.values for name in site.inputs.values()):
            return why
        inputs = full_mask(site.arrays_in(scope.values), site.mask_rule, layout=site.spec.layout)
        try:
            known = oracle_outputs(site.spec, inputs, qk_mode=site.scores_mode if site.scores else None)
        except (CaseError, ValueError, IndexError) as error:
            return NoReference(f"the oracle cannot compute it: {error}")
        self._by_oracle.append(site.name)
        return {name: known[role] for role, name in site.outputs.items() if role in known}

    def _forget(self, node: ir.Node, made: Mapping[str, Array]) -> None:
        for name in read_names(node):
            self._left[name] -= 1
            if not self._left[name] and name not in self._kept():
                self._values.pop(name, None)
        for name in made:
            if not self._left.get(name) and name not in self._kept():
                self._values.pop(name, None)

    def _kept(self) -> set[str]:
        """Values that an attention may still be computed from."""
        return {name for site in self._sites.values() for name in site.inputs.values()}
