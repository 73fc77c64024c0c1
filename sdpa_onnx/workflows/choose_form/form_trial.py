"""Build a model of one attention in a form, run it on a runtime and judge it with the oracle.

Does not draw the probes (`form_probes`) and does not search for workarounds (`workarounds`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES, AttentionInputs
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.score_quantisers import ScoreQuantisers
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.attention_node import add_scores_output, build_attention_model, mask_kind_of
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.ir_version import lowest_ir_version
from sdpa_onnx.graph.lower.lower import lower
from sdpa_onnx.graph.lower.operands import has_equal_lengths
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime, Session
from sdpa_onnx.workflows.check.case_trial import QK_OUTPUT, LoadFailure, Sessions, failure_of, judge_attention

__all__ = ["FormProblem", "FormSessions", "ProbeOutcome", "bare_attention", "form_model", "problem_of", "set_opset"]

Array = NDArray[np.generic]

# The newest version of the operator: the canonical form, before it is written in another form.
_CANONICAL_OPSET = 25
# The mask of the exporter: (batch, 1, queries, keys).
_DEFAULT_MASK = "B1ST"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormProblem:
    """An attention and the inputs that its graph can feed it: everything on which a form must be right.

    Args:
        spec: The attention.
        dtype: Element type.
        mask_shapes: Axes of the possible masks: B batch, H heads, S queries, T keys, P fewer keys, 1;
            F keys in an axis with a different name, which a form must treat as possibly fewer.
        beside_lengths: Kind of a mask in addition to lengths, if the mask kind of the spec is LENGTHS.
        has_single_keys: Whether keys and values have batch size 1 and are broadcast over the queries' batch.
        has_equal_lengths: Whether q_seq_len and kv_seq_len are always equal; None = the graph does not declare it.
        scores_mode: Mode of the scores output that the graph reads; None = it reads none.
        quantisers: How the graph rounds scores and weights to integers.
    """

    spec: AttentionSpec
    dtype: Dtype = Dtype.FLOAT32
    mask_shapes: tuple[str, ...] = (_DEFAULT_MASK,)
    beside_lengths: MaskKind = MaskKind.NONE
    has_single_keys: bool = False
    has_equal_lengths: bool | None = False
    scores_mode: QkOutputMode | None = None
    quantisers: ScoreQuantisers = field(default_factory=ScoreQuantisers)

    @property
    def mask_kind(self) -> MaskKind:
        """Kind of the mask input: boolean, float or NONE."""
        return self.beside_lengths if self.spec.mask is MaskKind.LENGTHS else self.spec.mask

    @property
    def has_mask(self) -> bool:
        return self.mask_kind is not MaskKind.NONE

    def with_lengths_for(self, form: Form) -> "FormProblem":
        """Decide undeclared lengths: equal only for a form that requires it.

        Such a form fails at run time on unequal lengths, so it returns no wrong number.
        """
        equal = form is Form.ORT_GQA if self.has_equal_lengths is None else self.has_equal_lengths
        return replace(self, has_equal_lengths=equal)

    def smaller(self) -> "FormProblem":
        """The same problem with fewer heads and groups: kernels do not depend on their number."""
        kv_num_heads = min(self.spec.kv_num_heads, 2)
        group = min(self.spec.heads_per_kv, 3)
        spec = replace(self.spec, kv_num_heads=kv_num_heads, q_num_heads=kv_num_heads * group)
        return replace(self, spec=spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOutcome:
    """The judged result of one probe on a runtime.

    Args:
        kind: RIGHT, WRONG, REFUSED or CRASHED.
        message: The evidence, or the runtime's error; "" if it is right.
        max_bound_ratio: Largest error over its proven bound; 0 if nothing was judged.
        is_timeout: Whether it counts as CRASHED because it timed out.
    """

    kind: Conformity
    message: str = ""
    max_bound_ratio: float = 0.0
    is_timeout: bool = False


def problem_of(attention: GraphAttention) -> FormProblem:
    """The problem of one attention of a graph: its spec, and the inputs that the graph can feed it."""
    return FormProblem(
        spec=attention.spec,
        dtype=attention.dtype,
        mask_shapes=_mask_shapes(attention),
        beside_lengths=_beside_lengths(attention),
        has_single_keys=_has_single_keys(attention),
        has_equal_lengths=has_equal_lengths(attention),
        scores_mode=None if attention.scores is None else QkOutputMode(attention.scores_mode),
        quantisers=attention.quantisers,
    )


def _mask_shapes(attention: GraphAttention) -> tuple[str, ...]:
    """The mask shapes that match the declared one: an axis of size 1 stays 1, a dynamic query axis may be 1."""
    mask = attention.attn_mask
    if mask is None:
        return (_DEFAULT_MASK,)
    if mask.shape is None:
        return (_DEFAULT_MASK, "B11T", "1HST", "ST", "T")
    letters = "BHST"[4 - len(mask.shape) :]
    last = "T" if _follows_keys(attention, mask.shape) else "F"
    fixed = "".join(
        "1" if size == 1 and letter != "T" else letter for size, letter in zip(mask.shape, letters, strict=True)
    )
    fixed = fixed.replace("T", last)
    shapes = [fixed]
    if "S" in fixed and not _follows_queries(attention, mask.shape):
        shapes.append(fixed.replace("S", "1"))
    if _may_be_short(attention):
        shapes.append(fixed.replace("F", "P"))
    return tuple(dict.fromkeys(shapes))


def _follows_queries(attention: GraphAttention, mask: ir.Shape) -> bool:
    """Whether the mask's query axis is known to equal the query's."""
    query = attention.query.shape
    axis = -2
    return query is not None and len(query) >= 3 and query[axis] == mask[-2] and _is_known(mask[-2])


def _follows_keys(attention: GraphAttention, mask: ir.Shape) -> bool:
    """Whether the mask's last axis is known to be all keys: by the same name, or by the name `total_seq_len`."""
    axis = attention.spec.layout.length_axis
    key = attention.key.shape
    if attention.past_key is not None:
        return not isinstance(mask[-1], int) and mask[-1].value == "total_seq_len"
    return key is not None and key[axis] == mask[-1] and _is_known(mask[-1])


