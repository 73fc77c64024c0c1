"""A wrong rewrite cannot be saved: every planted fault of a form, and every planted misreading, is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.records.records import Outcome, Subject
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import FoundAttentions
from sdpa_onnx.graph.lower.lower import lower
from sdpa_onnx.graph.nodes import Nodes
from sdpa_onnx.workflows.convert.convert_file import Conversion, ProofOptions, convert_and_prove
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from tests.workflows.convert_sources import with_projections

_SPEC = AttentionSpec(
    q_num_heads=4, kv_num_heads=2, head_dim=8, v_head_dim=8, is_causal=True, mask=MaskKind.BOOL, softcap=2.0
)
_WINDOW = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, left_window=4)

Fault = Callable[[ir.Model, GraphAttention], GraphAttention]


def _with_spec(**changes: object) -> Fault:
    """The attention that a form is written from, with changed fields."""
    return lambda _, attention: replace(attention, spec=replace(attention.spec, **changes))  # type: ignore[arg-type]


def _scaled(times: float) -> Fault:
    return lambda _, attention: replace(
        attention, spec=replace(attention.spec, scale=times * attention.spec.scale_value)
    )


def _extra(model: ir.Model, attention: GraphAttention) -> tuple[Nodes, Callable[[], None]]:
    """A writer of nodes, and what puts them before the attention."""
    nodes, place = Nodes("planted"), attention.output.producer()
    assert place is not None
    return nodes, lambda: model.graph.insert_before(place, nodes.written)


def _without_mask(_: ir.Model, attention: GraphAttention) -> GraphAttention:
    return replace(attention, attn_mask=None, spec=replace(attention.spec, mask=MaskKind.NONE))


def _mask_inverted(model: ir.Model, attention: GraphAttention) -> GraphAttention:
    nodes, put = _extra(model, attention)
    mask = nodes("Not", attention.attn_mask, shape=attention.attn_mask.shape)  # type: ignore[union-attr]
    put()
    return replace(attention, attn_mask=mask)


def _swapped(_: ir.Model, attention: GraphAttention) -> GraphAttention:
    return replace(attention, key=attention.value, value=attention.key)


def _heads_tiled(model: ir.Model, attention: GraphAttention) -> GraphAttention:
    nodes, put = _extra(model, attention)
    shape = ir.Shape([attention.key.shape[0], 4, attention.key.shape[2], 8])  # type: ignore[index]
    tiled = [nodes("Concat", value, value, axis=1, shape=shape) for value in (attention.key, attention.value)]
    put()
    spec = replace(attention.spec, kv_num_heads=4)
    return replace(attention, key=tiled[0], value=tiled[1], spec=spec)


def _last_keys_dropped(model: ir.Model, attention: GraphAttention) -> GraphAttention:
    """A blocked form that omits its last, ragged block."""
    nodes, put = _extra(model, attention)
    ends = (nodes.integers(0), nodes.integers(-1), nodes.integers(2))
    shape = ir.Shape([attention.key.shape[0], 2, None, 8])  # type: ignore[index]
    cut = [nodes("Slice", value, *ends, shape=shape) for value in (attention.key, attention.value)]
    put()
    return replace(attention, key=cut[0], value=cut[1])


_FAULTS: dict[str, tuple[AttentionSpec, Fault]] = {
    "scale-twice": (_SPEC, _scaled(2.0)),
    "scale-one-percent": (_SPEC, _scaled(1.01)),
    "causal-dropped": (_SPEC, _with_spec(is_causal=False)),
    "causal-off-by-one": (_SPEC, _with_spec(is_causal=False, right_window=1)),
    "mask-dropped": (_SPEC, _without_mask),
    "mask-inverted": (_SPEC, _mask_inverted),
    "heads-tiled": (_SPEC, _heads_tiled),
    "key-value-swapped": (_SPEC, _swapped),
    "softcap-dropped": (_SPEC, _with_spec(softcap=0.0)),
    "window-off-by-one": (_WINDOW, _with_spec(left_window=5)),
    "last-keys-dropped": (_WINDOW, _last_keys_dropped),
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault], None]:
    """Replace the writer of forms by a faulty one that claims to have written the requested form."""

    def plant(fault: Fault) -> None:
        def faulty(
            model: ir.Model, attention: GraphAttention, form: Form, options: LowerOptions, *, edits: object
        ) -> GraphAttention:
            written = lower(model, fault(model, attention), form, options)
            return replace(attention, output=written.output)

        monkeypatch.setattr("sdpa_onnx.workflows.choose_form.form_strategy.lower", faulty)

    return plant


def _converted(tmp_path: Path, source: ir.Model | onnx.ModelProto) -> Conversion:
    path = tmp_path / "source.onnx"
    onnx.save(ir.to_proto(source) if isinstance(source, ir.Model) else source, path)
    return convert_and_prove(
        path, tmp_path / "result.onnx", Form.DECOMPOSED, again=True, proof=ProofOptions(effort=RunEffort(count=3))
    )


def _sites_against(done: Conversion) -> set[tuple[Subject, str]]:
    assert done.proof is not None
    return {(record.subject, record.site) for record in done.proof.records if record.outcome is not Outcome.OK}


@pytest.mark.parametrize("spec", [_SPEC, _WINDOW], ids=["masked", "window"])
def test_right_rewrite_is_written(tmp_path: Path, spec: AttentionSpec) -> None:
    """Without a fault the same models pass."""
    done = _converted(tmp_path, build_attention_model(spec, opset=25, dtype=Dtype.FLOAT32))
    assert _sites_against(done) == set()
    assert done.path is not None
    assert done.path.exists()


# The faults for which the default tests have no time.
_LONG = ("scale-twice", "causal-dropped", "mask-dropped", "mask-inverted", "key-value-swapped", "softcap-dropped")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _LONG)) for name in _FAULTS])
def test_wrong_rewrite_is_refused(tmp_path: Path, planted: Callable[[Fault], None], name: str) -> None:
    """The judgements of the attention and of the output both fail, and nothing is written."""
    spec, fault = _FAULTS[name]
    planted(fault)
    done = _converted(tmp_path, build_attention_model(spec, opset=25, dtype=Dtype.FLOAT32))
    assert {(Subject.ATTENTION, "attention"), (Subject.OUTPUT, "Y")} <= _sites_against(done)
    assert (done.is_right, done.path) == (False, None)
    assert [path.name for path in tmp_path.iterdir()] == ["source.onnx"]


def test_changed_neighbour_is_refused(tmp_path: Path, planted: Callable[[Fault], None]) -> None:
    """Every attention is right, and the output is wrong: another weight was changed by a thousandth."""

    def change(model: ir.Model, attention: GraphAttention) -> GraphAttention:
        weight = model.graph.initializers["wo"]
        weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.001))  # type: ignore[union-attr]
        return attention

    planted(change)
    done = _converted(tmp_path, with_projections())
    against = _sites_against(done)
    assert (Subject.OUTPUT, "y") in against
    assert {subject for subject, _ in against} == {Subject.OUTPUT}
    assert done.path is None


def test_whole_numbers_are_compared_exactly(tmp_path: Path, planted: Callable[[Fault], None]) -> None:
    """An integer output that differs is reported as such."""

    def change(model: ir.Model, attention: GraphAttention) -> GraphAttention:
        (node,) = [node for node in model.graph if node.op_type == "ArgMax"]
        node.op_type = "ArgMin"
        return attention

    planted(change)
    done = _converted(tmp_path, with_projections())
    assert _sites_against(done) == {(Subject.OUTPUT, "best")}
    assert done.proof is not None
    diagnosis = next(record.diagnosis for record in done.proof.records if record.outcome is not Outcome.OK)
    assert diagnosis.endswith("elements differ from the source.")


_MISREADINGS: dict[str, Callable[[GraphAttention], GraphAttention]] = {
    "scale": lambda found: replace(found, spec=replace(found.spec, scale=1.01 * found.spec.scale_value)),
    "mask-ignored": lambda found: replace(found, attn_mask=None, spec=replace(found.spec, mask=MaskKind.NONE)),
    "other-value": lambda found: replace(found, value=found.key),
}


@pytest.mark.parametrize("name", _MISREADINGS)
def test_wrong_reading_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What was misread is written consistently, so that every attention of the result agrees with its reading:
    the source in float64 and the end do not.
    """

    def misread(model: ir.Model, *, rows_may_be_empty: bool, keeps_outputs: bool) -> FoundAttentions:
        findings = find_attentions(model, rows_may_be_empty=rows_may_be_empty, keeps_outputs=keeps_outputs)
        found = [replace(one, attention=_MISREADINGS[name](one.attention)) for one in findings.found if one.attention]
        return replace(findings, found=tuple(found))

    monkeypatch.setattr("sdpa_onnx.workflows.check.lifted_model.find_attentions", misread)
    done = _converted(tmp_path, with_projections())
    against = _sites_against(done)
    assert {subject for subject, _ in against} == {Subject.READING, Subject.OUTPUT}
    assert (Subject.OUTPUT, "y") in against
    assert done.path is None
    assert done.proof is not None
    diagnoses = [record.diagnosis for record in done.proof.records if record.subject is Subject.READING]
    misread = "It was misread: the source in float64 differs from the attention that was read."
    assert any(text.startswith(misread) for text in diagnoses)


