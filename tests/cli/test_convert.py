"""`convert`, `inspect` and `verify` of files of other makers, as a user types them."""

import json
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
from sdpa_onnx.workflows.choose_form.form_trial import FormSessions, ProbeAnswer
from tests.cli.invoke import Shell
from tests.workflows.convert_sources import with_padding, with_projections

_LINE = "  Softmax/weights: softmax between two products; 2 heads; d_k 8; scale 0.25; mask bool; BNSH"


def _twice(model: ir.Model, attention: GraphAttention, form: Form, options: LowerOptions) -> GraphAttention:
    """A form that is written with twice the scale and claims to be right."""
    spec = replace(attention.spec, scale=2.0 * attention.spec.scale_value)
    return replace(attention, output=lower(model, replace(attention, spec=spec), form, options).output)


@pytest.fixture
def foreign(shell: Shell) -> Path:
    """A file of another maker in the shell's folder."""
    path = shell.folder / "foreign.onnx"
    onnx.save(with_projections(), path)
    return path


def test_convert_tells_and_writes(shell: Shell, foreign: Path) -> None:
    """A line for each attention, what the proof saw, and where the result is."""
    ended = shell("convert", "foreign.onnx", "-o", "mha.onnx", "--form", "ort-mha")
    assert (ended.code, ended.stderr) == (0, "sdpa-onnx: wrote mha.onnx\n")
    attention, warning, proof, worst = ended.stdout.splitlines()[:4]
    assert (attention, warning) == (f"{_LINE}; converted to ort-mha", f"  warning: {NAN_ROWS}")
    assert proof.startswith("Proof on ort-cpu: ")
    sizes = "batch 1, seq 1; batch 3, seq 2; batch 2, seq 13; batch 5, seq 64"
    assert proof.endswith(f" judgements at 4 sizes ({sizes}), 0 of them against it.")
    assert worst.startswith("Worst output (y): The largest error is ")
    assert onnx.load(shell.folder / "mha.onnx").opset_import[0].version == 18


