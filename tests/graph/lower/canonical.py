"""Shared test code: build one attention at any opset, lower it to a form, run it and check all outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.graph.attention_node import add_scores_output, build_attention_model
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.lower import lower
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime

Array = NDArray[np.generic]
Axis = int | str


@dataclass(frozen=True, kw_only=True)
class Size:
    """Lengths of one case."""

    batch: int = 2
    queries: int = 5
    keys: int = 7
    past: int = 0

    def case(self, spec: AttentionSpec, dtype: Dtype) -> AttentionCase:
        return AttentionCase(
            spec=spec,
            batch_size=self.batch,
            q_seq_len=self.queries,
            kv_seq_len=self.keys,
            past_seq_len=self.past if spec.has_past else 0,
            dtype=dtype,
        )


RAGGED, LONGER, SQUARE = Size(past=3), Size(batch=1, queries=6, keys=3), Size(queries=4, keys=4, past=3)
ONE_QUERY, TOKEN, EMPTY_CACHE = Size(queries=1, keys=3, past=4), Size(queries=1, keys=1, past=6), Size()
SIZES = (RAGGED, LONGER, SQUARE, ONE_QUERY, TOKEN, EMPTY_CACHE)
SELF_SIZES = (SQUARE, TOKEN, Size(queries=5, keys=5))


@dataclass(frozen=True, kw_only=True)
class Bare:
    """A graph of one attention, not lowered yet.

    Args:
        spec: Spec of the attention.
        dtype: Element type.
        opset: Opset of the graph.
        mask_axes: Shape of the mask, if not (samples, 1, queries, keys).
        scores_mode: Also request the fourth output, at this stage.
        is_self: Queries and keys have the same length, by name.
    """

    spec: AttentionSpec
    dtype: Dtype = Dtype.FLOAT32
    opset: int = 18
    mask_axes: Sequence[Axis] | None = None
    scores_mode: QkOutputMode | None = None
    is_self: bool = False

    def build(self) -> tuple[ir.Model, GraphAttention]:
        """The graph, at an opset that may lack the Attention operator, and its attention."""
        model = build_attention_model(self.spec, opset=25, dtype=self.dtype)
        inputs = {value.name: value for value in model.graph.inputs}
        if self.mask_axes is not None:
            inputs["attn_mask"].shape = ir.Shape(self.mask_axes)
        if self.is_self:
            _name_lengths_alike(model)
        if self.scores_mode is not None:
            add_scores_output(model, self.spec, self.scores_mode, name="scores")
        outputs = model.graph.node(0).outputs
        model.graph.opset_imports[""] = self.opset
        given = dict(zip(("output", "present_key", "present_value", "scores"), outputs, strict=False))
        attention = GraphAttention(
            name="attention",
            spec=self.spec,
            dtype=self.dtype,
            query=inputs["Q"],
            key=inputs["K"],
            value=inputs["V"],
            attn_mask=inputs.get("attn_mask"),
            past_key=inputs.get("past_key"),
            past_value=inputs.get("past_value"),
            nonpad_kv_seqlen=inputs.get("nonpad_kv_seqlen"),
            scores_mode=self.scores_mode or 0,
            **{name: value for name, value in given.items() if value.name},
        )
        return model, attention

    def written(self, form: Form, options: LowerOptions | None = None) -> ir.Model:
        """The graph with the attention replaced by a form; passes onnx.checker."""
        model, attention = self.build()
        lower(model, attention, form, options)
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        return model


def _name_lengths_alike(model: ir.Model) -> None:
    for value in (*model.graph.inputs, *model.graph.outputs):
        assert value.shape is not None
        value.shape = ir.Shape(["q_seq_len" if size == "kv_seq_len" else size for size in value.shape])


@dataclass(kw_only=True)
class Trials:
    """One lowered graph, run on inputs."""

    bare: Bare
    model: ir.Model
    runtime: str = "ort-cpu"
    wrong: list[str] = field(default_factory=list)

    def judge(self, inputs: Mapping[str, AttentionInputs]) -> list[str]:
        """Run all inputs and name the outputs that are wrong."""
        model = OnnxModel(ir=self.model, sites=())
        with get_runtime(self.runtime).load(model, LoadOptions()) as session:
            precision = session.ran().precision or self.bare.dtype.value
            for name, arrays in inputs.items():
                outputs = session.run(arrays.onnx_feeds())
                self.wrong += [f"{name}: {said}" for said in self._judged(arrays, outputs, precision)]
        return self.wrong

    def _judged(self, inputs: AttentionInputs, outputs: Mapping[str, Array], precision: str) -> list[str]:
        named = {role: outputs[role] for role in OutputRole if role in outputs}
        if self.bare.scores_mode is not None:
            named[OutputRole.QK] = outputs["scores"]
        found = judge_attention_outputs(
            self.bare.spec,
            inputs,
            named,
            precision=find_precision(precision),
            qk_modes=(self.bare.scores_mode or QkOutputMode.SCORES,),
        )
        return [f"{name}: {one.diagnosis}" for name, one in found.items() if not one.verdict.is_right]


def run_once(model: ir.Model, inputs: AttentionInputs) -> dict[str, Array]:
    """onnxruntime's outputs by name."""
    with get_runtime("ort-cpu").load(OnnxModel(ir=model, sites=()), LoadOptions()) as session:
        return session.run(inputs.onnx_feeds())


