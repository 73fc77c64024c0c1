"""`inspect` and `export` report axes and scales that are fixed, and print nothing about right ones."""

import json

import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional

from sdpa_onnx.torch_export.exporter import export_module
from tests.cli.invoke import Shell


def _with_scale(shell: Shell, scale: float) -> None:
    model = onnx.load(shell.folder / "bare.onnx")
    (node,) = model.graph.node
    node.attribute.append(helper.make_attribute("scale", scale))
    # Like the file of another tool: there is no metadata about the sizes that it was traced at.
    del model.metadata_props[:]
    onnx.save(model, shell.folder / "scaled.onnx")


def test_right_file_has_no_warning(shell: Shell) -> None:
    """One line reports that the axes were tried."""
    ended = shell("inspect", "bare.onnx")
    assert (ended.code, ended.stderr) == (0, "")
    assert "warning" not in ended.stdout
    assert " ".join(ended.stdout.split()).startswith(
        "bare.onnx: 1 attention, opset 23. Every attention is right at 4 sizes (lengths to 97) on ort-cpu. - sdpa: "
    )


def test_fixed_axis_is_named(shell: Shell) -> None:
    """The text and the JSON have the axis, the node and the evidence."""
    assert (
        "1 attention, opset 23. Not proved at 4 sizes (lengths to 64) on ort-cpu: axis 'batch_size' is fixed at "
        "'node_view' (batch_size 2 works, " in " ".join(shell("inspect", "fixed.onnx").stdout.split())
    )
    (record,) = json.loads(shell("inspect", "fixed.onnx", "--json").stdout)
    assert [(axis["axis"], axis["node"]) for axis in record["baked"]] == [("batch_size", "node_view")]


def test_no_run(shell: Shell) -> None:
    """--no-run only reads the file."""
    text = shell("inspect", "fixed.onnx", "--no-run").stdout
    assert text.startswith("fixed.onnx: 1 attention, opset 23.\n")
    (record,) = json.loads(shell("inspect", "fixed.onnx", "--no-run", "--json").stdout)
    assert (record["baked"], record["sizes_tried"]) == ([], None)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "is_doubted"), [(1 / 6, True), (0.3, False), (1.0, False), (1 / 8, False)])
def test_scale_of_one_length(shell: Shell, scale: float, *, is_doubted: bool) -> None:
    """A scale that is 1/n of an integer length n is a warning, never an error; other scales cause none."""
    _with_scale(shell, scale)
    ended = shell("inspect", "scaled.onnx", "--no-run")
    doubt = (
        "- Warning: node_scaled_dot_product_attention: scale 0.166667 is not 1/sqrt(d_k) = 0.353553; it equals 1/n for "
        "a length n = 6 and may be fixed to that length; verify --against MODULE proves or clears it. "
    )
    assert ended.code == 0
    assert (doubt in " ".join(ended.stdout.split())) == ("Warning" in ended.stdout) == is_doubted
    (record,) = json.loads(shell("inspect", "scaled.onnx", "--no-run", "--json").stdout)
    assert bool(record["scale_doubt"]) == is_doubted


def test_scale_is_proved_against_its_module(shell: Shell) -> None:
    """`verify --against` proves what `inspect` only warns about, with both values, the length and the line."""
    _with_scale(shell, 1 / 6)
    ended = shell("verify", "scaled.onnx", "--against", "mods.py:ScaledByLength", "--json")
    (record,) = [record for record in json.loads(ended.stdout) if record["kind"] == "export"]
    assert ended.code == 1
    assert record["reason"].startswith(
        "The scale of 'node_scaled_dot_product_attention' is fixed at 0.166667 = 1/kv_seq_len, the module's own at "
        "batch_size 2, q_seq_len 5, kv_seq_len 6; at "
    )
    assert [setting["setting"] for setting in record["settings"]] == ["scale"]


@pytest.mark.slow
def test_export_of_a_branch_on_a_length_has_its_limit(shell: Shell) -> None:
    """A scale that torch.export silently fixes holds up to the length that its guard states, and the file says so."""
    ended = shell("export", "mods.py:ScaledInSteps", "-o", "steps.onnx")
    assert ended.code == 0
    text = " ".join(ended.stdout.split())
    assert "- It holds for k_seq_len <= 9 only, tested at 1 and 9 (mods.py:" in text
    assert "torch.export states 2 <= k_seq_len <= 9" in text
    beyond = shell("verify", "steps.onnx", "--size", "k_seq_len=10")
    assert (beyond.code, beyond.stdout) == (2, "")
    assert "k_seq_len <= 9" in beyond.stderr


class _CachedStep(nn.Module):
    """One step with a cache; torch's CPU kernel does not check that keys and values are equally many."""

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor) -> Tensor:
        key, value = torch.cat((past_key, x), 2), torch.cat((past_value, x), 2)
        return functional.scaled_dot_product_attention(x, key, value)


def test_cached_keys_and_values_have_one_length(shell: Shell) -> None:
    """The JSON lists one axis for two lengths that must be equal."""
    sample = tuple(torch.randn(2, 2, length, 8) for length in (3, 5, 5))
    export_module(_CachedStep(), sample).save(shell.folder / "cached.onnx")
    (record,) = json.loads(shell("inspect", "cached.onnx", "--no-run", "--json").stdout)
    assert record["dynamic_axes"] == ["batch_size", "x_seq_len", "past_key_seq_len"]
