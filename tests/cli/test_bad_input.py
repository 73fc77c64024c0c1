"""Every bad input: one message on stderr, exit code 2, nothing on stdout, no file, no traceback."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invoke import Shell

_READING = ("inspect", "verify", "bench")
_NO_MODEL = "is not an ONNX model. It may be cut short, or of another kind."


@pytest.mark.parametrize("command", _READING)
class TestFiles:
    """A file that is not a usable model, for every command that reads one."""

    def test_missing(self, shell: Shell, command: str) -> None:
        """A file that does not exist."""
        assert shell.refusal(command, "no.onnx") == "Cannot read no.onnx: there is no such file."

    def test_directory(self, shell: Shell, command: str) -> None:
        """A directory."""
        assert shell.refusal(command, ".") == ". is a directory. Give the name of an .onnx file."

    def test_empty(self, shell: Shell, command: str) -> None:
        """A file without content."""
        Path("empty.onnx").touch()
        assert shell.refusal(command, "empty.onnx") == "empty.onnx is empty. Give an .onnx file."

    def test_truncated(self, shell: Shell, command: str) -> None:
        """A file that was cut short."""
        Path("cut.onnx").write_bytes(Path("bare.onnx").read_bytes()[:100])
        assert shell.refusal(command, "cut.onnx") == f"cut.onnx {_NO_MODEL}"

    def test_text(self, shell: Shell, command: str) -> None:
        """A text file with the ending of a model."""
        Path("text.onnx").write_text("hello\n")
        assert shell.refusal(command, "text.onnx") == f"text.onnx {_NO_MODEL}"

    def test_random_bytes(self, shell: Shell, command: str) -> None:
        """Bytes of no format."""
        Path("noise.onnx").write_bytes(np.random.default_rng(0).bytes(300))
        assert shell.refusal(command, "noise.onnx") == f"noise.onnx {_NO_MODEL}"

    def test_unknown_runtime(self, shell: Shell, command: str) -> None:
        """A misspelt runtime; the message has the closest name and all names."""
        assert shell.refusal(command, "bare.onnx", "--runtime", "ort-cp") == (
            "There is no runtime 'ort-cp'. Did you mean 'ort-cpu'? `sdpa-onnx runtimes` lists them."
        )


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_model_without_attention(shell: Shell, command: str) -> None:
    """A graph of one MatMul has nothing to inspect or to verify."""
    assert shell.refusal(command, "product.onnx") == (
        "product.onnx has no attention in it. Neither an operator nor softmax(QK^T) V was found."
    )


def test_user_code_that_raises_in_forward(shell: Shell) -> None:
    """An exception in the user's forward is reported with file, line and code, on one line."""
    assert shell.refusal("export", "mods.py:Raising", "-o", "x.onnx").startswith(
        "Raising.forward raised ValueError at mods.py:"
    )


def test_user_code_that_raises_when_built(shell: Shell) -> None:
    """A constructor's error message of two lines becomes one line."""
    assert shell.refusal("export", "mods.py:Unbuildable", "-o", "x.onnx").startswith(
        "Unbuildable of mods.py cannot be built: ValueError: no such width"
    )


def test_user_file_with_a_syntax_error(shell: Shell) -> None:
    """A file that Python cannot parse is reported with Python's message, on one line."""
    Path("broken.py").write_text("def forward(:\n")
    assert shell.refusal("export", "broken.py:Right", "-o", "x.onnx").startswith(
        "broken.py cannot be imported: SyntaxError: "
    )


def test_baked_axis_of_a_module(shell: Shell) -> None:
    """A module with constant sizes is rejected; the message has each axis, the line and what to pass instead."""
    line = 1 + Path("mods.py").read_text().splitlines().index(
        "        query, key, value = self.into(x).view(2, 10, 3, 2, 8).permute(2, 0, 3, 1, 4)"
    )
    at = f"mods.py:{line}: `query, key, value = self.into(x).view(2, 10, 3, 2, 8).permute(2, 0, 3, 1, 4)`"
    assert shell.refusal("export", "mods.py:Baked", "-o", "x.onnx") == (
        f"The export cannot keep its axes dynamic: axis 0 of 'x' is fixed to 2 by {at}; "
        f"axis 1 of 'x' is fixed to 10 by {at}. "
        "Change that code, or export at this size: dynamic_axes={'x': ()}, on the command line --dynamic x=."
    )


_OUTPUTS: dict[str, tuple[str, str]] = {
    "below-a-file": ("bare.onnx/x.onnx", "Cannot write bare.onnx/x.onnx: there is no folder bare.onnx."),
    "no-folder": ("no/x.onnx", "Cannot write no/x.onnx: there is no folder no."),
    "directory": (".", ". is a directory. Give the name of a file."),
}


