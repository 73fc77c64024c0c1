"""`verify` and `export`: a right file passes, a wrong one is reported as wrong with evidence."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.cli.invoke import Ended, Shell


def _records(ended: Ended) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(ended.stdout)
    return found


def _attention(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == "Attention")


def _set(node: onnx.NodeProto, name: str, value: float) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def _scaled(model: onnx.ModelProto) -> None:
    _set(_attention(model), "scale", 1.01 / 8**0.5)


def _causal(model: onnx.ModelProto) -> None:
    _set(_attention(model), "is_causal", 1)


def _capped(model: onnx.ModelProto) -> None:
    _set(_attention(model), "softcap", 5.0)


def _swapped(model: onnx.ModelProto) -> None:
    node = _attention(model)
    node.input[1], node.input[2] = node.input[2], node.input[1]


_FAULTS = {"scale": _scaled, "causal": _causal, "softcap": _capped, "key-for-value": _swapped}


@pytest.mark.parametrize("name", ["bare.onnx", "decomposed.onnx", "causal.onnx"])
def test_right_file(shell: Shell, name: str) -> None:
    """An exported file is right in every check, and its axes are proved."""
    ended = shell("verify", name, "--json")
    assert (ended.code, ended.stderr) == (0, "")
    records = _records(ended)
    assert {record["outcome"] for record in records} == {"ok"}
    judged = [(record["inputs"], record["verdict"]) for record in records if record["kind"] == "agreement"]
    assert judged[:3] == [(f"spread {spread}", "ok") for spread in (0.3, 1, 4)]
    assert {str(inputs).split()[0] for inputs, _ in judged[3:]} == {"probe"}
    (proof,) = [record for record in records if record["kind"] == "export"]
    assert (proof["sizes_tried"], proof["baked"]) == (8, [])


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(spoil, id=name, marks=() if name == "scale" else pytest.mark.slow)
        for name, spoil in _FAULTS.items()
    ],
)
def test_wrong_attention_node(shell: Shell, spoil: Callable[[onnx.ModelProto], None]) -> None:
    """A node that does not match its metadata is wrong: by the contradiction, or by numbers where specs agree."""
    model = onnx.load("bare.onnx")
    spoil(model)
    onnx.save(model, "wrong.onnx")
    ended = shell("verify", "wrong.onnx", "--json")
    assert (ended.code, ended.stderr) == (1, "")
    wrong = [record for record in _records(ended) if record["outcome"] == "disagrees"]
    judged = [record for record in wrong if record["kind"] == "agreement"]
    assert judged
    for record in judged:
        assert record["verdict"] == "wrong"
        is_stated = record["subject"] == "reading" and "in the metadata" in str(record["reason"])
        assert is_stated or float(str(record["max_bound_ratio"])) > 1
        assert record["reason"] == record["diagnosis"] != ""


@pytest.mark.slow
def test_wrong_scale_constant_of_a_decomposed_graph(shell: Shell) -> None:
    """The scale constant of a decomposed graph, off by 1 %, contradicts the metadata; the nodes count."""
    model = onnx.load("decomposed.onnx")
    (scale,) = [
        tensor for tensor in model.graph.initializer if np.isclose(numpy_helper.to_array(tensor), 8**-0.25).all()
    ]
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.005), scale.name))
    onnx.save(model, "wrong.onnx")
    ended = shell("verify", "wrong.onnx", "--json")
    assert ended.code == 1
    (wrong,) = (record for record in _records(ended) if record["outcome"] == "disagrees")
    assert (wrong["subject"], wrong["verdict"]) == ("reading", "wrong")
    assert "scale 0.353553 in the metadata, 0.35" in str(wrong["reason"])


@pytest.mark.slow
def test_swapped_inputs_of_a_decomposed_graph(shell: Shell) -> None:
    """Swapped key and value in the graph are reported as wrong."""
    model = onnx.load("decomposed.onnx")
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = {"K": "V", "V": "K"}.get(name, name)
    onnx.save(model, "wrong.onnx")
    assert shell("verify", "wrong.onnx", "--json").code == 1


@pytest.mark.slow
def test_wrong_file_as_text(shell: Shell) -> None:
    """Without --json, the text has the verdict, the evidence and the file."""
    model = onnx.load("bare.onnx")
    _scaled(model)
    onnx.save(model, "wrong.onnx")
    ended = shell("verify", "wrong.onnx")
    text = " ".join(ended.stdout.split())
    assert ended.code == 1
    assert text.startswith("The metadata contradicts the nodes of 'sdpa': scale 0.353553 in the metadata, 0.357089 in ")
    assert "the nodes: wrong on ort-cpu. - The axes batch_size, q_seq_len and kv_seq_len are dynamic: " in text
    assert text.count("in the metadata") == 1


def test_sizes_and_inputs_that_are_given(shell: Shell) -> None:
    """Given arrays are verified unchanged, and no axis is tried with them."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((1, 2, 5, 8), dtype=np.float32) for name in "QKV"}
    np.savez("i.npz", **arrays)
    ended = shell("verify", "bare.onnx", "--inputs", "i.npz", "--json")
    assert ended.code == 0
    (record,) = _records(ended)
    assert (record["kind"], record["inputs"], record["verdict"]) == ("agreement", "given", "ok")
    assert record["sizes"] == {"batch_size": 1, "q_seq_len": 5, "kv_seq_len": 5, "head_dim": 8, "q_num_heads": 2}


