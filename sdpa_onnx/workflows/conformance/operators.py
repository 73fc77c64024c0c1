"""Build the ONNX model of one conformance case for the operator under test: node, feeds and output roles.

The spec and the inputs of the oracle are the same for every operator; here they get the layout, names
and mask format of the operator. Does not run the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import inliner

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES, AttentionInputs
from sdpa_onnx.core.attention.mask_rule import MaskRule, mask_rule_of
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, ScaleRule
from sdpa_onnx.graph.attention_node import attributes_of
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.one_node import OneNode, build_one_node_model
from sdpa_onnx.workflows.conformance.drawing import DrawnCase
from sdpa_onnx.workflows.conformance.feature import Feature, Operator

__all__ = ["CONTRIB_OPSET", "OperatorCase", "build_case"]

Array = NDArray[np.generic]

_PRESENTS = {OutputRole.PRESENT_KEY: "present_key", OutputRole.PRESENT_VALUE: "present_value"}
_FORMAL_OUTPUTS = (OutputRole.OUTPUT, OutputRole.PRESENT_KEY, OutputRole.PRESENT_VALUE, OutputRole.QK)

# Opset of the default domain in models with com.microsoft operators, and of the decomposed form.
CONTRIB_OPSET = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCase:
    """A case as the runtime runs it.

    Args:
        spec, inputs: The case for the oracle.
        model: Builds the model; True = static shapes, False = dynamic shapes.
        feeds: Arrays by graph input name.
        roles: Graph output names by what they are.
        mask_rule: What a mask means whose last axis is 1.
    """

    spec: AttentionSpec
    inputs: AttentionInputs
    model: Callable[[bool], OnnxModel]
    feeds: Mapping[str, Array]
    roles: Mapping[OutputRole, str]
    mask_rule: MaskRule = MaskRule.PADDED


def build_case(feature: Feature, drawn: DrawnCase, opset: int) -> OperatorCase:
    """Build a drawn case for the operator of the feature."""
    match feature.operator:
        case Operator.ATTENTION:
            return _attention(feature, drawn, opset)
        case Operator.BODY:
            case = _attention(feature, drawn, opset)
            return replace(case, model=lambda fixed: _inlined(case.model(fixed)))
        case Operator.DECOMPOSED:
            return _decomposed(drawn, opset)
        case Operator.MULTI_HEAD:
            return _multi_head(feature, drawn, opset)
        case Operator.GROUP_QUERY:
            return _group_query(drawn, opset)
        case Operator.PACKED:
            return _packed(feature, drawn, opset)


def _one_node_case(
    node: OneNode,
    feeds: Mapping[str, Array],
    drawn: DrawnCase,
    roles: Mapping[OutputRole, str],
    constants: Mapping[str, Array] | None = None,
) -> OperatorCase:
    def model(fixed: bool) -> OnnxModel:  # noqa: FBT001  # bound below, one flag
        return build_one_node_model(node, feeds, dynamic=not fixed, constants=constants)

    return OperatorCase(spec=drawn.case.spec, inputs=drawn.inputs, model=model, feeds=feeds, roles=roles)


def _attention(feature: Feature, drawn: DrawnCase, opset: int) -> OperatorCase:
    spec, inputs = drawn.case.spec, drawn.inputs
    feeds = inputs.onnx_feeds()
    attributes: dict[str, int | float] = {**feature.attributes, **attributes_of(spec)}
    roles = {OutputRole.OUTPUT: "Y"}
    if spec.has_past:
        roles |= _PRESENTS
    if feature.qk_mode is not None:
        roles[OutputRole.QK] = "qk_matmul_output"
        attributes["qk_matmul_output_mode"] = int(feature.qk_mode)
    outputs = [roles.get(role, "") for role in _FORMAL_OUTPUTS]
    while not outputs[-1]:
        outputs.pop()
    node = OneNode(
        opset=opset,
        attributes=attributes,
        inputs=tuple(name if name in feeds else "" for name in ONNX_INPUT_NAMES.values()),
        outputs=tuple(outputs),
    )
    return replace(_one_node_case(node, feeds, drawn, roles), mask_rule=mask_rule_of(opset))


def _inlined(model: OnnxModel) -> OnnxModel:
    """Replace the operator with its ONNX function body."""
    proto = inliner.inline_selected_functions(ir.to_proto(model.ir), [("", "Attention")], inline_schema_functions=True)
    return replace(model, ir=ir.from_proto(proto))


def _decomposed(drawn: DrawnCase, opset: int) -> OperatorCase:
    roles = {OutputRole.OUTPUT: "Y"}
    if drawn.case.spec.has_past:
        roles |= _PRESENTS
    return OperatorCase(
        spec=drawn.case.spec,
        inputs=drawn.inputs,
        model=lambda fixed: _exported(drawn.case.spec, opset, drawn.case.dtype),  # noqa: ARG005  # exported with dynamic shapes only
        feeds=drawn.inputs.onnx_feeds(),
        roles=roles,
    )


@cache
def _exported(spec: AttentionSpec, opset: int, dtype: Dtype) -> OnnxModel:
    from sdpa_onnx.torch_export.exporter import export_spec

    return export_spec(spec, opset=opset, form="decomposed", dtype=dtype)


def _multi_head(feature: Feature, drawn: DrawnCase, opset: int) -> OperatorCase:
    spec, inputs = drawn.case.spec, drawn.inputs
    feeds: dict[str, Array] = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    input_names = ["query", "key", "value", "", "", "", "", ""]
    if inputs.attn_mask is not None:
        index = 5 if feature.form == "bias" else 4
        input_names[index] = ("key_padding_mask", "attention_bias")[index - 4]
        feeds[input_names[index]] = _contrib_mask(feature.form, inputs.attn_mask)
    roles = {OutputRole.OUTPUT: "output"}
    if inputs.past_key is not None and inputs.past_value is not None:
        feeds |= {"past_key": inputs.past_key, "past_value": inputs.past_value}
        input_names[6:8] = ["past_key", "past_value"]
        roles |= _PRESENTS
    node = OneNode(
        op_type="MultiHeadAttention",
        domain=CONTRIB_DOMAIN,
        opset=opset,
        attributes={"num_heads": spec.q_num_heads, **_contrib_attributes(spec)},
        inputs=tuple(input_names),
        outputs=tuple(roles.values()),
    )
    return _one_node_case(node, feeds, drawn, roles)


def _group_query(drawn: DrawnCase, opset: int) -> OperatorCase:
    spec, inputs, case = drawn.case.spec, drawn.inputs, drawn.case
    feeds: dict[str, Array] = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    input_names = ["query", "key", "value", "", "", "seqlens_k", "total_sequence_length"]
    if inputs.past_key is not None and inputs.past_value is not None:
        feeds |= {"past_key": inputs.past_key, "past_value": inputs.past_value}
        input_names[3:5] = ["past_key", "past_value"]
    feeds["seqlens_k"] = np.full(case.batch_size, case.total_seq_len - 1, dtype=np.int32)
    feeds["total_sequence_length"] = np.array([case.total_seq_len], dtype=np.int32)
    if inputs.attn_mask is not None:
        input_names += ["", "", "", "attention_bias"]
        feeds["attention_bias"] = inputs.attn_mask
    attributes: dict[str, int | float] = {"num_heads": spec.q_num_heads, "kv_num_heads": spec.kv_num_heads}
    if not spec.is_causal:
        attributes["causal"] = 0
    if spec.softcap:
        attributes["softcap"] = float(spec.softcap)
    if spec.scale is not ScaleRule.INVERSE_SQRT:
        attributes["scale"] = float(spec.scale_value)
    if spec.left_window >= 0:
        # The operator's window includes the query's own key.
        attributes["local_window_size"] = spec.left_window + 1
    roles = {OutputRole.OUTPUT: "output", **_PRESENTS}
    node = OneNode(
        op_type="GroupQueryAttention",
        domain=CONTRIB_DOMAIN,
        opset=opset,
        attributes=attributes,
        inputs=tuple(input_names),
        outputs=tuple(roles.values()),
    )
    return _one_node_case(node, feeds, drawn, roles)


def _packed(feature: Feature, drawn: DrawnCase, opset: int) -> OperatorCase:
    """The operator that projects its input; an identity matrix as weights makes the projection exact."""
    spec, inputs = drawn.case.spec, drawn.inputs
    packed = np.concatenate([inputs.query, inputs.key, inputs.value], axis=2)
    widths = [array.shape[2] for array in (inputs.query, inputs.key, inputs.value)]
    feeds: dict[str, Array] = {"input": packed}
    weights = {"weights": np.eye(packed.shape[2], dtype=np.float32).astype(packed.dtype)}
    input_names = ["input", "weights", "", "", "", ""]
    if feature.form != "no-bias":
        input_names[2] = "bias"
        weights["bias"] = np.zeros(packed.shape[2], dtype=packed.dtype)
    if inputs.attn_mask is not None:
        index = 5 if feature.form == "bias" else 3
        input_names[index] = "attention_bias" if index == 5 else "mask_index"
        feeds[input_names[index]] = _contrib_mask(feature.form, inputs.attn_mask)
    roles = {OutputRole.OUTPUT: "output"}
    if inputs.past_key is not None and inputs.past_value is not None:
        feeds["past"] = np.stack([inputs.past_key, inputs.past_value])
        input_names[4] = "past"
        roles[OutputRole.PRESENT] = "present"
    attributes = {"num_heads": spec.q_num_heads, **_contrib_attributes(spec)}
    node = OneNode(
        op_type="Attention",
        domain=CONTRIB_DOMAIN,
        opset=opset,
        attributes=attributes | ({"qkv_hidden_sizes": widths} if spec.v_head_dim != spec.head_dim else {}),
        inputs=tuple(input_names),
        outputs=tuple(roles.values()),
    )
    return _one_node_case(node, feeds, drawn, roles, weights)


def _contrib_attributes(spec: AttentionSpec) -> dict[str, int | float]:
    attributes: dict[str, int | float] = {}
    if spec.is_causal:
        attributes["unidirectional"] = 1
    if spec.scale is not ScaleRule.INVERSE_SQRT:
        attributes["scale"] = float(spec.scale_value)
    return attributes


def _contrib_mask(form: str, additive: Array) -> Array:
    """Convert the additive mask of the oracle, (B, 1, 1 or S, T), to the mask format of the operator."""
    visible = additive.astype(np.float64) == 0.0
    match form:
        case "bias":
            return additive
        case "lengths":
            return np.ascontiguousarray(visible[:, 0, 0].sum(-1).astype(np.int32))
        case "ends-and-starts":
            ends = visible.shape[-1] - visible[:, 0, 0, ::-1].argmax(-1)
            return np.concatenate([ends, visible[:, 0, 0].argmax(-1)]).astype(np.int32)
        case "keys":
            return np.ascontiguousarray(visible[:, 0, 0].astype(np.int32))
        case _:
            return np.ascontiguousarray(visible[:, 0].astype(np.int32))