def test_wrong_rewrite_exits_1(shell: Shell, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence is printed, for people and for programs, and nothing is written."""

    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.form_strategy.lower", _twice)
    ended = shell("convert", "foreign.onnx", "-o", "mha.onnx", "--form", "ort-mha")
    assert ended.code == 1
    assert ended.stderr == (
        "sdpa-onnx: mha.onnx was not written: the result does not compute what the source computes, see above.\n"
    )
    assert "  Softmax/weights (" in ended.stdout
    assert "exceed the proven bound, at worst" in ended.stdout
    assert not (shell.folder / "mha.onnx").exists()


@pytest.mark.slow
def test_wrong_rewrite_as_json(shell: Shell, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence as records."""
    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.form_strategy.lower", _twice)
    listed = shell("convert", "foreign.onnx", "-o", "mha.onnx", "--form", "ort-mha", "--json")
    records = json.loads(listed.stdout)
    assert listed.code == 1
    assert {"attention", "agreement"} <= {record["kind"] for record in records}
    assert {"disagrees"} < {record["outcome"] for record in records}


@pytest.mark.slow
def test_no_empty_rows(shell: Shell) -> None:
    """A mask that is causal but for empty rows is told once; with the option it is causal, and the file says so."""
    onnx.save(with_padding(), shell.folder / "padded.onnx")
    kept = shell("convert", "padded.onnx", "-o", "kept.onnx", "--form", "blocked")
    assert kept.code == 0
    assert kept.stdout.splitlines()[1] == (
        "  warning: its mask is causal except for rows that padding hides entirely, so it is kept as a mask; "
        "convert --no-empty-rows allows is_causal, which skips keys."
    )
    causal = shell("convert", "padded.onnx", "-o", "causal.onnx", "--form", "blocked", "--no-empty-rows")
    assert (causal.code, "warning" in causal.stdout) == (0, False)
    assert "; causal; mask float; BNSH; converted to blocked" in causal.stdout
    notes = [
        {prop.key: prop.value for prop in onnx.load(shell.folder / name).metadata_props}
        for name in ("kept.onnx", "causal.onnx")
    ]
    assert [note.get("sdpa_onnx.assumes") for note in notes] == [None, "every query sees a key"]


def test_nothing_to_convert_exits_1(shell: Shell) -> None:
    """The reason stands in the line of the attention."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, softcap=3.0)
    onnx.save(ir.to_proto(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32)), shell.folder / "capped.onnx")
    ended = shell("convert", "capped.onnx", "-o", "mha.onnx", "--form", "ort-mha")
    assert ended.code == 1
    assert ended.stdout == (
        "  attention: ONNX Attention; 2 heads; d_k 8; scale 0.353553; no mask; softcap 3; BNSH; "
        "not converted: MultiHeadAttention has no softcap.\n"
    )
    assert ended.stderr == (
        "sdpa-onnx: mha.onnx was not written: no attention of it could be converted, see the reasons above.\n"
    )


@pytest.mark.slow
def test_form_that_is_there_already(shell: Shell) -> None:
    """Told, and the copy is equal."""
    ended = shell("convert", "bare.onnx", "-o", "same.onnx", "--form", "attention")
    assert (ended.code, ended.stderr) == (0, "sdpa-onnx: wrote same.onnx, equal to the source\n")
    assert ended.stdout.endswith("; already in form attention: copied unchanged\n")
    assert (shell.folder / "same.onnx").read_bytes() == (shell.folder / "bare.onnx").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "decomposed", "--opset", "18"],
            "The model has opset 23, which cannot be lowered to 18. Leave out --opset, or give 23.",
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
            "--inner is of the form blocked. Leave it out.",
        ),
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "ort-mha", "--scale-placement", "both"],
            "--scale-placement is of the forms decomposed and blocked. Leave it out.",
        ),
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "attention", "--seconds", "3"],
            "--seconds is of --form auto, which times the forms. Leave it out, or give --form auto.",
        ),
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "auto", "--at", "foo=3"],
            "--at foo=3: there is no axis 'foo'; the axes are batch_size, q_seq_len, kv_seq_len.",
        ),
        (
            ["bare.onnx", "-o", "x.onnx", "--form", "attention", "--runtime", "ort-cup"],
            "There is no runtime 'ort-cup'. Did you mean 'ort-cpu'?",
        ),
    ],
    ids=["opset", "file", "no-attention", "folder", "inner", "placement", "seconds", "axis", "runtime"],
)
def test_bad_input(shell: Shell, arguments: list[str], said: str) -> None:
    """One sentence, exit code 2, nothing written."""
    ended = shell("convert", *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"sdpa-onnx: {said}")
    assert not (shell.folder / "x.onnx").exists()


def test_inspect_of_a_foreign_file(shell: Shell, foreign: Path) -> None:
    """It is read, its axes are tried, and each attention is judged on the way."""
    ended = shell("inspect", "foreign.onnx")
    assert (ended.code, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    head = "foreign.onnx: opset 18, 1 attention"
    assert lines[:4] == [head, _LINE, f"    warning: {NAN_ROWS}", "Dynamic axes: batch, seq"]
    assert "Axes: Every attention is right at 4 sizes on ort-cpu." in lines


def test_attentions_alike_are_told_once(shell: Shell) -> None:
    """Their number, the first of them, and why none of them can be read."""
    nodes = "".join(f"s{i} = MatMul (q, k)  p{i} = Softmax <axis = 1> (s{i})  y{i} = MatMul (p{i}, v)" for i in (0, 1))
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[2, 5, 8] q, float[2, 8, 5] k, float[2, 5, 8] v)'
    same = onnx.parser.parse_model(f"{head} => (float[2, 5, 8] y0, float[2, 5, 8] y1) {{{nodes}}}")
    for node in same.graph.node:
        node.name = node.output[0]
    onnx.save(same, shell.folder / "two.onnx")
    ended = shell("convert", "two.onnx", "-o", "x.onnx", "--form", "attention")
    assert ended.code == 1
    assert ended.stdout == (
        "  2 attentions (first: p0): softmax between two products; not converted, as it cannot be read: "
        "softmax over axis 1 at node p0\n"
    )


def test_a_time_that_is_too_short_names_its_option(
    shell: Shell, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a runtime was given up, known by the outcome of its record, and nowhere else."""
    late = ProbeAnswer(kind=Conformity.CRASHED, message="ort-cpu gave no answer in 0.1 s.", is_timeout=True)
    with monkeypatch.context() as patch:
        patch.setattr("sdpa_onnx.workflows.choose_form.workarounds._KNOWN", {})
        patch.setattr(FormSessions, "ask", lambda *_, **__: late)
        ended = shell("convert", "foreign.onnx", "-o", "x.onnx", "--form", "blocked")
    assert ended.code == 1
    assert "not converted: ort-cpu gave no answer in 0.1 s: nothing is known of this form." in ended.stdout
    assert ended.stdout.splitlines()[-1] == TIMEOUT_HINT
    again = shell("convert", "foreign.onnx", "-o", "x.onnx", "--form", "blocked")
    assert again.code == 0
    assert TIMEOUT_HINT not in again.stdout


@pytest.mark.slow
def test_auto_races_what_the_opset_can_hold(shell: Shell, foreign: Path) -> None:
    """A form of a later opset is a reason, no failure; nothing of it is timed."""
    times = ("--form", "auto", "--opset", "20", "--at", "seq=8", "--seconds", "0.3")
    ended = shell("convert", "foreign.onnx", "-o", "x.onnx", *times, "--json")
    assert ended.code == 0, ended.stderr
    forms = [record for record in json.loads(ended.stdout) if record["kind"] == "form"]
    (told,) = [record for record in forms if record["arm"] == "attention"]
    assert (told["outcome"], told["opset"], told["probes"]) == ("unsupported", 23, 0)
    assert told["reason"] == "The form needs opset 23, and --opset is 20."
    assert onnx.load(shell.folder / "x.onnx").opset_import[0].version == 20


@pytest.mark.slow
def test_a_fixed_axis_is_told(shell: Shell) -> None:
    """A file that runs at one size only is proved at that, with a word."""
    source = with_projections()
    for initializer in source.graph.initializer:
        if initializer.name in ("apart", "together"):
            fixed = [0, 4, 2, 8] if initializer.name == "apart" else [0, 4, 16]
            initializer.CopyFrom(onnx.numpy_helper.from_array(np.array(fixed), initializer.name))
    onnx.save(source, shell.folder / "fixed.onnx")
    ended = shell("convert", "fixed.onnx", "-o", "x.onnx", "--form", "decomposed", "--scale-placement", "scores")
    assert ended.code == 0, ended.stderr
    proof, told = ended.stdout.splitlines()[2:4]
    assert " judgements at 1 size (batch " in proof
    assert told == (
        "At the other sizes that were tried the file does not run: an axis is fixed inside it, which "
        "`sdpa-onnx inspect` names, so this is proved at one size only."
    )


@pytest.mark.slow
def test_verify_of_a_foreign_file(shell: Shell, foreign: Path) -> None:
    """It is judged where its attention was read."""
    ended = shell("verify", "foreign.onnx", "--json")
    records = json.loads(ended.stdout)
    assert ended.code == 0
    assert "Softmax/weights" in {record["site"] for record in records if record["kind"] == "agreement"}
    assert {record["outcome"] for record in records} == {"ok"}
