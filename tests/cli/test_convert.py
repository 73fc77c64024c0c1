"""`convert`, `inspect` and `verify` on files that another tool exported."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sdpa_onnx.cli.options import TIMEOUT_HINT
from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.found import NAN_ROWS
from sdpa_onnx.graph.lower.lower import lower
from sdpa_onnx.workflows.choose_form.form_trial import FormSessions, ProbeOutcome
from tests.cli.invoke import Shell
from tests.workflows.convert_sources import with_padding, with_projections

_LINE = "- Softmax/weights: softmax between two products; 2 heads; d_k 8; scale 0.25; mask bool; BNSH"


def _twice(
    model: ir.Model, attention: GraphAttention, form: Form, options: LowerOptions, *, edits: object
) -> GraphAttention:
    """Lower to a form with twice the scale, but return it as right."""
    spec = replace(attention.spec, scale=2.0 * attention.spec.scale_value)
    return replace(attention, output=lower(model, replace(attention, spec=spec), form, options).output)


@pytest.fixture
def foreign(shell: Shell) -> Path:
    """A file of another tool in the shell's folder."""
    path = shell.folder / "foreign.onnx"
    onnx.save(with_projections(), path)
    return path


def test_convert_prints_and_writes(shell: Shell, foreign: Path) -> None:
    """The output has the verdict, a line for each attention, and the sizes and the worst output of the proof."""
    ended = shell("convert", "foreign.onnx", "-o", "mha.onnx", "--form", "ort-mha")
    assert (ended.code, ended.stderr) == (0, "")
    text = " ".join(ended.stdout.split())
    assert re.match(
        r"Wrote mha\.onnx with 1 of 1 attention in form ort-mha: all \d+ checks agree on ort-cpu\. - ", text
    )
    assert f"{_LINE}; converted to ort-mha. - Warning: {NAN_ROWS} - Compared with the source at 4 sizes (" in text
    assert "(batch 1, seq 1; batch 3, seq 2; batch 2, seq 13; batch 5, seq 64). - Worst output (y): The largest" in text
    assert onnx.load(shell.folder / "mha.onnx").opset_import[0].version == 18


