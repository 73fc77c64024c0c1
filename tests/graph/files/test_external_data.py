"""Tensors stay in their files until they are used, wherever in a model they stand."""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph import model as model_module
from sdpa_onnx.graph.files import message, wire
from sdpa_onnx.graph.files.data_file import DataFile
from sdpa_onnx.graph.files.external_data import FileTensor, tensors_of
from sdpa_onnx.graph.model import load_model
from tests.graph.models import inner_attention, model_of
from tests.graph.outside import DATA, inside, referring, write_outside


def _files(model: ir.Model) -> dict[str, FileTensor]:
    return {tensor.name or "": tensor for tensor in tensors_of(model) if isinstance(tensor, FileTensor)}


def test_tensors_stay_in_files_everywhere(tmp_path: Path) -> None:
    """Initializers of graphs and branches, constants of graphs and functions: none of them is read at loading."""
    found = _files(load_model(write_outside(tmp_path)).ir)
    assert sorted(found) == ["called", "held", "inner", "weight"]
    assert [tensor.file.path.name for tensor in found.values()] == [DATA] * 4
    assert {tensor._numbers is None for tensor in found.values()} == {True}


def test_numbers_are_those_of_onnx(tmp_path: Path) -> None:
    """Each tensor gives the array and the bytes that onnx itself reads."""
    path = write_outside(tmp_path)
    weight = _files(load_model(path).ir)["weight"]
    (tensor,) = onnx.load(path).graph.initializer
    assert np.array_equal(weight.numpy(), onnx.numpy_helper.to_array(tensor))
    assert weight.tobytes() == tensor.raw_data == b"".join(weight.chunks())
    assert np.asarray(weight, dtype=np.float64).dtype == np.float64
    assert not weight.numpy().flags.writeable


def test_many_numbers_are_mapped(tmp_path: Path) -> None:
    """From 1 MiB on the array is a view of the file, below it a copy; both are the file's bytes."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(2**20 + 10))
    file = DataFile(path)
    assert bytes(file.view(7, 2**20)) == path.read_bytes()[7 : 7 + 2**20]
    assert file._map is not None
    assert (bytes(file.view(3, 9)), file.read(3, 9)) == (path.read_bytes()[3:12],) * 2


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    """Bytes that are gone are one sentence, not a crash of the process on a page that is no more."""
    path = tmp_path / "file"
    path.write_bytes(bytes(2**21))
    file = DataFile(path)
    path.write_bytes(b"")
    for length in (9, 2**20):
        with pytest.raises(ModelError) as caught:
            file.view(0, length)
        assert str(caught.value) == f"Cannot read {path}: it became shorter while it was in use."
    assert (file.is_intact(), file.is_current()) == (False, False)


def test_a_file_whose_name_another_takes(tmp_path: Path) -> None:
    """The numbers are still those that were opened."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    file = DataFile(path)
    assert (file.is_intact(), file.is_current()) == (True, True)
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").replace(path)
    assert (file.read(0, 3), file.is_intact(), file.is_current()) == (b"old", True, False)


def test_small_tensors_are_read_at_once(tmp_path: Path) -> None:
    """Shapes in a data file are constants like others: below 1024 bytes there is no tensor in a file."""
    proto = inner_attention()
    proto.graph.initializer[0].CopyFrom(referring("w", (8, 8), location=DATA))
    (tmp_path / DATA).write_bytes(np.eye(8, dtype=np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert load_model(tmp_path / "m.onnx").to_bytes() == load_model(inner_attention()).to_bytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e5m2, np.int64])
def test_every_width_of_element(tmp_path: Path, dtype: type) -> None:
    """Half bytes are unpacked; what comes back is what was stored."""
    array = (np.arange(4096) % 5).reshape(64, 64).astype(dtype)
    stored = ir.to_proto(ir.Tensor(array, name="t"))
    (tmp_path / DATA).write_bytes(stored.raw_data)
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    stored.external_data.add(key="location", value=DATA)
    node = helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT)
    proto = model_of([node], {"x": [1]}, {"y": [64, 64]})
    proto.graph.initializer.append(stored)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    model = load_model(tmp_path / "m.onnx")
    assert np.array_equal(_files(model.ir)["t"].numpy(), array)
    again = load_model(model.save(tmp_path / "again.onnx"))
    assert np.array_equal(_files(again.ir)["t"].numpy(), array)


def test_message_in_memory_needs_a_folder(tmp_path: Path) -> None:
    """References in a message lead nowhere by themselves, least of all to the current folder."""
    proto = onnx.load(write_outside(tmp_path), load_external_data=False)
    with pytest.raises(ModelError) as caught:
        load_model(proto)
    assert str(caught.value) == (
        "The model has tensors in files, and its folder is not known. Give the path of its file."
    )
    assert sorted(_files(load_model(proto, folder=tmp_path).ir)) == ["called", "held", "inner", "weight"]
    write_outside(tmp_path, with_function=False)  # ir.load gives no folder to tensors of functions
    assert sorted(_files(load_model(ir.load(tmp_path / "m.onnx")).ir)) == ["called", "held", "inner", "weight"]


def test_large_file_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors inside a large file are read from it when asked for, and saved into one file again."""
    monkeypatch.setattr(model_module, "_MAPPED_FILE_BYTES", 1)
    monkeypatch.setattr(wire, "_BULK_BYTES", 2000)
    monkeypatch.setattr(message, "_BULK_BYTES", 2000)
    proto = inside()
    proto.graph.initializer[0].doc_string = "behind the numbers"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString(deterministic=True))
    model = load_model(path)
    within = [tensor.within for tensor in tensors_of(model.ir) if isinstance(tensor, FileTensor)]
    assert within == [True] * 5  # one of the four in both branches
    plain = load_model(proto)
    assert (model.to_bytes(), model.content_hash()) == (plain.to_bytes(), plain.content_hash())
    saved = model.save(tmp_path / "again.onnx")
    assert saved.read_bytes() == plain.to_bytes()
    assert sorted(place.name for place in tmp_path.iterdir()) == ["again.onnx", "m.onnx"]
    assert model.linked().folder == tmp_path.resolve()


@pytest.mark.parametrize("data", [b"\x3a\x05ab", b"\x3b", b"\x80" * 12, b"\x3a\xff\xff\xff\xff\x0f"])
def test_large_file_that_is_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Cut fields, groups, endless numbers and lengths beyond the end are refused as in small files."""
    monkeypatch.setattr(model_module, "_MAPPED_FILE_BYTES", 1)
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(caught.value) == f"{path} is not an ONNX model. It may be cut short, or of another kind."


def test_tapped_copy_shares_the_files(tmp_path: Path) -> None:
    """A copy with more outputs opens and reads nothing."""
    model = load_model(write_outside(tmp_path))
    tapped = model.tapped(["sum"])
    assert tapped.output_names == ("y", "sum")
    assert [id(tensor) for tensor in tensors_of(tapped.ir)] == [id(tensor) for tensor in tensors_of(model.ir)]


def test_message_that_stands_alone(tmp_path: Path) -> None:
    """Bytes, object and hash are those of the same model with its numbers inside, wherever they lie."""
    model, plain = load_model(write_outside(tmp_path)), load_model(inside())
    assert model.to_bytes() == plain.to_bytes()
    assert model.to_proto().SerializeToString(deterministic=True) == plain.to_bytes()
    assert model.content_hash() == plain.content_hash()