def all_inputs(spec: AttentionSpec, sizes: Sequence[Size], dtype: Dtype = Dtype.FLOAT32) -> dict[str, AttentionInputs]:
    """The ladder's middle step and every probe that applies, at each size."""
    found: dict[str, AttentionInputs] = {}
    for size in sizes:
        case = size.case(spec, dtype)
        found[case.case_id] = draw_inputs(case)
        found |= {f"{case.case_id} {probe.name}": probe.draw(case, 1) for probe in probes_for(spec)}
    return found


def drawn(spec: AttentionSpec, sizes: Sequence[Size], dtype: Dtype = Dtype.FLOAT32) -> dict[str, AttentionInputs]:
    """The ladder's middle step at each size; with a boolean mask, its last query is fully masked."""
    cases = [size.case(spec, dtype) for size in sizes]
    return {case.case_id: draw_inputs(case) for case in cases}


def with_mask(inputs: AttentionInputs, shape: Sequence[int], *, seed: int = 0) -> AttentionInputs:
    """The same inputs with a mask of another shape and the same type."""
    rng = np.random.default_rng(seed)
    assert inputs.attn_mask is not None
    if inputs.attn_mask.dtype == np.bool_:
        return replace(inputs, attn_mask=rng.random(shape) < 0.6)
    return replace(inputs, attn_mask=rng.standard_normal(shape).astype(inputs.attn_mask.dtype))


def _spec(**changes: object) -> AttentionSpec:
    figures: dict[str, object] = {"q_num_heads": 4, "kv_num_heads": 2, "head_dim": 8}
    return AttentionSpec(**(figures | changes))  # type: ignore[arg-type]  # the columns of a table


# In addition to `tests.graph.models.SPECS`: specs that are difficult for forms.
HARD_SPECS: dict[str, AttentionSpec] = {
    "causal-lengths": _spec(is_causal=True, mask=MaskKind.LENGTHS),
    "window-lengths": _spec(left_window=1, right_window=2, mask=MaskKind.LENGTHS),
    "causal-past": _spec(is_causal=True, has_past=True),
    "causal-past-bool": _spec(is_causal=True, has_past=True, mask=MaskKind.BOOL),
    "window-past": _spec(is_causal=True, left_window=2, has_past=True),
    "left-window": _spec(left_window=1),
    "right-window": _spec(right_window=1),
    "window-float": _spec(left_window=1, right_window=0, mask=MaskKind.FLOAT),
    "gqa-bool": _spec(mask=MaskKind.BOOL),
    "mqa-causal-softcap": _spec(kv_num_heads=1, is_causal=True, softcap=1.7),
    "scale-0": _spec(scale=0.0),
    "scale-negative": _spec(scale=-0.4),
    "wide": _spec(head_dim=48, v_head_dim=8),
    "bsh-past": _spec(has_past=True, layout="bsh", v_head_dim=3),
    "bsh-causal-bool": _spec(layout="bsh", is_causal=True, mask=MaskKind.BOOL),
}
