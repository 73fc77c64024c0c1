"""`convert` writes forms, keeps everything else, and reports what stays unchanged."""

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import Outcome, Subject
from sdpa_onnx.errors import ModelError, PlanError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import SITES_KEY, SPEC_KEY, OnnxModel, load_model
from sdpa_onnx.graph.model_facts import FORM_KEY
from sdpa_onnx.workflows.check.lifted_model import lift
from sdpa_onnx.workflows.convert.convert_file import Conversion, ProofOptions, convert_and_prove
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from sdpa_onnx.workflows.convert.upgrade_opset import raise_opset, stays_below
from tests.workflows.convert_sources import with_ids, with_projections

_FEW = ProofOptions(effort=RunEffort(count=2))


def _interface(model: OnnxModel) -> list[str]:
    return [str(value) for value in (*model.ir.graph.inputs, *model.ir.graph.outputs)]


def _done(tmp_path: Path, source: onnx.ModelProto, form: Form) -> Conversion:
    onnx.save(source, tmp_path / "source.onnx")
    return convert_and_prove(tmp_path / "source.onnx", tmp_path / "result.onnx", form, proof=_FEW)


@pytest.mark.parametrize(("form", "opset"), [(Form.ATTENTION, 23), (Form.ORT_MHA, 18)])
def test_everything_else_survives(form: Form, opset: int) -> None:
    """Names, types, axes, other metadata and other nodes stay; the opset is raised only where the form needs it."""
    source = with_projections()
    source.metadata_props.add(key="owner", value="someone")
    model = load_model(source)
    before = model.to_bytes()
    done = convert_model(model, form)
    result = done.model
    assert model.to_bytes() == before
    assert (result.opset, done.is_raised) == (opset, opset != 18)
    assert _interface(result) == _interface(model)
    notes = result.ir.metadata_props
    assert (notes["owner"], notes[FORM_KEY], result.ir.producer_name) == ("someone", form.value, "someone")
    assert {SITES_KEY, SPEC_KEY} <= set(notes)
    kept = {node.name or node.outputs[0].name for node in result.ir.graph}
    assert {"projected", "best"} <= {value.name for node in result.ir.graph for value in node.outputs}, kept
    assert "Softmax" not in result.node_counts()
    assert result.facts.form == form


def test_result_is_read_again(tmp_path: Path) -> None:
    """The written file lists its attentions, and can be converted again."""
    done = _done(tmp_path, with_projections(), Form.ORT_MHA)
    assert done.path is not None
    again = load_model(done.path)
    (found,) = lift(again).found
    assert found.dialect == "onnxruntime MultiHeadAttention"
    assert [site.name for site in again.sites] == list(done.converted.converted)
    back = convert_model(again, Form.DECOMPOSED)
    assert len(back.converted) == 1
    assert "MultiHeadAttention" not in back.model.node_counts()


def test_whole_number_inputs_are_legal(tmp_path: Path) -> None:
    """Indices into a table stay in range; other integers are a mask in which one row hides all keys."""
    done = _done(tmp_path, with_ids(), Form.DECOMPOSED)
    assert done.converted.already  # a softmax between two products is that form
    again = convert_and_prove(
        tmp_path / "source.onnx", tmp_path / "result.onnx", Form.DECOMPOSED, again=True, proof=_FEW
    )
    assert again.is_right
    assert again.proof is not None
    assert "hidden rows" in {record.inputs for record in again.proof.records}


def test_file_that_has_the_form_is_kept(tmp_path: Path) -> None:
    """Nothing is rewritten, nothing runs, and the copy is identical byte for byte."""
    onnx.save(ir.to_proto(_bare()), tmp_path / "source.onnx")
    done = convert_and_prove(tmp_path / "source.onnx", tmp_path / "result.onnx", Form.ATTENTION)
    assert (done.converted.converted, done.converted.already, done.proof) == ((), ("attention",), None)
    assert (tmp_path / "result.onnx").read_bytes() == (tmp_path / "source.onnx").read_bytes()


def test_refused_attention_stays(tmp_path: Path) -> None:
    """One of two attentions has a softcap, which the form lacks: it stays, with the reason, and the other changes."""
    first = helper.make_node("Attention", ["Q", "K", "V"], ["between"], name="plain")
    second = helper.make_node("Attention", ["between", "K", "V"], ["Y"], name="capped", softcap=3.0)
    source = ir.to_proto(_bare())
    del source.graph.node[:]
    source.graph.node.extend([first, second])
    done = _done(tmp_path, source, Form.ORT_MHA)
    assert done.is_right
    assert [(record.node, record.converted_to, record.outcome) for record in done.attentions] == [
        ("plain", "ort-mha", Outcome.OK),
        ("capped", "", Outcome.UNSUPPORTED),
    ]
    assert done.attentions[1].reason == "MultiHeadAttention has no softcap."
    assert load_model(tmp_path / "result.onnx").node_counts() == {"Attention": 1, **_others(tmp_path)}