@pytest.mark.parametrize(("output", "sentence"), _OUTPUTS.values(), ids=_OUTPUTS)
def test_model_that_cannot_be_written(shell: Shell, output: str, sentence: str) -> None:
    """It is rejected before the export, not after."""
    assert shell.refusal("export", "sdpa", "-o", output) == sentence


def test_read_only_folder(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only folder is rejected before the export. Root may write anywhere, so the check is patched."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    message = shell.refusal("export", "sdpa", "-o", "x.onnx")
    assert message == f"Cannot write x.onnx: {Path.cwd()} is not writable."


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        ("bare.onnx", "Cannot write bare.onnx: File exists."),
        ("bare.onnx/run", "Cannot write bare.onnx/run: Not a directory."),
    ],
)
def test_run_folder_that_cannot_be_written(shell: Shell, folder: str, sentence: str) -> None:
    """A run does not start where it cannot write."""
    assert shell.refusal("run", "quick", "--out", folder) == sentence


def _array(*shape: int, dtype: str = "float32") -> object:
    return np.ones(shape, dtype=dtype)


_Q = (1, 2, 3, 8)


def _break_member(path: Path) -> None:
    """Write an archive whose packed numbers are damaged."""
    np.savez_compressed(path, **dict.fromkeys("QKV", np.linspace(0.0, 1.0, 48, dtype="f4").reshape(_Q)))
    data = bytearray(path.read_bytes())
    data[120:160] = b"\xff" * 40
    path.write_bytes(data)


_NO_NPZ = "is not an .npz file of plain arrays. Write it with numpy.savez."
_INPUTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (str, "Cannot read i.npz: No such file or directory."),
    "directory": (lambda path: path.mkdir(), "Cannot read i.npz: Is a directory."),
    "empty": (lambda path: path.touch(), f"i.npz {_NO_NPZ}"),
    "text": (lambda path: path.write_text("hello"), f"i.npz {_NO_NPZ}"),
    "npy": (lambda path: path.write_bytes(_npy()), f"i.npz {_NO_NPZ}"),
    "truncated": (lambda path: (np.savez(path, Q=_array(*_Q)), os.truncate(path, 60)), f"i.npz {_NO_NPZ}"),
    "objects": (lambda path: np.savez(path, Q=np.array([{}], dtype=object)), f"i.npz {_NO_NPZ}"),
    "lacks-one": (
        lambda path: np.savez(path, Q=_array(*_Q), V=_array(*_Q)),
        "i.npz lacks the input 'K'; it has Q, V. Name arrays as the inputs.",
    ),
    "nothing-in-it": (
        np.savez,
        "i.npz lacks the input 'Q'; it has nothing. Name arrays as the inputs.",
    ),
    "pipe": (os.mkfifo, "i.npz is not a regular file. Write it with numpy.savez."),
    "member": (_break_member, f"i.npz {_NO_NPZ}"),
    "text-member": (lambda path: zipfile.ZipFile(path, "w").writestr("Q", "hello"), f"i.npz {_NO_NPZ}"),
    **{
        word: (
            lambda path, word=word: np.savez(path, Q=np.zeros(_Q, word), K=_array(*_Q), V=_array(*_Q)),
            f"i.npz: 'Q' is {name}, the model expects float32.",
        )
        for word, name in {"f2": "float16", "i4": "int32", "c8": "complex64", "U5": "str160", "V4": "void32"}.items()
    },
    "heads": (
        lambda path: np.savez(path, Q=_array(1, 3, 3, 8), K=_array(*_Q), V=_array(*_Q)),
        "i.npz: 'Q' has shape (1, 3, 3, 8), the model expects (batch_size, 2, q_seq_len, 8).",
    ),
    "dtype": (
        lambda path: np.savez(path, Q=_array(*_Q, dtype="float64"), K=_array(*_Q), V=_array(*_Q)),
        "i.npz: 'Q' is float64, the model expects float32.",
    ),
}


def _npy() -> bytes:
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    return buffer.getvalue()


@pytest.mark.parametrize(("write", "sentence"), _INPUTS.values(), ids=_INPUTS)
def test_inputs_file(shell: Shell, write: Callable[[Path], object], sentence: str) -> None:
    """An --inputs file that is invalid or does not match the model."""
    write(Path("i.npz"))
    assert shell.refusal("verify", "bare.onnx", "--inputs", "i.npz") == sentence


