"""A run that is resumed does not mix two models: the cells of a module whose source or weights changed run again."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sdpa_onnx.sweep.plan import AgreementJob, ExportJob, job_id, plan
from sdpa_onnx.sweep.request import RunRequest
from sdpa_onnx.sweep.store import Store, read_run
from tests.sweep.suites import job_records

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
_OTHER = _MODULE.replace("from layers_part import WIDTH", "WIDTH = 8").replace("weights.pt", "other.pt")
_FILES = {"layers.py": _MODULE, "layers_part.py": "WIDTH = 8\n", "other.py": _OTHER}
_SUITE = 'name = "t"\nagreement = ["ort-cpu"]\n[[vary]]\ntargets = ["layers.py:Model", "other.py:Model", "sdpa"]\n'


def _request(*, resume: bool, force: bool = False) -> RunRequest:
    allowed = ("layers.py", "other.py")
    return RunRequest(suite="suite.toml", out=Path("run"), allow_code=allowed, resume=resume, force=force)


def _open(*, resume: bool, force: bool = False) -> str:
    """Open the run as another process would; what it says of jobs that run again."""
    sys.modules.pop("layers_part", None)
    request = _request(resume=resume, force=force)
    with request.open(request.load()) as store:
        return store.reruns


def _finish_all() -> dict[str, str]:
    """Write a record for every job that has none; the target of each."""
    request = _request(resume=True)
    suite = request.load()
    jobs = {job_id(job): job for job in plan(suite)}
    with request.open(suite) as store:
        done = {record.job for record in read_run(store.folder)[1]}
        for name in jobs.keys() - done:
            store.append(job_records(name))
    return {name: job.model.target for name, job in jobs.items() if isinstance(job, ExportJob | AgreementJob)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of two files and one of one file, and a run of both that was started."""
    monkeypatch.chdir(tmp_path)
    for name, text in (*_FILES.items(), ("suite.toml", _SUITE)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "layers_part", raising=False)
    _open(resume=False)
    return tmp_path


def _weights(folder: Path) -> None:
    torch.save(torch.nn.Linear(8, 8).state_dict(), folder / "plain.pt")
    state = {f"projection.{name}": value for name, value in torch.nn.Linear(8, 8).state_dict().items()}
    torch.save(state, folder / "weights.pt")


_A, _B = "layers.py:Model", "other.py:Model"
CHANGES: dict[str, tuple[Callable[[Path], object], str, set[str]]] = {
    "the module": (lambda folder: (folder / "layers.py").write_text(_MODULE + "\nLATER = 1\n"), "layers.py", {_A}),
    "a number in it": (
        lambda folder: (folder / "layers.py").write_text(_MODULE.replace("2, 8", "3, 8")),
        "layers.py",
        {_A},
    ),
    "a file that it imports": (
        lambda folder: (folder / "layers_part.py").write_text("WIDTH = 8\nOTHER = 1\n"),
        "layers_part.py",
        {_A},
    ),
    "a comment": (lambda folder: (folder / "layers_part.py").write_text("WIDTH = 8  # so\n"), "layers_part.py", {_A}),
    "its weights": (_weights, "weights of layers.py:Model", {_A}),
    "the other module": (lambda folder: (folder / "other.py").write_text(_OTHER + "# so\n"), "other.py", {_B}),
    "the width": (
        lambda folder: (folder / "layers_part.py").write_text("WIDTH = 4\n"),
        "layers_part.py, weights of layers.py:Model",
        {_A},
    ),
    "both": (
        lambda folder: [(folder / name).write_text(text + "# so\n") for name, text in _FILES.items()],
        "layers.py, layers_part.py, other.py",
        {_A, _B},
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("force", [False, True])
def test_cells_of_what_changed_run_again(folder: Path, kind: str, *, force: bool) -> None:
    """The sentence names what changed; the records of the other module and of bare attention stay."""
    change, names, targets = CHANGES[kind]
    jobs = _finish_all()
    change(folder)
    reruns = _open(resume=True, force=force)
    stale = {name for name, target in jobs.items() if target in targets}
    assert {record.job for record in read_run(Path("run"))[1]} == jobs.keys() - stale
    assert reruns == (
        f"{len(stale)} of {len(jobs)} finished cells run again, because {names} changed since the run was started."
    )


def test_a_change_is_handled_once(folder: Path) -> None:
    """After the resume the run has the new checksums; back to the old file is a change again."""
    jobs = _finish_all()
    (folder / "other.py").write_text(_OTHER + "# so\n", encoding="utf-8")
    assert _open(resume=True)
    assert not read_run(Path("run"))[0].is_finished
    _finish_all()
    assert not _open(resume=True)
    assert {record.job for record in read_run(Path("run"))[1]} == jobs.keys()
    (folder / "other.py").write_text(_OTHER, encoding="utf-8")
    assert _open(resume=True)


def test_a_change_that_was_interrupted_is_found_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksums are written after the records were removed."""
    jobs = _finish_all()
    (folder / "other.py").write_text(_OTHER + "# so\n", encoding="utf-8")

    def killed(store: Store, again: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "forget", killed)
        with pytest.raises(KeyboardInterrupt):
            _open(resume=True)
    assert {record.job for record in read_run(Path("run"))[1]} == jobs.keys()
    assert _open(resume=True)


def test_nothing_finished_nothing_to_report(folder: Path) -> None:
    """A run without a finished cell of the changed module is resumed without a sentence."""
    (folder / "layers.py").write_text(_MODULE + "\nLATER = 1\n", encoding="utf-8")
    assert not _open(resume=True)


@pytest.mark.parametrize(
    "line",
    ["import importlib", "__import__('other')", "exec('import other')", "from importlib import import_module"],
)
def test_a_module_that_may_import_anything_depends_on_all(folder: Path, line: str) -> None:
    """The files of its folder that were imported count for it."""
    (folder / "layers.py").write_text(f"{line}\nimport other\n" + _MODULE, encoding="utf-8")
    sys.modules.pop("other", None)
    _open(resume=True)
    jobs = _finish_all()
    (folder / "other.py").write_text(_OTHER + "# so\n", encoding="utf-8")
    _open(resume=True)
    bare = {name for name, target in jobs.items() if target == "sdpa"}
    assert {record.job for record in read_run(Path("run"))[1]} == bare


def test_same_content_is_resumed(folder: Path) -> None:
    """Other files of the folder may change."""
    jobs = _finish_all()
    (folder / "notes.py").write_text("unrelated = 1\n", encoding="utf-8")
    assert not _open(resume=True)
    assert {record.job for record in read_run(Path("run"))[1]} == jobs.keys()


def test_run_of_an_earlier_version_is_resumed(folder: Path) -> None:
    """A header without checksums compares nothing."""
    file = folder / "run" / "run.json"
    header = json.loads(file.read_text())
    assert set(header.pop("contents")) == {
        *("layers.py", "layers_part.py", "other.py"),
        *("weights of layers.py:Model", "weights of other.py:Model"),
    }
    file.write_text(json.dumps(header))
    (folder / "layers_part.py").write_text("WIDTH = 4\n", encoding="utf-8")
    assert not _open(resume=True)
