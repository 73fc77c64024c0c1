"""What every stage wants to know of a graph, read once when an `OnnxModel` is made.

Reads names, element types, shapes and metadata; no number of a tensor and no subgraph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import onnx_ir as ir

from sdpa_onnx.core.attention.axis_limits import AxisLimit, limits_of_axis, read_expression
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.element_types import DTYPES
from sdpa_onnx.graph.row_guards import sites_without_row_guard
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.graph.site_outputs import unjudged_outputs

__all__ = ["FORM_KEY", "LIMITS_KEY", "TRACED_KEY", "ModelFacts", "read_facts"]

# Metadata: the form that a file was converted into, the sizes of the sample that it was traced at, and the sizes that
# the trace allows.
FORM_KEY = "sdpa_onnx.form"
TRACED_KEY = "sdpa_onnx.traced_sizes"
LIMITS_KEY = "sdpa_onnx.axis_limits"

_Fact = TypeVar("_Fact")


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a fact could not be read; an error only for a stage that needs the fact."""

    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Figures of one graph. `OnnxModel` makes them of its own graph, and nothing else does.

    Args:
        form: The form of its attentions: what the metadata states, else read off the operators.
        opset: Operator-set version of the default domain, 0 without one.
        input_names: In the order of the graph.
        output_names: The same.
        node_counts: Nodes per operator type in order of appearance, functions and subgraphs not entered.
        is_bare_attention: Whether the graph is one attention whose inputs and output are the graph's own.
        attention_dtype: Element type of the first attention's query, else of the first input of
            such a type, else float32.
        unjudged: Used outputs of attention nodes that no site names, with one sentence each.
        without_row_guard: Names of the attentions whose graph gives NaN in a row without a visible key.
    """

    form: Form
    opset: int
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    node_counts: Mapping[str, int]
    is_bare_attention: bool
    attention_dtype: Dtype
    unjudged: Mapping[str, str]
    without_row_guard: frozenset[str]
    _axes: tuple[str, ...] | _Fault
    _first_axes: frozenset[str]
    _dtype: Dtype | _Fault
    _traced: Mapping[str, int] | _Fault | None
    _limits: tuple[AxisLimit, ...] | _Fault = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes that may change, in order of appearance; of an expression, those in it.

        Raises:
            ModelError: If an axis has no name.
        """
        return _known(self._axes)

    @property
    def has_named_axes(self) -> bool:
        """Whether `axes` can be read."""
        return not isinstance(self._axes, _Fault)

    @property
    def batch_axes(self) -> frozenset[str]:
        """Names of first axes, also in an expression of one name, and of axes called batch.

        Raises:
            ModelError: As `axes`.
        """
        return self._first_axes | {axis for axis in self.axes if axis.startswith("batch")}

    @property
    def dtype(self) -> Dtype:
        """Element type of the first floating-point input, float32 without one.

        Raises:
            ModelError: If it is a floating-point type that we do not know.
        """
        return _known(self._dtype)

    @property
    def traced(self) -> Mapping[str, int] | None:
        """Sizes of the sample that the model was traced at, if the exporter or the reader of its module noted them.

        Raises:
            ModelError: If the note cannot be read.
        """
        return _known(self._traced)

    @property
    def limits(self) -> tuple[AxisLimit, ...]:
        """The sizes that the file allows: what its exporter noted of the trace, and what its axes imply.

        Raises:
            ModelError: If the note cannot be read.
        """
        return _known(self._limits)


def read_facts(model: ir.Model, sites: Sequence[AttentionSite]) -> ModelFacts:
    """Read the facts of a graph in one pass over its nodes."""
    graph = model.graph
    input_names = tuple(value.name or "" for value in graph.inputs)
    output_names = tuple(value.name or "" for value in graph.outputs)
    operators: dict[tuple[str, str], int] = {}
    counts: dict[str, int] = {}
    for node in graph:
        key = node.domain, node.op_type
        operators[key] = operators.get(key, 0) + 1
        counts[key[1]] = counts.get(key[1], 0) + 1
    return ModelFacts(
        form=_form(model.metadata_props.get(FORM_KEY), operators),
        opset=model.opset_imports.get("", 0),
        input_names=input_names,
        output_names=output_names,
        node_counts=counts,
        is_bare_attention=_is_bare(sites, input_names, output_names),
        attention_dtype=_attention_dtype(graph, sites),
        unjudged=unjudged_outputs(model, sites),
        without_row_guard=sites_without_row_guard(graph, sites),
        _axes=_axes(graph),
        _first_axes=_first_axes(graph),
        _dtype=_dtype(graph),
        _traced=_traced(model),
        _limits=_limits(model),
    )