def _is_known(size: int | ir.SymbolicDim) -> bool:
    return isinstance(size, int) or size.value is not None


def _may_be_short(attention: GraphAttention) -> bool:
    """Whether a mask shorter than the keys is valid: only for the ONNX operator, from opset 24 on."""
    node = attention.output.producer()
    if node is None or node.op_type != "Attention" or node.domain or node.graph is None:
        return False
    version = node.version or node.graph.opset_imports.get("", 0)
    mask, keys = attention.attn_mask, attention.key.shape
    fixed = mask is not None and mask.shape is not None and keys is not None and mask.shape[-1] in tuple(keys)[1:3]
    return version >= 24 and not fixed


def _beside_lengths(attention: GraphAttention) -> MaskKind:
    mask = attention.attn_mask
    if mask is None or attention.spec.mask is not MaskKind.LENGTHS:
        return MaskKind.NONE
    return mask_kind_of(mask)


def _has_single_keys(attention: GraphAttention) -> bool:
    query, key = attention.query.shape, attention.key.shape
    return query is not None and key is not None and key[0] == 1 and query[0] != 1


def bare_attention(
    problem: FormProblem, *, mask_shape: str = _DEFAULT_MASK, name: str = "attention"
) -> tuple[ir.Model, GraphAttention]:
    """Build a graph of one canonical attention with dynamic sizes, to be written in a form."""
    spec = problem.spec
    model = build_attention_model(spec, opset=_CANONICAL_OPSET, dtype=problem.dtype)
    graph = model.graph
    node = graph.node(0)
    values = {value.name: value for value in graph.inputs}
    named: dict[str, Any] = {role: values[onnx] for role, onnx in ONNX_INPUT_NAMES.items() if onnx in values}
    new_keys = "q_seq_len" if problem.has_equal_lengths else "kv_seq_len"
    for role in ("key", "value"):
        axis = spec.layout.length_axis
        named[role].shape = _with_axis(named[role], axis, new_keys)
    if problem.beside_lengths is not MaskKind.NONE:
        named["attn_mask"] = _add_mask(model, problem)
    if problem.has_mask:
        named["attn_mask"].shape = _declared(mask_shape, spec, "total_seq_len" if spec.has_past else new_keys)
    if problem.has_single_keys:
        for role in ("key", "value", "past_key", "past_value"):
            if role in named:
                named[role].shape = _with_axis(named[role], 0, 1)
    mode = problem.scores_mode
    scores = None if mode is None else add_scores_output(model, spec, mode, name=QK_OUTPUT)
    outputs = {value.name: value for value in node.outputs}
    attention = GraphAttention(
        name=name,
        spec=spec,
        dtype=problem.dtype,
        **named,
        output=outputs["Y"],
        present_key=outputs.get("present_key"),
        present_value=outputs.get("present_value"),
        scores=scores,
        scores_mode=int(mode or 0),
        quantisers=problem.quantisers,
    )
    return model, attention