def test_size_that_is_fixed_by_the_user(shell: Shell) -> None:
    """The sizes of --size are used; the others are chosen."""
    ended = shell("verify", "bare.onnx", "--size", "q_seq_len=7", "--size", "kv_seq_len=9", "--json")
    ladder = [record for record in _records(ended) if str(record.get("inputs")).startswith("spread")]
    sizes = [record["sizes"] for record in ladder]
    assert ended.code == 0
    assert [(size["q_seq_len"], size["kv_seq_len"]) for size in sizes] == [(7, 9)] * 3  # type: ignore[index]


def test_fixed_axis_of_a_file(shell: Shell) -> None:
    """A Reshape with a constant batch: the exit code is 1, and the record names the axis and the node."""
    ended = shell("verify", "fixed.onnx", "--json")
    assert ended.code == 1
    (proof,) = [record for record in _records(ended) if record["kind"] == "export"]
    baked = [(axis["axis"], axis["node"]) for axis in proof["baked"]]  # type: ignore[attr-defined]
    assert baked == [("batch_size", "node_view")]
    assert str(proof["reason"]).startswith("axis 'batch_size' is fixed at 'node_view' (batch_size 2 works, ")


@pytest.mark.slow
def test_export_writes_what_it_proved(shell: Shell) -> None:
    """A user's module is written only after it is proved; stderr has the path."""
    ended = shell("export", "mods.py:Right", "-o", "right.onnx", "--json")
    assert (ended.code, ended.stderr) == (0, "sdpa-onnx: wrote right.onnx\n")
    records = _records(ended)
    assert {record["outcome"] for record in records} == {"ok"}
    assert records[0]["kind"] == "export"
    assert records[0]["sizes_tried"] == 8
    again = shell("verify", "right.onnx", "--against", "mods.py:Right", "--json")
    assert again.code == 0
    assert any(record.get("subject") == "output" for record in _records(again))


@pytest.mark.slow
def test_plain_attention_of_a_user(shell: Shell) -> None:
    """A module of attention only, with the user's own input names, exports and verifies."""
    ended = shell("export", "mods.py:Plain", "-o", "plain.onnx", "--json")
    assert (ended.code, ended.stderr) == (0, "sdpa-onnx: wrote plain.onnx\n")
    assert shell("verify", "plain.onnx", "--json").code == 0


