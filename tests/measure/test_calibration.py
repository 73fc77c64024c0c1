"""The stored difference between processes, by class of machine."""

import tempfile
from pathlib import Path

import pytest

from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.errors import FolderError
from sdpa_onnx.measure import calibration
from sdpa_onnx.measure.calibration import calibration_file, load_calibration, machine_class, store_calibration


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_stored_and_found_again() -> None:
    """For this class of machine."""
    assert load_calibration() == Calibration()
    mine = Calibration(between_sd=0.003, degrees=20.0, machine=machine_class())
    assert store_calibration(mine) == calibration_file()
    assert load_calibration() == mine


def test_other_machines_have_figures_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared home folder serves several classes."""
    mine = Calibration(between_sd=0.003, degrees=20.0, machine=machine_class())
    store_calibration(Calibration(between_sd=0.02, degrees=5.0, machine="another, 64 cores"))
    assert load_calibration() == Calibration()
    store_calibration(mine)
    monkeypatch.setattr(calibration, "machine_class", lambda: "another, 64 cores")
    assert load_calibration().between_sd == 0.02


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1}', "\xff", '{"CLASS": {"between_sd": -1, "degrees": 1}}'])
def test_a_damaged_file_is_none(text: str) -> None:
    """The usual figure is taken then, and the next calibration replaces the file."""
    path = calibration_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(text.replace("CLASS", machine_class()).encode("latin-1"))
    assert load_calibration() == Calibration()
    mine = Calibration(between_sd=0.003, degrees=20.0, machine=machine_class())
    store_calibration(mine)
    assert load_calibration() == mine


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the specification says."""
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert calibration_file() == Path.home() / ".cache" / "sdpa_onnx" / "calibration.json"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in some containers: beside other temporary files."""

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", none)
    assert calibration_file() == Path(tempfile.gettempdir()) / ".cache" / "sdpa_onnx" / "calibration.json"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """One sentence."""
    (tmp_path / "sdpa_onnx").write_text("")
    with pytest.raises(FolderError) as caught:
        store_calibration(Calibration(machine="m"))
    assert str(caught.value) == f"Cannot write {calibration_file()}: File exists."


@pytest.mark.parametrize(
    ("between_sd", "degrees"), [(1e-12, 8.0), (4.9e-4, 8.0), (0.21, 8.0), (0.0057, 0.9), (0.0057, 1e12)]
)
def test_a_figure_that_cannot_be_is_none(between_sd: float, degrees: float) -> None:
    """As good as a damaged file: it would turn noise into proofs, or proofs into noise."""
    store_calibration(Calibration(between_sd=between_sd, degrees=degrees, machine=machine_class()))
    assert load_calibration() == Calibration()


@pytest.mark.parametrize(("between_sd", "degrees"), [(5e-4, 1.0), (0.2, 1000.0)])
def test_the_ends_of_what_can_be_are_taken(between_sd: float, degrees: float) -> None:
    """A very quiet machine and a very loud one."""
    kept = Calibration(between_sd=between_sd, degrees=degrees, machine=machine_class())
    store_calibration(kept)
    assert load_calibration() == kept
