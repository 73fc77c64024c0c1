"""`sdpa-onnx reduce`: exit code 1 with the smallest case, 0 with the inputs tried, 2 with one message and no file."""

import json
import zipfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import load_model
from tests.cli.invoke import Shell

_SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=16, is_causal=True, has_past=True)
_HAS_THE_FAULT = pytest.mark.skipif(version("onnxruntime") != "1.32.0", reason="the fault of onnxruntime 1.32.0")
_FIXED = ("--size", "batch_size=2", "--size", "q_seq_len=3", "--size", "kv_seq_len=5")


@pytest.fixture
def past(shell: Shell) -> Path:
    """A model that onnxruntime 1.32.0 gets wrong with one query and several new keys."""
    path = shell.folder / "past.onnx"
    load_model(build_attention_model(_SPEC, opset=23, dtype=Dtype.FLOAT32)).save(path)
    return Path("past.onnx")


@_HAS_THE_FAULT
def test_failing_model(shell: Shell, past: Path) -> None:
    """The smallest case is printed and written, and the written file fails too."""
    ended = shell("reduce", past, "-o", "small.onnx", "--bundle", "case.zip")
    assert (ended.code, ended.stderr) == (1, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("onnxruntime 1.32.0 is wrong: 1 of 1 elements exceed the proven bound, at worst ")
    assert lines[1] == "Smallest case: b1_hq1_hkv1_q1_kv2_d1_f32_causal_past1, attention form, opset 23."
    assert lines[2].startswith("Found on spread 0.3 at batch_size 1, q_seq_len 1, kv_seq_len 64, past_seq_len 5: ")
    assert lines[3] == (
        "Reduced: kv_seq_len 64 -> 2, past_seq_len 5 -> 1, q_num_heads 4 -> 1, kv_num_heads 2 -> 1, "
        "head_dim 16 -> 1, v_head_dim 16 -> 1."
    )
    assert lines[5:] == ["Written: small.onnx", "Written: case.zip"]
    onnx.checker.check_model(onnx.load("small.onnx"), full_check=True)
    with zipfile.ZipFile("case.zip") as archive:
        assert "reproduce.py" in archive.namelist()
        Path("inputs.npz").write_bytes(archive.read("inputs.npz"))
    assert shell("verify", "small.onnx", "--inputs", "inputs.npz").code == 1


@_HAS_THE_FAULT
def test_json(shell: Shell, past: Path) -> None:
    """The JSON is one agreement record of the smallest case."""
    ended = shell("reduce", past, "--json")
    assert ended.code == 1
    (record,) = json.loads(ended.stdout)
    assert (record["kind"], record["outcome"], record["verdict"], record["case"]) == (
        "agreement",
        "disagrees",
        "wrong",
        "b1_hq1_hkv1_q1_kv2_d1_f32_causal_past1",
    )
    assert record["max_bound_ratio"] > 1e4


@pytest.mark.slow
@_HAS_THE_FAULT
def test_anonymous(shell: Shell, past: Path) -> None:
    """With random numbers and generic names the case still fails."""
    ended = shell("reduce", past, "--anonymous", "-o", "small.onnx")
    assert ended.code == 1
    model = onnx.load("small.onnx")
    assert [value.name for value in model.graph.input] == ["v0", "v1", "v2", "v3", "v4"]
    assert "Found on" not in ended.stdout


def test_right_model(shell: Shell) -> None:
    """If nothing fails, the inputs tried are printed, the exit code is 0, and there is no file."""
    ended = shell("reduce", "bare.onnx", "-o", "small.onnx", *_FIXED)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout == (
        "Nothing fails on ort-cpu: right on the ladder of spreads and the probes at batch_size 2, q_seq_len 3, "
        "kv_seq_len 5.\n"
    )
    assert not Path("small.onnx").exists()


@pytest.mark.slow
def test_right_model_as_json(shell: Shell) -> None:
    """One record that is ok."""
    (record,) = json.loads(shell("reduce", "bare.onnx", "--json", *_FIXED).stdout)
    assert (record["outcome"], record["runtime"]) == ("ok", "ort-cpu")


def test_given_arrays(shell: Shell) -> None:
    """The user's arrays are tried instead of random ones."""
    arrays = {name: np.ones((1, 2, 3, 8), np.float32) for name in "QKV"}
    np.savez("given.npz", **arrays)
    ended = shell("reduce", "bare.onnx", "--inputs", "given.npz")
    assert (ended.code, ended.stdout) == (
        0,
        "Nothing fails on ort-cpu: right on the given arrays.\n",
    )


def test_no_time_still_gives_the_attention(shell: Shell) -> None:
    """With --seconds 0 the case is not reduced, and a note is printed."""
    graph = build_attention_model(replace(_SPEC, is_causal=False), opset=23, dtype=Dtype.BFLOAT16)
    load_model(graph).save("bf16.onnx")
    ended = shell("reduce", "bf16.onnx", "--seconds", "0")
    assert ended.code == 1
    assert "does not take the model" in ended.stdout
    assert "The time limit was reached: a smaller case may exist (--seconds)." in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("no.onnx",), "Cannot read no.onnx: there is no such file."),
        (
            ("bare.onnx", "--size", "keys=3"),
            "The model has no axis 'keys'. It has batch_size, q_seq_len, kv_seq_len.",
        ),
        (
            ("bare.onnx", "--runtime", "all"),
            "reduce runs on one runtime at a time. Name the runtime that fails with --runtime.",
        ),
        (("bare.onnx", "--inputs", "no.npz"), "Cannot read no.npz: No such file or directory."),
    ],
)
def test_misuse(shell: Shell, arguments: tuple[str, ...], sentence: str) -> None:
    """One message, exit code 2."""
    assert shell.refusal("reduce", *arguments) == sentence


@pytest.mark.parametrize("option", ["-o", "--bundle"])
@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("no/case.zip", "Cannot write no/case.zip: No such file or directory."),
        ("folder", "folder is not a regular file. Give the name of a file."),
    ],
)
def test_unwritable(shell: Shell, option: str, path: str, sentence: str) -> None:
    """A missing folder, or a folder of that name, is rejected before the model is read, and nothing is written."""
    Path("folder").mkdir()
    assert shell.refusal("reduce", "no.onnx", option, path) == sentence


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "<U8"])
def test_arrays_of_another_type(shell: Shell, dtype: str) -> None:
    """The user's mistake is reported before anything runs, and never as a refusal of the runtime."""
    arrays = {name: np.ones((1, 2, 3, 8), np.float32) for name in "QKV"}
    np.savez("other.npz", **{**arrays, "Q": np.ones((1, 2, 3, 8)).astype(dtype)})
    sentence = shell.refusal("reduce", "bare.onnx", "--inputs", "other.npz")
    assert sentence.endswith("the model expects float32.")
    assert "refuses" not in sentence


def test_sizes_that_no_memory_holds(shell: Shell) -> None:
    """This is reported before any input is drawn."""
    sentence = shell.refusal("reduce", "bare.onnx", "--size", "q_seq_len=1000000000000")
    assert sentence.startswith("The inputs with batch_size 2, q_seq_len 1000000000000, kv_seq_len 97 need about ")
    assert sentence.endswith(" GiB. Use smaller sizes.")