_COSINE = """
<ir_version: 10, opset_import: ["" : 23]>
cosine (float[b,4,q,8] x, float[b,4,kv,8] k, float[b,4,kv,8] v) => (float[b,4,q,8] y)
<float[4,1,1] logs = {0.7, 2.3, 4.1, 6.0}, float cap = {4.6}>
{
  qn = LpNormalization (x)  kn = LpNormalization (k)  kt = Transpose <perm = [0, 1, 3, 2]> (kn)  s = MatMul (qn, kt)
  c = Clip (logs, , cap)  t = Exp (c)  w = Mul (s, t)  p = Softmax (w)  y = MatMul (p, v)
}
"""
_CAPPED = np.exp(np.minimum(np.array([0.7, 2.3, 4.1, 6.0], np.float32), np.float32(4.6))).reshape(4, 1, 1)
_TEMPERATURES = {
    "right": _CAPPED,
    "another-head": np.roll(_CAPPED, 1, axis=0),
    "mean": np.full_like(_CAPPED, _CAPPED.mean()),
    "no-cap": np.exp(np.array([0.7, 2.3, 4.1, 6.0], np.float32)).reshape(4, 1, 1),
}


@pytest.mark.parametrize("name", _TEMPERATURES)
def test_wrong_temperature_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A reading whose query is multiplied by another temperature than that of its head is refused."""

    def misread(model: ir.Model, *, rows_may_be_empty: bool, keeps_outputs: bool) -> FoundAttentions:
        findings = find_attentions(model, rows_may_be_empty=rows_may_be_empty, keeps_outputs=keeps_outputs)
        (one,) = findings.found
        product = one.attention.query.producer() if one.attention is not None else None
        assert product is not None
        if product.op_type == "Mul":  # the form is read back without it
            temperature = ir.Value(name="planted", const_value=ir.tensor(_TEMPERATURES[name], name="planted"))
            findings.model.graph.initializers.add(temperature)
            product.replace_input_with(1, temperature)
        return findings

    monkeypatch.setattr("sdpa_onnx.workflows.check.lifted_model.find_attentions", misread)
    done = _converted(tmp_path, onnx.parser.parse_model(_COSINE))
    assert done.is_right is (name == "right")
    wrong = {Subject.READING, Subject.OUTPUT} if name != "right" else set()
    assert {subject for subject, _ in _sites_against(done)} == wrong
