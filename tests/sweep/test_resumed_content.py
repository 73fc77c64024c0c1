"""A run is resumed with the models that it was started with: source and weights are compared."""

import json
import sys
from pathlib import Path

import pytest
import torch

from sdpa_onnx.errors import PlanError
from sdpa_onnx.sweep.request import RunRequest

_MODULE = """
from pathlib import Path
import torch
from layers_part import WIDTH

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = torch.nn.Linear(8, WIDTH)
        if Path("weights.pt").exists():
            self.load_state_dict(torch.load("weights.pt", weights_only=True))

    def forward(self, x):
        return self.projection(x)

sample_inputs = (torch.zeros(1, 2, 8),)
"""
_SUITE = 'name = "t"\nagreement = ["ort-cpu"]\n[[vary]]\ntargets = ["layers.py:Model"]\n'


def _open(*, resume: bool, force: bool = False) -> None:
    request = RunRequest(suite="suite.toml", out=Path("run"), allow_code=("layers.py",), resume=resume, force=force)
    request.open(request.load()).close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of two files, and a run of it that was started."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("layers.py", _MODULE), ("layers_part.py", "WIDTH = 8\n"), ("suite.toml", _SUITE)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "layers_part", raising=False)
    _open(resume=False)
    return tmp_path


def _weights(folder: Path) -> None:
    torch.save(torch.nn.Linear(8, 8).state_dict(), folder / "plain.pt")
    state = {f"projection.{name}": value for name, value in torch.nn.Linear(8, 8).state_dict().items()}
    torch.save(state, folder / "weights.pt")


CHANGES = {
    "the module": (lambda folder: (folder / "layers.py").write_text(_MODULE + "\nLATER = 1\n"), "layers.py"),
    "a number in it": (lambda folder: (folder / "layers.py").write_text(_MODULE.replace("2, 8", "3, 8")), "layers.py"),
    "a file that it imports": (
        lambda folder: (folder / "layers_part.py").write_text("WIDTH = 4\n"),
        "layers_part.py",
    ),
    "a comment": (lambda folder: (folder / "layers_part.py").write_text("WIDTH = 8  # so\n"), "layers_part.py"),
    "its weights": (_weights, "weights of layers.py:Model"),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("force", [False, True])
def test_changed_content_is_refused(folder: Path, kind: str, *, force: bool) -> None:
    """The sentence names what changed; --force, which is for the machine and versions, does not allow it."""
    change, name = CHANGES[kind]
    change(folder)
    before = (folder / "run" / "run.json").read_bytes()
    with pytest.raises(PlanError) as caught:
        _open(resume=True, force=force)
    assert str(caught.value) == (
        f"{name} changed since the run was started, so it would mix two models. Start a new run."
    )
    assert (folder / "run" / "run.json").read_bytes() == before


def test_same_content_is_resumed(folder: Path) -> None:
    """Other files of the folder may change."""
    (folder / "notes.py").write_text("unrelated = 1\n", encoding="utf-8")
    _open(resume=True)


def test_run_of_an_earlier_version_is_resumed(folder: Path) -> None:
    """A header without checksums compares nothing."""
    file = folder / "run" / "run.json"
    header = json.loads(file.read_text())
    assert set(header.pop("contents")) == {"layers.py", "layers_part.py", "weights of layers.py:Model"}
    file.write_text(json.dumps(header))
    (folder / "layers_part.py").write_text("WIDTH = 4\n", encoding="utf-8")
    _open(resume=True)