def form_model(
    problem: FormProblem, form: Form, *, opset: int, options: LowerOptions, mask_shape: str = _DEFAULT_MASK
) -> OnnxModel:
    """Build a model of one attention in a form, with dynamic sizes.

    Raises:
        ExportError: If the form cannot express it at that opset.
    """
    model, attention = bare_attention(problem, mask_shape=mask_shape)
    set_opset(model, opset)
    written = lower(model, attention, form, options)
    return OnnxModel(ir=model, sites=(written.site,))


def set_opset(model: ir.Model, opset: int) -> None:
    """Declare another opset for a graph whose only node is about to be replaced."""
    model.graph.opset_imports[""] = opset
    model.ir_version = lowest_ir_version(opset)


def _add_mask(model: ir.Model, problem: FormProblem) -> ir.Value:
    """Add a mask to a node with lengths, as an input of the graph and of the node."""
    kind = ir.DataType.BOOL if problem.beside_lengths is MaskKind.BOOL else model.graph.inputs[0].dtype
    mask = ir.Value(name="attn_mask", type=ir.TensorType(kind or ir.DataType.FLOAT))
    model.graph.inputs.append(mask)
    model.graph.node(0).replace_input_with(3, mask)
    return mask


def _with_axis(value: ir.Value, axis: int, size: int | str) -> ir.Shape:
    sizes: list[int | str | ir.SymbolicDim] = list(value.shape or ())
    sizes[axis] = size
    return ir.Shape(sizes)


def _declared(mask_shape: str, spec: AttentionSpec, keys: str) -> ir.Shape:
    sizes: Mapping[str, int | str] = {
        "B": "batch_size",
        "H": spec.q_num_heads,
        "S": "q_seq_len",
        "T": keys,
        "P": "mask_keys",
        "F": "mask_keys",
        "1": 1,
    }
    return ir.Shape([sizes[axis] for axis in mask_shape])


@dataclass(slots=True, kw_only=True)
class FormSessions:
    """Sessions of one form of a problem on one runtime, one for each shape of mask; a context manager.

    Args:
        runtime: The runtime; wrap one that may crash in `GuardedRuntime`.
        problem: The attention.
        form: The form in which it is written.
        opset: Opset of the model.
        options: Options of the form.
    """

    runtime: Runtime
    problem: FormProblem
    form: Form
    opset: int
    options: LowerOptions
    _sessions: Sessions = field(init=False)
    _precisions: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._sessions = Sessions(self.runtime)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sessions.__exit__(kind, error, trace)

    def run_probe(
        self, inputs: AttentionInputs, *, mask_shape: str, oracle_inputs: AttentionInputs | None = None
    ) -> ProbeOutcome:
        """Run one set of arrays and judge every output.

        Args:
            inputs: Inputs of the runtime.
            mask_shape: Axes of the model's mask.
            oracle_inputs: Inputs of the oracle; None = the same.
        """
        session = self._session(mask_shape)
        if isinstance(session, LoadFailure):
            return ProbeOutcome(kind=session.kind, message=session.message, is_timeout=session.is_timeout)
        try:
            outputs = session.run(inputs.onnx_feeds())
        except SessionError as error:
            failure = failure_of(error)
            return ProbeOutcome(kind=failure.kind, message=failure.message, is_timeout=failure.is_timeout)
        if mask_shape not in self._precisions:  # read after a run: some runtimes choose their kernels only then
            self._precisions[mask_shape] = session.ran().precision
        return self._judge(oracle_inputs or inputs, outputs, self._precisions[mask_shape])

    def _judge(self, inputs: AttentionInputs, outputs: Mapping[str, Array], precision: str) -> ProbeOutcome:
        """Only proven errors count; suspicious outputs are left to the verification of the written file."""
        mode = self.problem.scores_mode or QkOutputMode.SCORES
        named = {role: outputs[role] for role in OutputRole if role in outputs}
        inputs = replace(inputs, quantisers=self.problem.quantisers or None)
        result = judge_attention(self.problem.spec, inputs, named, precision=precision, qk_modes=(mode,))
        if result.agreement is None or result.kind is not Conformity.WRONG:
            return ProbeOutcome(kind=Conformity.RIGHT)
        ratio = result.agreement.max_bound_ratio or 0.0
        return ProbeOutcome(kind=Conformity.WRONG, message=result.message, max_bound_ratio=ratio)

    def _session(self, mask_shape: str) -> Session | LoadFailure:
        return self._sessions.open(
            mask_shape,
            lambda: form_model(self.problem, self.form, opset=self.opset, options=self.options, mask_shape=mask_shape),
        )
