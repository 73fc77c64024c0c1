"""`--expect` of `verify` and `run`: known findings pass, new ones fail, vanished ones are reported."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.invoke import Shell
from tests.sweep.fakes import Faulty, plant

_SUITE = """\
name = "one"
opsets = [23]
spreads = [1.0]
[base]
q_seq_len = 8
q_num_heads = 2
head_dim = 8
[[vary]]
targets = ["sdpa"]
"""
_KNOWN = '[[known]]\nkind = "agreement"\nruntime = "ort-cpu"\nverdict = "wrong"\nwhy = "issue 1"\n'
_AXES = '[[known]]\nkind = "export"\nruntime = "*"\nwhy = "issue 2"\n'


@pytest.fixture
def wrong(shell: Shell) -> Shell:
    """A folder in which the scale of wrong.onnx differs from its metadata."""
    model = onnx.load("bare.onnx")
    (node,) = [node for node in model.graph.node if node.op_type == "Attention"]
    node.attribute.append(onnx.helper.make_attribute("scale", 0.5))
    onnx.save(model, "wrong.onnx")
    return shell


@pytest.mark.slow
def test_verify_with_known_findings(wrong: Shell) -> None:
    """A wrong file passes only if each of its findings is listed."""
    bad = [record["kind"] for record in json.loads(wrong("verify", "wrong.onnx", "--json").stdout)]
    assert "agreement" in bad
    Path("known.toml").write_text(_KNOWN.replace("ort-cpu", "torch"))
    other = wrong("verify", "wrong.onnx", "--json", "--expect", "known.toml")
    assert other.code == 1
    assert "sdpa-onnx: new: wrong.onnx, ort-cpu" in other.stderr
    Path("known.toml").write_text(_KNOWN + _AXES)
    known = wrong("verify", "wrong.onnx", "--json", "--expect", "known.toml")
    assert known.code == 0, known.stderr
    assert known.stderr.startswith("sdpa-onnx: Compared with the known findings: 0 new, ")
    assert json.loads(known.stdout)


def test_verify_reports_vanished_findings(shell: Shell) -> None:
    """A right file passes, and the entries about it are reported as vanished."""
    Path("known.toml").write_text(_KNOWN)
    ended = shell("verify", "bare.onnx", "--expect", "known.toml")
    assert ended.code == 0
    first, second = ended.stderr.splitlines()
    assert first == "sdpa-onnx: Compared with the known findings: 0 new, 0 known, 1 vanished."
    assert second.startswith("sdpa-onnx: vanished: known.toml, entry 1 (runtime ort-cpu, verdict wrong; issue 1): its ")
    assert second.endswith(" rows are ok now. Remove the entry.")


@pytest.mark.parametrize("command", [("verify", "bare.onnx"), ("run",)], ids=lambda words: words[0])
def test_a_mistake_in_the_file_costs_no_work(shell: Shell, command: tuple[str, ...]) -> None:
    """It is reported before a model is loaded or a folder is created."""
    Path("known.toml").write_text('[[known]]\nkind = "agreement"\n')
    sentence = "known.toml, entry 1: 'why' is missing. State why this is known: a link or a sentence."
    assert shell.refusal(*command, "--expect", "known.toml") == sentence


@pytest.mark.slow
def test_run_with_known_findings(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with known findings passes; the folder stores them, so that the report can be rendered again."""
    scaled = Faulty(fault=lambda _, out: {name: array * np.float32(1.01) for name, array in out.items()})
    Path("one.toml").write_text(_SUITE)
    Path("known.toml").write_text(_KNOWN + _AXES)
    plant(monkeypatch, scaled)
    assert shell("run", "one.toml", "--out", "fails").code == 1
    ended = shell("run", "one.toml", "--out", "passes", "--expect", "known.toml")
    assert ended.code == 0, ended.stderr
    text = " ".join(ended.stdout.split())
    assert " Compared with the known findings: 0 new, " in text
    summary = Path("passes/summary.md").read_text()
    assert summary.splitlines()[4].startswith("- Compared with the known findings: 0 new, ")
    assert shell("report", "passes").code == 0
    assert Path("passes/summary.md").read_text() == summary
    assert "Beside" not in Path("fails/summary.md").read_text()
    # --resume without --expect uses the findings that the run folder stores.
    assert shell("run", "one.toml", "--out", "passes", "--resume").code == 0