def _known(fact: _Fact | _Fault) -> _Fact:
    if isinstance(fact, _Fault):
        raise ModelError(fact.message, hint=fact.hint)
    return fact


def _form(noted: str | None, operators: Mapping[tuple[str, str], int]) -> Form:
    if noted in set(Form):
        return Form(str(noted))
    if any(op_type == "Attention" for _, op_type in operators):
        return Form.ATTENTION
    if (CONTRIB_DOMAIN, "GroupQueryAttention") in operators:
        return Form.ORT_GQA
    return Form.ORT_MHA if (CONTRIB_DOMAIN, "MultiHeadAttention") in operators else Form.DECOMPOSED


def _is_bare(sites: Sequence[AttentionSite], input_names: Sequence[str], output_names: Sequence[str]) -> bool:
    if len(sites) != 1:
        return False
    return sorted(sites[0].inputs.values()) == sorted(input_names) and sites[0].output in output_names


def _attention_dtype(graph: ir.Graph, sites: Sequence[AttentionSite]) -> Dtype:
    inputs = list(graph.inputs)
    queries = {site.query for site in sites}
    if queries:
        values = [*inputs, *(value for node in graph for value in node.outputs)]
        inputs = [*(value for value in values if value.name in queries), *inputs]
    known = (DTYPES[value.dtype] for value in inputs if value.dtype is not None and value.dtype in DTYPES)
    return next(known, Dtype.FLOAT32)


def _dtype(graph: ir.Graph) -> Dtype | _Fault:
    for value in graph.inputs:
        if value.dtype is None:
            continue
        if value.dtype in DTYPES:
            return DTYPES[value.dtype]
        if value.dtype.is_floating_point():
            return _Fault(f"Input '{value.name}' is of type {value.dtype}, which is not supported.")
    return Dtype.FLOAT32


def _axes(graph: ir.Graph) -> tuple[str, ...] | _Fault:
    names: dict[str, None] = {}
    for value in graph.inputs:
        for size in value.shape or ():
            if isinstance(size, ir.SymbolicDim):
                if size.value is None:
                    return _Fault(f"Input '{value.name}' has an axis without a name.", "Name its dynamic axes.")
                names |= dict.fromkeys(read_expression(str(size.value)).names)
    names.pop("total_seq_len", None)  # past + new
    return tuple(names)


def _first_axes(graph: ir.Graph) -> frozenset[str]:
    shapes = [value.shape for value in graph.inputs if value.shape is not None and len(value.shape) > 1]
    first = [str(shape[0].value) for shape in shapes if not isinstance(shape[0], int)]
    # A product such as batch * length is no count of samples.
    return frozenset(name for text in first if len(names := read_expression(text).names) == 1 for name in names)


def _limits(model: ir.Model) -> tuple[AxisLimit, ...] | _Fault:
    implied: dict[str, AxisLimit] = {}
    for value in model.graph.inputs:
        for size in value.shape or ():
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                axis = str(size.value)
                for limit in limits_of_axis(axis, f"axis '{axis}' of input '{value.name}'"):
                    implied.setdefault(limit.size, limit)
    noted: tuple[AxisLimit, ...] = model.meta.get(LIMITS_KEY, ())
    text = model.metadata_props.get(LIMITS_KEY)
    if text is not None:
        try:
            noted = msgspec.json.decode(text, type=tuple[AxisLimit, ...])
        except msgspec.MsgspecError as error:
            return _Fault(f"The metadata '{LIMITS_KEY}' of the model cannot be read: {error}.")
    stated = {limit.size for limit in noted}
    return (*noted, *(limit for size, limit in implied.items() if size not in stated))


def _traced(model: ir.Model) -> Mapping[str, int] | _Fault | None:
    text = model.metadata_props.get(TRACED_KEY)
    if text is None:
        noted: Mapping[str, int] | None = model.meta.get(TRACED_KEY)
        return noted
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except msgspec.MsgspecError as error:
        return _Fault(f"The metadata '{TRACED_KEY}' of the model cannot be read: {error}.")