def test_absent_gpu(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime whose device is missing is rejected, never replaced by the CPU; the message says what is missing."""
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert shell.refusal("verify", "bare.onnx", "--runtime", "ort-cuda").startswith(
        "Runtime 'ort-cuda' is not available: "
    )


_BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{package}":
            raise ModuleNotFoundError("No module named '{package}'", name="{package}")
sys.meta_path.insert(0, Block())
from sdpa_onnx.cli.main import main
sys.argv = ["sdpa-onnx", *{arguments!r}]
main()
"""


@pytest.mark.parametrize(
    ("package", "arguments", "sentence"),
    [
        (
            "onnxruntime",
            ["verify", "bare.onnx"],
            "Runtime 'ort-cpu' is not available: onnxruntime is missing: pip install onnxruntime",
        ),
        ("torch", ["export", "sdpa", "-o", "x.onnx"], "The package 'torch' is missing. Install it: pip install torch."),
        ("onnx", ["inspect", "bare.onnx"], "The package 'onnx' is missing. Install it: pip install onnx."),
    ],
    ids=["onnxruntime", "torch", "onnx"],
)
def test_missing_package(shell: Shell, package: str, arguments: list[str], sentence: str) -> None:
    """A package that is not installed is named with the command that installs it."""
    done = subprocess.run(
        [sys.executable, "-c", _BLOCK.format(package=package, arguments=arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"sdpa-onnx: {sentence}\n")
    assert not Path("x.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "name", "other"), [("onnxruntime", "ort-cpu", "torch"), ("torch", "torch", "ort-cpu")]
)
def test_missing_runtime_is_listed(shell: Shell, package: str, name: str, other: str) -> None:
    """`runtimes` lists a missing package and how to install it; the other runtimes are listed as usual."""
    done = subprocess.run(
        [sys.executable, "-c", _BLOCK.format(package=package, arguments=["runtimes"])],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines[name] == f"not available: {package} is missing: pip install {package}"
    assert not lines[other].startswith("not available")


@pytest.mark.slow
def test_run_without_its_proofs_makes_no_folder(shell: Shell) -> None:
    """Without onnxruntime no export can be proved, so a run does not start."""
    done = subprocess.run(
        [sys.executable, "-c", _BLOCK.format(package="onnxruntime", arguments=["run", "quick", "--out", "there"])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "sdpa-onnx: Runtime 'ort-cpu' is not available: onnxruntime is missing: pip install onnxruntime\n",
    )
    assert not Path("there").exists()


def test_debug_shows_the_traceback(shell: Shell) -> None:
    """--debug prints the traceback, then the same message."""
    ended = shell("inspect", "no.onnx", "--debug")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Traceback (most recent call last):\n")
    assert ended.stderr.splitlines()[-1] == "sdpa-onnx: Cannot read no.onnx: there is no such file."


def test_unexpected_error_is_reported_as_a_bug(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error is one line too, and the message asks for a bug report."""

    def fail(*arguments: object) -> None:
        raise KeyError("two\nlines")

    monkeypatch.setattr("sdpa_onnx.workflows.verify.inspect_file.inspect_model", fail)
    monkeypatch.setattr("sdpa_onnx.graph.model.load_model", fail)
    assert shell.refusal("inspect", "bare.onnx") == (
        "Unexpected KeyError: 'two\\nlines'. This is a bug in sdpa-onnx; run again with --debug and report it."
    )


def test_full_disk_for_a_report(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A report that cannot be written leaves no partial file."""
    import errno

    from sdpa_onnx.sweep.store import Store
    from tests.sweep.suites import HEADER, job_records

    folder = tmp_path / "run"
    with Store.create(folder, HEADER) as store:
        store.append(job_records("a"))

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    page = folder / "index.html"
    assert shell.refusal("report", str(folder)) == f"Cannot write {page}: No space left on device."
    assert not (folder / "index.html").exists()
    assert {path.name for path in folder.iterdir() if path.is_file()} == {".lock", "records.jsonl", "run.json"}


def test_a_module_that_fails_is_no_fault_of_the_file(shell: Shell) -> None:
    """`bench --against` reports its error before anything is judged or timed, under any time limit."""
    assert shell("export", "mods.py:Right", "-o", "right.onnx").code == 0
    arguments = ("bench", "right.onnx", "--against", "mods.py:Raising", "--at", "x_seq_len=4", "--budget", "30")
    refusal = shell.refusal(*arguments)
    assert refusal.startswith(
        "mods.py:Raising does not run on the inputs of right.onnx (batch_size 1, x_seq_len 4): ValueError at "
    )
    assert refusal.endswith("heads do not fit. Is it the right module?")
