"""`verify` on stored outputs, with planted faults, and with each runtime in its own process."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sdpa_onnx import verify
from tests.cli.invoke import Ended, Shell
from tests.workflows.dying_child import START, start_dying

_SMALL = ("--size", "batch_size=1", "--size", "q_seq_len=3", "--size", "kv_seq_len=5")


def _records(ended: Ended) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(ended.stdout)
    return found


def _inputs(*, width: float = 1.0, queries: int = 5) -> None:
    """Write i.npz."""
    rng = np.random.default_rng(0)
    lengths = {"Q": queries, "K": 5, "V": 5}
    drawn = {name: rng.standard_normal((2, 2, length, 8)) for name, length in lengths.items()}
    np.savez("i.npz", **{name: (width * array).astype(np.float32) for name, array in drawn.items()})


def test_kept_outputs_can_be_verified(shell: Shell) -> None:
    """--keep writes a file for each step; each is right as --inputs and --outputs, without a run."""
    ended = shell("verify", "bare.onnx", *_SMALL, "--keep", "kept", "--json")
    assert ended.code == 0
    steps = [str(record["inputs"]) for record in _records(ended) if record["kind"] == "agreement"]
    files = {path.name for path in Path("kept").iterdir()}
    assert files == {f"ort-cpu-{step.replace(' ', '-')}.npz" for step in steps}
    for name in ("ort-cpu-spread-1.npz", "ort-cpu-probe-nan-seen.npz"):
        again = shell("verify", "bare.onnx", "--inputs", f"kept/{name}", "--outputs", f"kept/{name}", "--json")
        (record,) = _records(again)
        assert (again.code, record["verdict"], record["runtime"], record["inputs"]) == (0, "ok", "", "given")


def test_stored_outputs_that_are_wrong(shell: Shell) -> None:
    """Outputs with one wrong element cause exit code 1 with evidence; with a lower --precision they can be right."""
    _inputs()
    assert shell("verify", "bare.onnx", "--inputs", "i.npz", "--keep", "kept", "--json").code == 0
    arrays = dict(np.load("kept/ort-cpu-given.npz"))
    arrays["Y"][0, 1, 2, 3] += np.float32(2e-4)
    np.savez("o.npz", **arrays)
    stored = ("verify", "bare.onnx", "--inputs", "i.npz", "--outputs", "o.npz", "--json")
    ended = shell(*stored)
    (record,) = _records(ended)
    assert (ended.code, record["verdict"], record["precision"]) == (1, "wrong", "float32")
    assert "(0, 1, 2, 3)" in str(record["reason"])
    ended = shell(*stored, "--precision", "bfloat16")
    (record,) = _records(ended)
    assert (ended.code, record["precision"]) == (0, "bfloat16")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--outputs", "i.npz"],
            "--outputs requires --inputs, the arrays that they were computed from. --keep writes both into one file.",
        ),
        (
            ["--precision", "tf32"],
            "--precision requires --outputs. Without it, each runtime declares its own precision.",
        ),
        (
            ["--inputs", "i.npz", "--outputs", "i.npz"],
            (
                "i.npz lacks the output 'Y'; it has Q, K, V. "
                "Name arrays as the outputs; `sdpa-onnx verify --keep FOLDER` writes such files."
            ),
        ),
        (
            ["--inputs", "i.npz", "--outputs", "i.npz", "--prove"],
            "--prove needs a run, and --outputs runs nothing. Leave out --prove.",
        ),
        (
            ["--inputs", "i.npz", "--outputs", "i.npz", "--keep", "kept"],
            "--keep needs a run, and --outputs runs nothing. Leave out --keep.",
        ),
        (["--inputs", "i.npz", "--keep", "i.npz"], "Cannot write into i.npz: File exists."),
    ],
    ids=["outputs-alone", "precision-alone", "no-output", "prove-nothing", "keep-nothing", "keep-is-a-file"],
)
def test_misuse(shell: Shell, options: list[str], sentence: str) -> None:
    """Options that require another one, and files that cannot be read or written, are rejected."""
    _inputs()
    assert shell.refusal("verify", "bare.onnx", *options) == sentence


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("f8", "float64"), ("f2", "float16"), ("c8", "complex64"), ("i4", "int32"), ("U5", "str160"), ("V4", "void32")],
)
def test_outputs_of_another_type(shell: Shell, dtype: str, name: str) -> None:
    """They are rejected before they are verified."""
    _inputs()
    np.savez("o.npz", Y=np.zeros((2, 2, 5, 8), dtype))
    message = shell.refusal("verify", "bare.onnx", "--inputs", "i.npz", "--outputs", "o.npz")
    assert message == f"o.npz: 'Y' is {name}, the model returns float32."


def test_precision_without_a_name(shell: Shell) -> None:
    """An empty --precision differs from no --precision."""
    _inputs()
    np.savez("o.npz", Y=np.zeros((2, 2, 5, 8), np.float32))
    message = shell.refusal("verify", "bare.onnx", "--inputs", "i.npz", "--outputs", "o.npz", "--precision", "")
    assert message.startswith("There is no precision ''. Known: ")


@pytest.mark.parametrize(
    ("batch_size", "filled", "reason"),
    [
        (0, 0.0, "Nothing could be judged: the output has no elements."),
        (2, np.inf, "Nothing could be judged: the oracle itself has no finite number here."),
    ],
)
def test_nothing_to_judge(shell: Shell, batch_size: int, filled: float, reason: str) -> None:
    """Outputs without elements, or without a finite expected value, are a failure without a verdict."""
    shape = (batch_size, 2, 5, 8)
    arrays = {name: np.full(shape, filled, np.float32) for name in "QKV"}
    np.savez("a.npz", **arrays, Y=np.full(shape, np.nan, np.float32))
    ended = shell("verify", "bare.onnx", "--inputs", "a.npz", "--outputs", "a.npz", "--json")
    (record,) = _records(ended)
    assert (ended.code, ended.stderr, record["outcome"], record["verdict"]) == (1, "", "failed", None)
    assert (record["reason"], record["diagnosis"]) == (reason, reason)


@pytest.mark.slow
def test_planted_faults_are_all_caught(shell: Shell) -> None:
    """The default inputs detect every kind of fault that the attention can have."""
    ended = shell("verify", "bare.onnx", "--prove", "--json")
    assert ended.code == 0
    planted = [record for record in _records(ended) if record["kind"] == "planted"]
    assert len(planted) > 20
    assert {record["outcome"] for record in planted} == {"ok"}
    assert all(record["caught_by"] for record in planted)


@pytest.mark.slow
def test_flat_inputs_miss_faults(shell: Shell) -> None:
    """Given arrays that are nearly zero pass, and --prove lists the faults that they do not detect."""
    _inputs(width=1e-5)
    ended = shell("verify", "bare.onnx", "--inputs", "i.npz", "--prove", "--json")
    records = _records(ended)
    assert ended.code == 1
    assert [record["verdict"] for record in records if record["kind"] == "agreement"] == ["ok"]
    missed = {str(record["fault"]): record["reason"] for record in records if record["outcome"] == "failed"}
    assert missed["maximum-not-subtracted"] == (
        "These inputs would not have shown that the softmax does not subtract the maximum of the logits."
    )
    assert "softmax-over-queries" in missed
    assert "output-zero" not in missed
    shown = shell("verify", "bare.onnx", "--inputs", "i.npz", "--prove")
    assert shown.code == 1
    words = " ".join(shown.stdout.split())
    assert words.startswith(f"The one check agrees on ort-cpu, but would miss {len(missed)} of ")
    assert "- Not found with these inputs: every visible key has the same weight, as with scale 0." in words


def test_runtime_in_its_own_process(shell: Shell) -> None:
    """The command line runs it in a child process, the Python API in this one; the records are the same."""
    sizes = {"batch_size": 1, "q_seq_len": 3, "kv_seq_len": 5}
    here = json.loads(msgspec.json.encode(verify("bare.onnx", sizes=sizes)))
    child = shell("verify", "bare.onnx", *_SMALL, "--json")
    assert (child.code, _records(child)) == (0, here)


def test_runtime_that_dies_is_reported(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that crashes its process is a failed record, and the command continues."""
    monkeypatch.setattr(START, start_dying)
    _inputs(queries=1)
    ended = shell("verify", "bare.onnx", "--inputs", "i.npz", "--timeout", "60", "--json")
    (record,) = _records(ended)
    assert (ended.code, record["kind"], record["outcome"], record["runtime"]) == (1, "agreement", "failed", "ort-cpu")
    assert record["reason"] == "ort-cpu was killed (SIGKILL) from outside, perhaps for memory."
