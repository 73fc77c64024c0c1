"""`--form auto` and workarounds on the command line: what is written, what is told, what stands in the file."""

import json
from pathlib import Path

import pytest

from sdpa_onnx.graph.model import load_model
from tests.cli.invoke import Shell

pytestmark = pytest.mark.alone

_SMALL = ("--q-num-heads", "2", "--head-dim", "8")


@pytest.mark.slow
def test_export_says_what_it_worked_around(shell: Shell) -> None:
    """One line on stderr with the evidence; the file holds a mask, and says why."""
    ended = shell("export", "sdpa", "-o", "x.onnx", "--causal", "--past", *_SMALL, "--json")
    assert ended.code == 0, ended.stderr
    around, wrote = ended.stderr.splitlines()
    told = (
        "sdpa-onnx: worked around on ort-cpu: causal-as-mask. Without causal-as-mask it is wrong for one query and "
        "several new keys (b2_hq2_hkv2_q1_kv3_d8_f32_causal_past4): "
    )
    assert around.startswith(told)
    assert wrote == "sdpa-onnx: wrote x.onnx"
    model = load_model(Path("x.onnx"))
    assert json.loads(model.ir.metadata_props["sdpa_onnx.workarounds"]) == {"sdpa": ["causal-as-mask"]}
    assert shell("verify", "x.onnx", "--json").code == 0


@pytest.mark.slow
def test_export_of_what_is_right_says_nothing(shell: Shell) -> None:
    """One node, as ever."""
    ended = shell("export", "sdpa", "-o", "x.onnx", "--causal", *_SMALL, "--json")
    assert (ended.code, ended.stderr) == (0, "sdpa-onnx: wrote x.onnx\n")
    assert load_model(Path("x.onnx")).node_counts() == {"Attention": 1}


@pytest.mark.slow
def test_convert_writes_anew_what_has_the_form_and_is_wrong(shell: Shell) -> None:
    """A file of somebody else with the node that ort-cpu gets wrong is no "has that form already"."""
    assert (
        shell("export", "sdpa", "-o", "x.onnx", "--causal", "--past", "--runtime", "onnx-reference", *_SMALL).code == 0
    )
    assert load_model(Path("x.onnx")).node_counts() == {"Attention": 1}
    ended = shell("convert", "x.onnx", "-o", "y.onnx", "--form", "attention")
    assert ended.code == 0, ended.stderr
    assert ended.stderr.startswith("sdpa-onnx: worked around on ort-cpu: causal-as-mask. ")
    assert "LessOrEqual" in load_model(Path("y.onnx")).node_counts()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["export", "convert"])
def test_the_fastest_form_is_written_with_its_table(command: str, shell: Shell) -> None:
    """The sizes of the user, a record for each form and size, and the same in the metadata."""
    times = ("--form", "auto", "--at", "q_seq_len=8", "--at", "q_seq_len=32,batch_size=2", "--seconds", "0.3", "--json")
    if command == "export":
        ended = shell("export", "sdpa", "-o", "x.onnx", "--causal", *_SMALL, *times)
    else:
        assert shell("export", "sdpa", "-o", "s.onnx", "--causal", "--opset", "18", *_SMALL).code == 0
        ended = shell("convert", "s.onnx", "-o", "x.onnx", *times)
    assert ended.code == 0, ended.stderr
    forms = [record for record in json.loads(ended.stdout) if record["kind"] == "form"]
    timed = [record for record in forms if record["median_seconds"]]
    assert {(one["sizes"]["batch_size"], one["sizes"]["q_seq_len"]) for one in timed} == {(1, 8), (2, 32)}
    assert sum(record["chosen"] for record in forms) == 2
    assert {record["form"] for record in forms} == {"attention", "decomposed", "ort-mha", "ort-gqa", "blocked"}
    (table,) = json.loads(load_model(Path("x.onnx")).ir.metadata_props["sdpa_onnx.auto"]).values()
    assert len(table["tried"]) == len(forms)
    assert shell("verify", "x.onnx", "--json").code == 0


@pytest.mark.slow
def test_export_says_that_two_lengths_are_one(shell: Shell) -> None:
    """A form for as many keys as queries gets one axis for both, with a word."""
    ended = shell("export", "sdpa", "-o", "x.onnx", "--causal", "--form", "ort-gqa", *_SMALL, "--json")
    assert (ended.code, ended.stderr) == (
        0,
        "sdpa-onnx: query and key share one length, which GroupQueryAttention needs\nsdpa-onnx: wrote x.onnx\n",
    )


def test_sizes_that_are_none_are_refused(shell: Shell) -> None:
    """The option is named."""
    ended = shell("export", "sdpa", "-o", "x.onnx", "--form", "auto", "--at", "q_seq_len")
    assert ended.code == 2
    assert (
        ended.stderr == "sdpa-onnx: --at q_seq_len is not of the form AXIS=N with N at least 1. E.g. q_seq_len=128.\n"
    )


def test_export_refuses_times_without_auto(shell: Shell) -> None:
    """One sentence, and nothing is exported."""
    said = shell.refusal("export", "sdpa", "-o", "x.onnx", "--form", "decomposed", "--at", "q_seq_len=8")
    assert said == "--at is of --form auto, which times the forms. Leave it out, or give --form auto."


@pytest.mark.slow
def test_export_keeps_the_opset_that_is_asked_for(shell: Shell) -> None:
    """A form that needs a later one is told and not raced."""
    times = ("--form", "auto", "--opset", "18", "--at", "q_seq_len=8", "--seconds", "0.3")
    ended = shell("export", "sdpa", "-o", "x.onnx", *_SMALL, *times, "--json")
    assert ended.code == 0, ended.stderr
    assert load_model(Path("x.onnx")).opset == 18
    told = [one for one in json.loads(ended.stdout) if one["kind"] == "form" and one["arm"] == "attention"]
    assert [(one["reason"], one["median_seconds"]) for one in told] == [
        ("The form needs opset 23, and --opset is 18.", 0.0)
    ]