def test_export_that_is_wrong_is_not_written(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the runtime computes something else, the file is not written, and the old one stays."""
    from tests.sweep.fakes import Faulty, plant

    plant(monkeypatch, Faulty(fault=lambda _, out: {name: array * np.float32(1.01) for name, array in out.items()}))
    Path("x.onnx").write_bytes(b"old")
    ended = shell("export", "sdpa", "-o", "x.onnx", "--q-num-heads", "2", "--head-dim", "8", "--json")
    assert ended.code == 1
    message = "sdpa-onnx: x.onnx was not written: On ort-cpu form 'attention' is wrong for "
    assert ended.stderr.startswith(message)
    assert ended.stderr.endswith(". Choose another form, opset or runtime.\n")
    assert Path("x.onnx").read_bytes() == b"old"
    assert {record["outcome"] for record in _records(ended)} >= {"disagrees"}


def test_inspect_prints_the_content_of_a_file(shell: Shell) -> None:
    """The verdict, then figures, axes and executed nodes, one line each; with --quiet only the verdict."""
    ended = shell("inspect", "causal.onnx")
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "causal.onnx: 1 attention, opset 23. Every attention is right at 4 sizes (lengths",
        "to 97) on ort-cpu.",
        "- sdpa: ONNX Attention; 2 heads; d_k 8; scale 0.353553 = 1/sqrt(d_k); causal; no",
        "  mask input; BNSH.",
        "- Dynamic axes: batch_size, q_seq_len, kv_seq_len.",
        "- On ort-cpu: 1 node (1 Attention), float32.",
    ]
    assert shell("inspect", "causal.onnx", "-q").stdout.splitlines() == ended.stdout.splitlines()[:2]


def test_an_unusual_scale_is_named(shell: Shell) -> None:
    """inspect, verify and export name it with its factor; verify adds what can show whether it is intended."""
    (shell.folder / "scaled.py").write_text(
        "from torch import nn, randn\n"
        "from torch.nn.functional import scaled_dot_product_attention\n\n\n"
        "class Scaled(nn.Module):\n"
        "    def forward(self, q):\n"
        "        return 2 * scaled_dot_product_attention(q, q, q, scale=1.02 * 8**-0.5)\n\n"
        "    def sample_inputs(self):\n"
        "        return (randn(2, 2, 5, 8),)\n"
    )
    named = "scale 0.360624 = 1.02/sqrt(d_k), not the usual 1/sqrt(d_k)"
    exported = shell("export", "scaled.py:Scaled", "-o", "scaled.onnx")
    inspected = shell("inspect", "scaled.onnx", "--no-run")
    verified = shell("verify", "scaled.onnx")
    against = shell("verify", "scaled.onnx", "--against", "scaled.py:Scaled")
    assert [one.code for one in (exported, inspected, verified, against)] == [0, 0, 0, 0]
    texts = [" ".join(one.stdout.split()) for one in (exported, inspected, verified, against)]
    assert [named in text for text in texts] == [True] * 4
    ask = "Only the module can show whether that is intended: --against FILE.py:Class."
    assert [ask in text for text in texts] == [False, False, True, False]
    assert "off the file's own would be found." in texts[2]
    usual = shell("verify", "bare.onnx")
    assert "scale" not in usual.stdout.replace("A runtime whose scale", "")


def test_verdict_first(shell: Shell) -> None:
    """One sentence; what was proved follows; --quiet stops after it, --verbose adds every check; all exit with 0."""
    plain, quiet, verbose = (shell("verify", "bare.onnx", *more) for more in ([], ["--quiet"], ["--verbose"]))
    assert {ended.code for ended in (plain, quiet, verbose)} == {0}
    verdict, *details = plain.stdout.splitlines()
    assert re.fullmatch(r"All \d+ checks agree on ort-cpu\.", verdict)
    assert quiet.stdout == f"{verdict}\n"
    assert quiet.stderr == ""
    assert len(details) < 8
    assert verbose.stdout.startswith(plain.stdout)
    assert "\nChecks\n" in verbose.stdout
    assert verbose.stdout.count("probe ") > 3
