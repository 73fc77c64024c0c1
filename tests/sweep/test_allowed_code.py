"""What a suite names is data: its code runs only if the command line names it too."""

from pathlib import Path

import pytest

from sdpa_onnx.errors import PlanError
from sdpa_onnx.sweep.request import RunRequest

_SUITE = 'name = "t"\nagreement = ["ort-cpu"]\n[[vary]]\ntargets = [{targets}]\n'


def _suite(*targets: str) -> str:
    Path("suite.toml").write_text(_SUITE.format(targets=", ".join(map(repr, targets))), encoding="utf-8")
    return "suite.toml"


REFUSED = {
    "a function of the system": ("os:system('touch ran')", "os"),
    "one that deletes": ("shutil:rmtree('kept')", "shutil"),
    "a file": ("layers.py:Model", "layers.py"),
    "a file in another folder": ("./deeper/layers.py:Model", "./deeper/layers.py"),
    "a module of a package": ("layers.block:Model(2)", "layers.block"),
    "code that is evaluated": ("builtins:exec('import os')", "builtins"),
    "our own module": ("sdpa_onnx.cli.main:main", "sdpa_onnx.cli.main"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that leave a trace when they run."""
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path, tmp_path / "deeper", tmp_path / "kept"):
        place.mkdir(exist_ok=True)
        (place / "layers.py").write_text("open('ran', 'w').close()\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("resume", [False, True])
def test_code_of_a_suite_is_refused(folder: Path, kind: str, *, resume: bool) -> None:
    """Nothing runs, at first and on resuming; the sentence has the target, the file, the module and the option."""
    target, where = REFUSED[kind]
    with pytest.raises(PlanError) as caught:
        RunRequest(suite=_suite("sdpa", target), resume=resume).load()
    assert str(caught.value) == (
        f"Suite suite.toml names '{target}', and to export it is to run the code of '{where}'. If you trust that code, "
        f"add --allow-code {where} (in Python allow_code=['{where}'])."
    )
    assert not (folder / "ran").exists()
    assert (folder / "kept").exists()


ALLOWED = {
    "the file": ("layers.py:Model", ("layers.py",)),
    "by its path": ("./layers.py:Model", ("layers.py",)),
    "by another path": ("deeper/layers.py:Model", ("deeper/../deeper/layers.py",)),
    "a module": ("layers.block:Model(2)", ("os", "layers.block")),
    "our own layers": ("encoder-self", ()),
    "bare attention": ("sdpa", ()),
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_named_code_is_allowed(folder: Path, kind: str) -> None:
    """The option names a module, or a file by any path; our own layers need none. The plan itself runs nothing."""
    target, names = ALLOWED[kind]
    assert RunRequest(suite=_suite(target), allow_code=names).load().vary[0].targets == (target,)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["layers", "deeper/layers.py", "layers.p", "", "*"])
def test_other_names_allow_nothing(folder: Path, name: str) -> None:
    """Only the same module or file is meant."""
    with pytest.raises(PlanError, match=r"--allow-code layers\.py"):
        RunRequest(suite=_suite("layers.py:Model"), allow_code=(name,)).load()


def test_option_is_part_of_the_command(folder: Path) -> None:
    """The printed command that resumes a run is one that works."""
    request = RunRequest(suite="suite.toml", allow_code=("layers.py", "os"))
    assert request.command[3:] == ["--allow-code", "layers.py", "--allow-code", "os"]
