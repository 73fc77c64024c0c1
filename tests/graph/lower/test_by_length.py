"""Two forms as branches of an `If` on the number of queries: the right one runs, and values can still be read."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Layout, MaskKind
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.lower.by_length import Branch, branch_lengths, lower_by_length
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, bare_attention, set_opset

_PLAIN = LowerOptions()
_ATTENTION = Branch(form=Form.ATTENTION, options=_PLAIN)
_FORMULA = Branch(form=Form.DECOMPOSED, options=_PLAIN)
_AT = 4

SPECS = {
    "causal over a cache": AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True, has_past=True),
    "3-D with a mask": AttentionSpec(
        q_num_heads=2, kv_num_heads=2, head_dim=8, v_head_dim=5, mask=MaskKind.FLOAT, layout=Layout.BSH
    ),
}


def _written(spec: AttentionSpec, *, short: Branch, long: Branch, opset: int = 23) -> OnnxModel:
    model, attention = bare_attention(FormProblem(spec=spec))
    set_opset(model, opset)
    written = lower_by_length(model, attention, short=short, long=long, at=_AT)
    return OnnxModel(ir=model, sites=(written.site,))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("runtime", ["ort-cpu", "onnx-reference"])
def test_it_is_right_on_both_sides_of_the_length(name: str, runtime: str) -> None:
    """At the length itself, one beyond, and with equal numbers of new keys and queries."""
    model = _written(SPECS[name], short=_ATTENTION, long=_FORMULA)
    onnx.checker.check_model(ir.to_proto(model.ir))
    with get_runtime(runtime).load(model, LoadOptions()) as session:
        for queries in (1, _AT, _AT + 1, 9):
            past = 3 if SPECS[name].has_past else 0
            case = AttentionCase(spec=SPECS[name], batch_size=2, q_seq_len=queries, past_seq_len=past)
            inputs = draw_inputs(case, seed=queries)
            outputs = session.run(inputs.onnx_feeds())
            agreement = judge(expect(SPECS[name], inputs, precision=find_precision("float32")), outputs["Y"])
            assert agreement.verdict.is_right, agreement.diagnosis
            assert set(outputs) == set(model.output_names)


def test_each_branch_runs_on_its_side_of_the_length() -> None:
    """A planted scale of zero in the short branch is detected up to the length and not beyond it."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)
    model = _written(spec, short=_FORMULA, long=_ATTENTION)
    branch = next(node for node in model.ir.graph if node.op_type == "If").attributes["then_branch"].as_graph()
    product = next(node for node in branch if node.op_type == "Softmax")
    zero = ir.node("Sub", [product.inputs[0], product.inputs[0]])
    zero.outputs[0].name = "planted"
    branch.insert_before(product, zero)
    product.replace_input_with(0, zero.outputs[0])
    found = {}
    with get_runtime("ort-cpu").load(model, LoadOptions()) as session:
        for queries in (_AT, _AT + 1):
            inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=queries), spread=4.0)
            outputs = session.run(inputs.onnx_feeds())
            found[queries] = judge(expect(spec, inputs, precision=find_precision("float32")), outputs["Y"]).verdict
    assert {queries: verdict.is_right for queries, verdict in found.items()} == {_AT: False, _AT + 1: True}


def test_names_and_sites_stay_outside_the_branches() -> None:
    """Inputs and outputs keep their names, and the attention's values are in the main graph."""
    model = _written(SPECS["causal over a cache"], short=_ATTENTION, long=_FORMULA)
    assert model.output_names == ("Y", "present_key", "present_value")
    assert model.is_bare_attention
    assert model.tapped().output_names == model.output_names
    assert sorted(model.node_counts()) == ["Constant", "Gather", "Greater", "If", "Not", "Shape"]
    names = [value.name for node in model.ir.graph.all_nodes() for value in node.outputs if value.name]
    assert len(names) == len(set(names))


def test_a_form_that_refuses_is_named() -> None:
    """The error names the form, and the graph is unchanged."""
    spec = replace(SPECS["3-D with a mask"], softcap=2.0)
    with pytest.raises(ExportError) as raised:
        _written(spec, short=Branch(form=Form.ORT_MHA, options=_PLAIN), long=_FORMULA)
    assert str(raised.value) == (
        "Attention 'attention' cannot be written as 'ort-mha': MultiHeadAttention has no softcap."
    )


def test_the_contrib_domain_is_imported_for_nodes_in_a_branch() -> None:
    """onnxruntime loads it and returns the output of the standard operator."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True)
    model = _written(spec, short=Branch(form=Form.ORT_MHA, options=_PLAIN), long=_ATTENTION)
    assert model.ir.opset_imports["com.microsoft"] == 1
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=3))
    with get_runtime("ort-cpu").load(model, LoadOptions()) as session:
        output = session.run(inputs.onnx_feeds())["Y"]
    assert judge(expect(spec, inputs, precision=find_precision("float32")), output).verdict.is_right
    assert np.isfinite(output).all()


def test_its_length_is_read_from_the_graph() -> None:
    """Also after saving; an `If` on another condition has no length."""
    model = _written(SPECS["3-D with a mask"], short=_ATTENTION, long=_FORMULA).ir
    saved = ir.from_proto(ir.to_proto(model))
    assert (branch_lengths(model), branch_lengths(saved)) == ((_AT,), (_AT,))
    branch = next(node for node in saved.graph if node.op_type == "If")
    negation = branch.inputs[0].producer() if branch.inputs[0] is not None else None
    assert negation is not None
    branch.replace_input_with(0, negation.inputs[0])
    assert branch_lengths(saved) == ()