def test_wrong_rewrite_exits_1(shell: Shell, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence is printed, and nothing is written."""

    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.form_strategy.lower", _twice)
    ended = shell("convert", "foreign.onnx", "-o", "mha.onnx", "--form", "ort-mha")
    assert ended.code == 1
    text = " ".join(ended.stdout.split())
    assert text.startswith(
        "mha.onnx was not written: it differs from the source. The scale is applied to one operand "
        "only, as its square root: wrong on ort-cpu. - "
    )
    assert "exceed the proven bound, at worst" in text
    assert ended.stderr == ""
    assert not (shell.folder / "mha.onnx").exists()


@pytest.mark.slow
def test_wrong_rewrite_as_json(shell: Shell, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence is printed as records."""
    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.form_strategy.lower", _twice)
    listed = shell("convert", "foreign.onnx", "-o", "mha.onnx", "--form", "ort-mha", "--json")
    records = json.loads(listed.stdout)
    assert listed.code == 1
    assert {"attention", "agreement"} <= {record["kind"] for record in records}
    assert {"disagrees"} < {record["outcome"] for record in records}


@pytest.mark.slow
def test_no_empty_rows(shell: Shell) -> None:
    """A mask that is causal except for empty rows is kept; with the option it becomes is_causal, with a note."""
    onnx.save(with_padding(), shell.folder / "padded.onnx")
    kept = shell("convert", "padded.onnx", "-o", "kept.onnx", "--form", "blocked")
    assert kept.code == 0
    assert "; mask float (hides as causal, and more); BNSH; converted to blocked" in " ".join(kept.stdout.split())
    causal = shell("convert", "padded.onnx", "-o", "causal.onnx", "--form", "blocked", "--no-empty-rows")
    assert (causal.code, "Warning" in causal.stdout) == (0, False)
    assert "; causal; mask float; BNSH; converted to blocked" in " ".join(causal.stdout.split())
    notes = [
        {prop.key: prop.value for prop in onnx.load(shell.folder / name).metadata_props}
        for name in ("kept.onnx", "causal.onnx")
    ]
    assert [note.get("sdpa_onnx.assumes") for note in notes] == [None, "every query sees a key"]


def test_nothing_to_convert_exits_1(shell: Shell) -> None:
    """The line of the attention has the reason."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, softcap=3.0)
    onnx.save(ir.to_proto(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32)), shell.folder / "capped.onnx")
    ended = shell("convert", "capped.onnx", "-o", "mha.onnx", "--form", "ort-mha")
    assert ended.code == 1
    assert " ".join(ended.stdout.split()) == (
        "mha.onnx was not written: no attention could be converted. "
        "- attention: ONNX Attention; 2 heads; d_k 8; scale 0.353553 = 1/sqrt(d_k); no mask input; softcap 3; BNSH; "
        "not converted: MultiHeadAttention has no softcap."
    )
    assert ended.stderr == ""


@pytest.mark.slow
def test_file_that_already_has_the_form(shell: Shell) -> None:
    """This is printed, and the copy is identical."""
    ended = shell("convert", "bare.onnx", "-o", "same.onnx", "--form", "attention")
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Wrote same.onnx, identical to the source.\n")
    assert " ".join(ended.stdout.split()).endswith("already in form attention.")
    assert (shell.folder / "same.onnx").read_bytes() == (shell.folder / "bare.onnx").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "decomposed", "--opset", "18"],
            "The model has opset 23, which cannot be lowered to 18. Omit --opset, or pass 23.",
        ),
        (["none.onnx", "-o", "x.onnx", "--form", "attention"], "Cannot read none.onnx: there is no such file."),
        (
            ["product.onnx", "-o", "x.onnx", "--form", "attention"],
            "product.onnx has no attention in it. Neither an operator nor softmax(QK^T) V was found.",
        ),
        (
            ["bare.onnx", "-o", "none/x.onnx", "--form", "attention"],
            "Cannot write none/x.onnx: there is no folder none.",
        ),
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "attention", "--inner", "decomposed"],
            "--inner requires --form blocked. Leave out --inner.",
        ),
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "ort-mha", "--scale-placement", "both"],
            "--scale-placement requires --form decomposed or blocked. Leave out --scale-placement.",
        ),
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "attention", "--seconds", "3"],
            "--seconds requires --form auto, which times the forms. Leave out --seconds.",
        ),
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "auto", "--at", "foo=3"],
            "The model has no axis 'foo'. It has batch_size, q_seq_len, kv_seq_len.",
        ),
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "attention", "--runtime", "ort-cup"],
            "There is no runtime 'ort-cup'. Did you mean 'ort-cpu'?",
        ),
    ],
    ids=["opset", "file", "no-attention", "folder", "inner", "placement", "seconds", "axis", "runtime"],
)
def test_bad_input(shell: Shell, arguments: list[str], message: str) -> None:
    """One message, exit code 2, nothing written."""
    ended = shell("convert", *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"sdpa-onnx: {message}")
    assert not (shell.folder / "x.onnx").exists()


def test_inspect_of_a_foreign_file(shell: Shell, foreign: Path) -> None:
    """The attention is read, the axes are tried, and each attention is verified at every size."""
    ended = shell("inspect", "foreign.onnx")
    assert (ended.code, ended.stderr) == (0, "")
    text = " ".join(ended.stdout.split())
    head = "foreign.onnx: 1 attention, opset 18. Every attention is right at 4 sizes (lengths to 64) on ort-cpu."
    assert text.startswith(f"{head} {_LINE}. - Warning: {NAN_ROWS} - Dynamic axes: batch, seq. - Warning: ")
    assert " - On ort-cpu: 18 nodes (5 MatMul, " in text


def test_identical_attentions_are_printed_once(shell: Shell) -> None:
    """The line has their number, the first of them, and why none of them can be read."""
    nodes = "".join(f"s{i} = MatMul (q, k)  p{i} = Softmax <axis = 1> (s{i})  y{i} = MatMul (p{i}, v)" for i in (0, 1))
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[2, 5, 8] q, float[2, 8, 5] k, float[2, 5, 8] v)'
    same = onnx.parser.parse_model(f"{head} => (float[2, 5, 8] y0, float[2, 5, 8] y1) {{{nodes}}}")
    for node in same.graph.node:
        node.name = node.output[0]
    onnx.save(same, shell.folder / "two.onnx")
    ended = shell("convert", "two.onnx", "-o", "x.onnx", "--form", "attention")
    assert ended.code == 1
    assert " ".join(ended.stdout.split()) == (
        "x.onnx was not written: no attention could be converted. "
        "- 2 attentions (first: p0): softmax between two products; not converted because it cannot be read: "
        "softmax over axis 1 at node p0."
    )


@pytest.mark.slow
def test_timeout_prints_a_hint(shell: Shell, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint about --timeout is printed if a record has the outcome timed out, and only then."""
    late = ProbeOutcome(kind=Conformity.CRASHED, message="ort-cpu gave no answer in 0.1 s.", is_timeout=True)
    with monkeypatch.context() as patch:
        patch.setattr("sdpa_onnx.workflows.choose_form.workarounds._CACHE", {})
        patch.setattr(FormSessions, "run_probe", lambda *_, **__: late)
        ended = shell("convert", "foreign.onnx", "-o", "x.onnx", "--form", "blocked")
    assert ended.code == 1
    text = " ".join(ended.stdout.split())
    assert "not converted: ort-cpu gave no answer in 0.1 s: this form could not be probed." in text
    assert text.endswith(f"- {TIMEOUT_HINT}")
    again = shell("convert", "foreign.onnx", "-o", "x.onnx", "--form", "blocked")
    assert again.code == 0
    assert TIMEOUT_HINT not in again.stdout


@pytest.mark.slow
def test_auto_races_what_the_opset_can_hold(shell: Shell, foreign: Path) -> None:
    """A form that requires a newer opset is unsupported, no failure, and is not timed."""
    times = ("--form", "auto", "--opset", "20", "--at", "seq=8", "--seconds", "0.3")
    ended = shell("convert", "foreign.onnx", "-o", "x.onnx", *times, "--json")
    assert ended.code == 0, ended.stderr
    forms = [record for record in json.loads(ended.stdout) if record["kind"] == "form"]
    (attention,) = [record for record in forms if record["arm"] == "attention"]
    assert (attention["outcome"], attention["opset"], attention["probes"]) == ("unsupported", 23, None)
    assert attention["reason"] == "The form needs opset 23, and --opset is 20."
    assert onnx.load(shell.folder / "x.onnx").opset_import[0].version == 20


@pytest.mark.slow
def test_a_fixed_axis_is_reported(shell: Shell) -> None:
    """A file that runs at one size only is proved at that size; a note is printed."""
    source = with_projections()
    for initializer in source.graph.initializer:
        if initializer.name in ("apart", "together"):
            fixed = [0, 4, 2, 8] if initializer.name == "apart" else [0, 4, 16]
            initializer.CopyFrom(onnx.numpy_helper.from_array(np.array(fixed), initializer.name))
    onnx.save(source, shell.folder / "fixed.onnx")
    ended = shell("convert", "fixed.onnx", "-o", "x.onnx", "--form", "decomposed", "--scale-placement", "scores")
    assert ended.code == 0, ended.stderr
    text = " ".join(ended.stdout.split())
    assert "- Compared with the source at 1 size (batch " in text
    assert (
        "- This is proved at one size only: the file does not run at the other sizes that were tried, because an axis "
        "is fixed inside it. `sdpa-onnx inspect` names the axis." in text
    )


@pytest.mark.slow
def test_verify_of_a_foreign_file(shell: Shell, foreign: Path) -> None:
    """The file is verified at the attention that was found in it."""
    ended = shell("verify", "foreign.onnx", "--json")
    records = json.loads(ended.stdout)
    assert ended.code == 0
    assert "Softmax/weights" in {record["site"] for record in records if record["kind"] == "agreement"}
    assert {record["outcome"] for record in records} == {"ok"}
