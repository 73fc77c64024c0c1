"""`--form auto` and workarounds on the command line: the file, its metadata and the messages."""

import json
from pathlib import Path

import pytest

from sdpa_onnx.graph.model import load_model
from tests.cli.invoke import Shell

pytestmark = pytest.mark.alone

_SMALL = ("--q-num-heads", "2", "--head-dim", "8")


@pytest.mark.slow
def test_export_prints_its_workaround(shell: Shell) -> None:
    """One line on stderr has the evidence; the file contains a mask and the reason for it."""
    ended = shell("export", "sdpa", "-o", "x.onnx", "--causal", "--past", *_SMALL, "--json")
    assert ended.code == 0, ended.stderr
    around, wrote = ended.stderr.splitlines()
    expected = (
        "sdpa-onnx: worked around on ort-cpu: causal-as-mask. Without causal-as-mask it is wrong for one query and "
        "several new keys (b2_hq2_hkv2_q1_kv3_d8_f32_causal_past4): "
    )
    assert around.startswith(expected)
    assert wrote == "sdpa-onnx: wrote x.onnx"
    model = load_model(Path("x.onnx"))
    assert json.loads(model.ir.metadata_props["sdpa_onnx.workarounds"]) == {"sdpa": ["causal-as-mask"]}
    assert shell("verify", "x.onnx", "--json").code == 0


@pytest.mark.slow
def test_export_without_workaround_prints_none(shell: Shell) -> None:
    """The file has one node, and stderr only names the file."""
    ended = shell("export", "sdpa", "-o", "x.onnx", "--causal", *_SMALL, "--json")
    assert (ended.code, ended.stderr) == (0, "sdpa-onnx: wrote x.onnx\n")
    assert load_model(Path("x.onnx")).node_counts() == {"Attention": 1}


@pytest.mark.slow
def test_convert_rewrites_a_file_that_has_the_form_and_is_wrong(shell: Shell) -> None:
    """A file that already has the form, with a node that ort-cpu gets wrong, is not copied unchanged."""
    assert (
        shell("export", "sdpa", "-o", "x.onnx", "--causal", "--past", "--runtime", "onnx-reference", *_SMALL).code == 0
    )
    assert load_model(Path("x.onnx")).node_counts() == {"Attention": 1}
    ended = shell("convert", "x.onnx", "-o", "y.onnx", "--form", "attention")
    assert ended.code == 0, ended.stderr
    assert "\n- Worked around on ort-cpu: causal-as-mask. " in ended.stdout
    assert "LessOrEqual" in load_model(Path("y.onnx")).node_counts()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["export", "convert"])
def test_the_fastest_form_is_written_with_its_table(command: str, shell: Shell) -> None:
    """The user's sizes are timed; there is a record for each form and size, and the same in the metadata."""
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
def test_export_prints_that_two_lengths_are_one(shell: Shell) -> None:
    """A form that requires as many keys as queries has one axis for both; a note is printed."""
    ended = shell("export", "sdpa", "-o", "x.onnx", "--causal", "--form", "ort-gqa", *_SMALL, "--json")
    assert (ended.code, ended.stderr) == (
        0,
        (
            "sdpa-onnx: query and key share one length, because GroupQueryAttention requires it\n"
            "sdpa-onnx: wrote x.onnx\n"
        ),
    )


def test_malformed_sizes_are_rejected(shell: Shell) -> None:
    """The message names the option."""
    ended = shell("export", "sdpa", "-o", "x.onnx", "--form", "auto", "--at", "q_seq_len")
    assert ended.code == 2
    assert (
        ended.stderr == "sdpa-onnx: --at q_seq_len is not of the form AXIS=N with N at least 1. E.g. q_seq_len=128.\n"
    )


def test_export_rejects_sizes_without_auto(shell: Shell) -> None:
    """One message, and nothing is exported."""
    message = shell.refusal("export", "sdpa", "-o", "x.onnx", "--form", "decomposed", "--at", "q_seq_len=8")
    assert message == "--at requires --form auto, which times the forms. Leave out --at."


@pytest.mark.slow
def test_export_keeps_the_requested_opset(shell: Shell) -> None:
    """A form that requires a newer opset is reported and not timed."""
    times = ("--form", "auto", "--opset", "18", "--at", "q_seq_len=8", "--seconds", "0.3")
    ended = shell("export", "sdpa", "-o", "x.onnx", *_SMALL, *times, "--json")
    assert ended.code == 0, ended.stderr
    assert load_model(Path("x.onnx")).opset == 18
    listed = [one for one in json.loads(ended.stdout) if one["kind"] == "form" and one["arm"] == "attention"]
    assert [(one["reason"], one["median_seconds"]) for one in listed] == [
        ("The form needs opset 23, and --opset is 18.", None)
    ]
