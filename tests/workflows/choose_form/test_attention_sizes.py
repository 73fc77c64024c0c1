"""Sizes of attentions inside a model are found from the sizes of the model's axes."""

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.choose_form.attention_sizes import attention_sizes, sizes_by_name
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, bare_attention, set_opset


def test_sizes_are_read_at_the_attention() -> None:
    """A graph that concatenates two sequences before its attention has other lengths inside than outside."""
    model, attention = bare_attention(
        FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, layout=Layout.BSH))
    )
    set_opset(model, 23)
    node = model.graph.node(0)
    twice = ir.node("Concat", [attention.query, attention.query], attributes={"axis": 1})
    twice.outputs[0].name, twice.outputs[0].type = "twice", attention.query.type
    model.graph.insert_before(node, twice)
    node.replace_input_with(0, twice.outputs[0])
    site = attention.site
    inside = type(site)(
        name="inside", spec=site.spec, query="twice", key=site.key, value=site.value, output=site.output
    )
    whole = OnnxModel(ir=model, sites=(inside,))
    found = attention_sizes(
        whole, (inside,), get_runtime("ort-cpu"), {"batch_size": 3, "q_seq_len": 5, "kv_seq_len": 7}
    )
    assert found == {"inside": {"batch_size": 3, "q_seq_len": 10, "kv_seq_len": 7}}


def test_a_cache_has_a_size_too() -> None:
    """The number of cached keys is a size of its own."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, has_past=True)
    model, attention = bare_attention(FormProblem(spec=spec))
    set_opset(model, 23)
    whole = OnnxModel(ir=model, sites=(attention.site,))
    sizes = {"batch_size": 1, "q_seq_len": 2, "kv_seq_len": 2, "past_seq_len": 6}
    assert attention_sizes(whole, whole.sites, get_runtime("ort-cpu"), sizes) == {"attention": sizes}


def test_sizes_without_a_name_are_those_of_every_timing() -> None:
    """The batch size defaults to 1, another length that is not named to 512, as in `bench`."""
    model, _ = bare_attention(FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)))
    set_opset(model, 23)
    names = {"batch_size": "B", "q_seq_len": "S", "kv_seq_len": "T"}
    for value in model.graph.inputs:
        value.shape = ir.Shape([names.get(str(dim), dim) for dim in value.shape or ()])
    whole = OnnxModel(ir=model, sites=())
    (found,) = sizes_by_name(whole, get_runtime("ort-cpu"), [{"S": 5}]).values()
    assert found == ({"batch_size": 1, "q_seq_len": 5, "kv_seq_len": 512},)
