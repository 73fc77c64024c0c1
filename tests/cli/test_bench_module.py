"""`bench --against` and `export --bench` with real workers: a module, its file, and a time limit."""

import json
import shutil
from pathlib import Path

import pytest

from sdpa_onnx.core.records.records import BUDGET_REASON
from tests.cli.invoke import Shell

pytestmark = [pytest.mark.slow, pytest.mark.alone]

_MODULE = """
import torch
from torch import nn


class Block(nn.Module):
    sample_inputs = (torch.randn(2, 16, 32),)

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        batch, length, _ = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.dropout(y.transpose(1, 2).reshape(batch, length, 32))
"""


@pytest.fixture
def target() -> str:
    Path("block.py").write_text(_MODULE, encoding="utf-8")
    return "block.py:Block"


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_export_then_bench(shell: Shell, target: str) -> None:
    """The file, the module in eager mode and the compiled one are timed and judged, in evaluation mode."""
    ended = shell("export", target, "-o", "block.onnx", "--bench", "--json")
    records = json.loads(ended.stdout)
    timed = {one["arm"]: one for one in records if one["kind"] == "timing"}
    assert {name: (one["outcome"], one["baseline"]) for name, one in timed.items()} == dict.fromkeys(
        ("ort-cpu", "torch", "torch-compile"), ("ok", "torch")
    )
    assert timed["torch-compile"]["compile_seconds"] > timed["torch"]["first_seconds"]
    assert {one["compile_seconds"] for name, one in timed.items() if name != "torch-compile"} == {None}
    judged = {one["runtime"] for one in records if one["kind"] == "agreement" and one["subject"] == "output"}
    assert {"ort-cpu", "torch", "torch-compile"} <= judged
    assert ended.code == 0


def test_a_time_limit(shell: Shell, target: str) -> None:
    """However busy the machine is, every arm has a record: timed, or skipped because of the time limit."""
    assert shell("export", target, "-o", "block.onnx").code == 0
    ended = shell("bench", "block.onnx", "--against", target, "--budget", "15", "--json")
    assert ended.code == 0
    timed = [one for one in json.loads(ended.stdout) if one["kind"] == "timing"]
    assert {(one["outcome"], one["reason"]) for one in timed} <= {("ok", ""), ("skipped", BUDGET_REASON)}
