"""An .npz file is data: nothing in it is unpickled, wherever arrays of a file are read."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.errors import PlanError
from sdpa_onnx.runtimes.worker.arrays import INDEX, read_bits
from sdpa_onnx.workflows.check.given_arrays import read_arrays


class _Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.mark,)


def _objects(mark: Path) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    array = np.empty(1, dtype=object)
    array[0] = _Harm(mark)
    return array


def _member(mark: Path) -> bytes:
    content = io.BytesIO()
    np.save(content, _objects(mark), allow_pickle=True)
    return content.getvalue()


def _with_member(path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)


FILES: dict[str, Callable[[Path, Path], object]] = {
    "an array of objects": lambda path, mark: np.savez(path, allow_pickle=True, Q=_objects(mark)),
    "compressed": lambda path, mark: np.savez_compressed(path, allow_pickle=True, Q=_objects(mark)),
    "only a pickle": lambda path, mark: path.write_bytes(pickle.dumps(_Harm(mark))),
    "a pickle as a member": lambda path, mark: _with_member(path, "Q.npy", pickle.dumps(_Harm(mark))),
    "an .npy file": lambda path, mark: path.write_bytes(_member(mark)),
}


@pytest.mark.parametrize("kind", FILES)
def test_npz_never_unpickles(kind: str, tmp_path: Path) -> None:
    """One sentence, and the code in the file did not run."""
    path, mark = tmp_path / "i.npz", tmp_path / "ran"
    FILES[kind](path, mark)
    with pytest.raises(PlanError) as caught:
        read_arrays(path)
    assert str(caught.value) == f"{path} is not an .npz file of plain arrays. Write it with numpy.savez."
    assert not mark.exists()


def test_arrays_of_a_worker_never_unpickle(tmp_path: Path) -> None:
    """The folder by which a process of another environment returns its arrays."""
    mark = tmp_path / "ran"
    (tmp_path / "0.npy").write_bytes(_member(mark))
    (tmp_path / INDEX).write_text('{"y": {"file": "0.npy", "onnx_type": 1}}')
    with pytest.raises(ValueError, match="allow_pickle"):
        read_bits(tmp_path)
    assert not mark.exists()


def test_the_harm_would_be_seen(tmp_path: Path) -> None:
    """Planted: numpy runs it where it may."""
    mark = tmp_path / "ran"
    np.savez(tmp_path / "i.npz", allow_pickle=True, Q=_objects(mark))
    with np.load(tmp_path / "i.npz", allow_pickle=True) as archive:
        assert archive["Q"].shape == (1,)
    assert mark.exists()
