"""Shell completion, through the protocol of the script that `--show-completion` prints for bash."""

from pathlib import Path

import pytest

from sdpa_onnx.catalog import entry_names
from sdpa_onnx.runtimes.base import runtime_names
from tests.cli.invoke import Shell


def _completed(shell: Shell, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """What bash offers after this line; its last part, which may be empty, is being typed."""
    monkeypatch.setenv("_SDPA_ONNX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    ended = shell()
    assert (ended.code, ended.stderr) == (0, "")
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sdpa-onnx ver", ["verify"]),
        ("sdpa-onnx verify --aga", ["--against"]),
        ("sdpa-onnx run smo", ["smoke"]),
        ("sdpa-onnx run ", ["across", "ci", "full", "quick", "smoke"]),
        ("sdpa-onnx bench F.onnx --form o", ["ort-mha", "ort-gqa"]),
        ("sdpa-onnx bench F.onnx --form as", ["as-is"]),
        ("sdpa-onnx convert F.onnx --form b", ["blocked"]),
        ("sdpa-onnx export sd", ["sdpa"]),
        ("sdpa-onnx export encoder-", ["encoder-self", "encoder-decoder"]),
        ("sdpa-onnx export llama-3-8b/", [name for name in entry_names() if name.startswith("llama-3-8b/")]),
        ("sdpa-onnx verify F.onnx --runtime al", ["all"]),
        ("sdpa-onnx verify mymodel", []),  # a path, which bash completes itself
    ],
)
def test_completion(shell: Shell, monkeypatch: pytest.MonkeyPatch, line: str, offered: list[str]) -> None:
    """Commands, options and known names are offered."""
    assert _completed(shell, monkeypatch, line) == offered


@pytest.mark.parametrize(
    "command",
    ["verify", "inspect", "bench", "compare", "conformance", "convert", "reduce", "fuzz", "saturation", "run"],
)
def test_runtimes_are_completed(shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Every --runtime offers the registered runtimes, and `all` where that is a value."""
    offered = _completed(shell, monkeypatch, f"sdpa-onnx {command} --runtime ")
    assert [name for name in offered if name != "all"] == list(runtime_names())


def test_completion_that_cannot_be_installed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder that cannot be written is one sentence, with what to do."""
    file = shell.folder / "a_file"
    file.write_text("")
    monkeypatch.setenv("HOME", str(file))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash")
    said = shell.refusal("--install-completion")
    assert said.startswith("The completion cannot be installed: ")
    assert said.endswith("Use --show-completion.")


def test_completion_is_installed(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """--install-completion writes the script that bash reads at its start."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash")
    assert shell("--install-completion").code == 0
    script = tmp_path / ".bash_completions" / "sdpa-onnx.sh"
    assert str(script) in (tmp_path / ".bashrc").read_text()
    assert "_SDPA_ONNX_COMPLETE=complete_bash" in script.read_text()