def _others(tmp_path: Path) -> dict[str, int]:
    counts = load_model(tmp_path / "result.onnx").node_counts()
    assert counts["MultiHeadAttention"] == 1
    return {name: count for name, count in counts.items() if name != "Attention"}


def test_nothing_convertible_writes_nothing(tmp_path: Path) -> None:
    """A softcap alone: no result, and the reason is on the record."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, softcap=3.0)
    source = ir.to_proto(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32))
    done = _done(tmp_path, source, Form.ORT_MHA)
    assert (done.is_right, done.path, done.proof) == (False, None, None)
    assert not (tmp_path / "result.onnx").exists()


def test_options_write_anew() -> None:
    """A form that the file already has is written again if its options are requested."""
    model = load_model(with_projections())
    assert convert_model(model, Form.DECOMPOSED).already
    options = LowerOptions(scale_placement=ScalePlacement.SCORES)
    done = convert_model(model, Form.DECOMPOSED, options, again=True)
    assert len(done.converted) == 1


def test_reasons_of_an_earlier_conversion_are_dropped() -> None:
    """The notes of an earlier conversion are removed only if the attentions are written in another form."""
    model = load_model(with_projections())
    model.ir.metadata_props.update({"sdpa_onnx.auto": "{}", "sdpa_onnx.workarounds": "{}", "theirs": "kept"})
    rewritten = convert_model(model, Form.ORT_MHA).model.ir.metadata_props
    assert {"sdpa_onnx.auto", "sdpa_onnx.workarounds", "theirs"} & set(rewritten) == {"theirs"}
    unchanged = convert_model(model, Form.DECOMPOSED).model.ir.metadata_props
    assert {"sdpa_onnx.auto", "sdpa_onnx.workarounds", "theirs"} <= set(unchanged)


def test_older_opset_is_refused() -> None:
    """A graph is never lowered."""
    with pytest.raises(PlanError) as raised:
        convert_model(load_model(ir.to_proto(_bare())), Form.DECOMPOSED, opset=18)
    assert str(raised.value) == ("The model has opset 23, which cannot be lowered to 18. Omit --opset, or pass 23.")


def test_opset_that_cannot_be_raised() -> None:
    """Below 7 there is no converter; the error states what to do."""
    source = with_projections()
    source.opset_import[0].version = 6
    model = load_model(source).ir
    with pytest.raises(ModelError) as raised:
        raise_opset(model, 23)
    assert str(raised.value) == (
        "The model cannot be converted from opset 6 to 23: only opset 7 to 25 can be raised. "
        "Export it again at opset 18 or newer."
    )


def test_old_torchscript_opset_is_raised_for_the_operator() -> None:
    """From 17, as that exporter writes it, over 18 to 23."""
    source = with_projections()
    source.opset_import[0].version = 17
    model = load_model(source)
    done = convert_model(model, Form.ATTENTION)
    assert (done.model.opset, done.converted, model.opset) == (23, ("Softmax/weights",), 17)
    assert done.model.node_counts()["Attention"] == 1


def test_what_a_graph_cannot_hold_is_known_before() -> None:
    """By the option, else by one attempt; the model itself stays unchanged."""
    source = with_projections()
    model = load_model(source)
    assert stays_below(model, None)(23) == ""
    assert stays_below(model, 20)(20) == ""
    assert stays_below(model, 20)(23) == "--opset is 20."
    source.opset_import[0].version = 6
    old = load_model(source)
    assert stays_below(old, None)(13) == (
        "the graph stays at 6: The model cannot be converted from opset 6 to 13: only opset 7 to 25 can be raised."
    )
    assert (model.opset, old.opset) == (18, 6)


def test_file_without_attention(tmp_path: Path) -> None:
    """The error names the file."""
    source = ir.to_proto(_bare())
    del source.graph.node[:]
    source.graph.node.append(helper.make_node("Identity", ["Q"], ["Y"]))
    with pytest.raises(ModelError, match=r"source\.onnx has no attention in it\."):
        _done(tmp_path, source, Form.ATTENTION)


def _bare() -> ir.Model:
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)
    return build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32)


@pytest.mark.slow
def test_large_file_is_proved_by_another_process(tmp_path: Path) -> None:
    """With external data the proving process reads source and result from their files."""
    source = with_projections()
    onnx.save_model(source, tmp_path / "source.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    options = ProofOptions(effort=RunEffort(count=2), patience_seconds=300.0)
    done = convert_and_prove(tmp_path / "source.onnx", tmp_path / "result.onnx", Form.ORT_MHA, proof=options)
    assert done.is_right
    assert done.proof is not None
    judged = {record.subject for record in done.proof.records}
    assert judged == set(Subject)
    attentions = {record.site for record in done.proof.records if record.subject is Subject.ATTENTION}
    assert attentions == {"Softmax/weights"}
    assert load_model(tmp_path / "result.onnx").node_counts()["MultiHeadAttention"] == 1


def test_in_memory() -> None:
    """Python gets the verified model, or an error of one sentence."""
    import sdpa_onnx as so

    model = load_model(with_projections())
    result = so.convert(model, form="ort-mha", runtime=None)
    assert result.facts.form == "ort-mha"
    assert [record.dialect for record in so.find_attention(result)] == ["onnxruntime MultiHeadAttention"]
    with pytest.raises(PlanError) as unknown:
        so.convert(model, form="fused")
    assert str(unknown.value).startswith("There is no form 'fused'. Known: decomposed, attention, blocked, ort-mha, ")
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, softcap=3.0)
    with pytest.raises(ModelError) as refused:
        so.convert(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32), form="ort-mha")
    assert str(refused.value) == (
        "No attention of the model can be converted to 'ort-mha': 'attention': MultiHeadAttention has no softcap."
    )


def test_export_in_other_forms() -> None:
    """An export has any form at its own opset, cache included, or an error states why not."""
    from sdpa_onnx.errors import ExportError
    from sdpa_onnx.workflows.export.export_target import export_target

    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True, has_past=True)
    for form in (Form.ATTENTION, Form.BLOCKED, Form.ORT_MHA):
        model = export_target(spec, opset=23, form=form, dtype=Dtype.FLOAT32)
        assert (model.facts.form, model.opset, model.is_bare_attention) == (form, 23, True)
        assert model.output_names == ("Y", "present_key", "present_value")
    with pytest.raises(ExportError) as raised:
        export_target(spec, opset=23, form=Form.ORT_GQA, dtype=Dtype.FLOAT32)
    assert str(raised.value).startswith("Attention 'attention' cannot be written as 'ort-gqa': ")


def test_lengths_are_one_only_where_the_form_must() -> None:
    """Only for a causal spec without a past, and only in a form that is requested by name."""
    from sdpa_onnx.workflows.export.export_target import has_one_length

    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True)
    others = (replace(spec, is_causal=False), replace(spec, has_past=True), "decoder-self")
    assert has_one_length(spec, "ort-gqa")
    assert not any(has_one_length(spec, form) for form in ("ort-mha", "attention", "auto", None))
    assert not any(has_one_length(other, "ort-gqa") for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 23])
def test_export_ties_lengths_where_the_form_must(opset: int) -> None:
    """Causal attention without a past shares one length in the form that is for such; other targets are refused."""
    from sdpa_onnx.errors import ExportError
    from sdpa_onnx.workflows.export.export_target import export_target

    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True)
    model = export_target(spec, opset=opset, form=Form.ORT_GQA, dtype=Dtype.FLOAT32)
    assert (model.facts.form, model.facts.axes) == ("ort-gqa", ("batch_size", "q_seq_len"))
    mha = export_target(spec, opset=opset, form=Form.ORT_MHA, dtype=Dtype.FLOAT32)
    assert mha.facts.axes == ("batch_size", "q_seq_len", "kv_seq_len")
    with pytest.raises(ExportError, match=r"GroupQueryAttention needs as many new keys as queries: "):
        export_target(replace(spec, is_causal=False), opset=opset, form=Form.ORT_GQA, dtype=Dtype.FLOAT32)


@pytest.mark.slow
def test_in_memory_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that computes another function than the model is never returned."""
    import sdpa_onnx as so
    from sdpa_onnx.graph.graph_attention import GraphAttention
    from sdpa_onnx.graph.lower.lower import lower

    model = load_model(with_projections())
    assert so.convert(model, form="ort-mha").facts.form.value == "ort-mha"

    def swapped(
        graph: ir.Model, attention: GraphAttention, form: Form, options: LowerOptions, *, edits: object
    ) -> GraphAttention:
        written = lower(graph, replace(attention, key=attention.value, value=attention.key), form, options)
        return replace(attention, output=written.output)

    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.form_strategy.lower", swapped)
    with pytest.raises(ModelError, match=r"^The result does not compute what the model computes on ort-cpu: "):
        so.convert(model, form="ort-mha")
