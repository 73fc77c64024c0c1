"""Tensors whose numbers stay in files until they are used; small ones are read at once.

Finds and replaces the tensors of a model; writes nothing and checks no graph (see `structure`).
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.files.data_file import DataFile, open_beside
from sdpa_onnx.graph.subgraphs import subgraphs_of

__all__ = ["FileTensor", "attach_files", "in_memory", "replace_tensors", "tensors_of"]

# onnx keeps smaller tensors in the message.
_READ_BYTES = 1024

Tensor = ir.TensorProtocol


class FileTensor(ir.ExternalTensor):
    """A tensor in an open file.

    Args:
        described: Location, offset, type, shape, name and metadata.
        file: The file.
        folder: The folder of the model that it belongs to.
        within: Whether the file is the model itself, whose message contains the tensor.
    """

    __slots__ = ("_numbers", "file", "within")

    def __init__(self, described: ir.ExternalTensor, file: DataFile, *, folder: Path, within: bool) -> None:
        super().__init__(
            described.location,
            described.offset,
            described.length,
            described.dtype,
            shape=ir.Shape(described.shape),
            name=described.name or "",
            doc_string=described.doc_string,
            metadata_props=dict(described.metadata_props) or None,
            base_dir=folder,
        )
        self.file = file
        self.within = within
        self._numbers: NDArray[Any] | None = None

    @property
    def start(self) -> int:
        """First byte in the file."""
        return self.offset or 0

    def numpy(self) -> NDArray[Any]:
        """The numbers, read-only; mapped from 1 MiB on."""
        if self._numbers is None:
            self._numbers = self._decoded(self.file.view(self.start, self.nbytes))
        return self._numbers

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]:
        numbers = self.numpy()
        if dtype is not None and numbers.dtype != dtype:
            return numbers.astype(dtype)
        return numbers.copy() if copy else numbers

    def tobytes(self) -> bytes:
        """A copy of the bytes in the file."""
        return self.file.read(self.start, self.nbytes)

    def tofile(self, file: Any) -> None:
        """Append the bytes to an open file without holding them in memory."""
        self.file.copy_to(file, self.start, self.nbytes)

    def chunks(self) -> Iterator[bytes]:
        """The bytes in chunks."""
        return self.file.chunks(self.start, self.nbytes)

    def release(self) -> None:
        """Drop the cached numbers."""
        self._numbers = None

    def _decoded(self, data: memoryview) -> NDArray[Any]:
        shape = self.shape.numpy()
        if self.dtype.bitwidth < 8:
            packed = onnx.TensorProto(data_type=self.dtype.value, dims=shape, raw_data=bytes(data))
            return ir.serde.deserialize_tensor(packed).numpy()
        return np.frombuffer(data, dtype=np.dtype(self.dtype.numpy()).newbyteorder("<")).reshape(shape)


def tensors_of(model: ir.Model) -> Iterator[Tensor]:
    """Every tensor of a model: initializers and attributes, subgraphs and functions included."""
    found: list[Tensor] = []
    _visit(model, found.append)
    return iter(found)


def replace_tensors(model: ir.Model, new: Callable[[Tensor], Tensor | None]) -> None:
    """Replace tensors of a model, in place.

    Args:
        model: The model.
        new: Returns the replacement of a tensor, or None to keep it.
    """
    _visit(model, new)


def _visit(model: ir.Model, new: Callable[[Tensor], Tensor | None]) -> None:
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    nodes = [node for body in bodies for node in body.all_nodes()]
    for graph in (model.graph, *(inner for node in nodes for inner in subgraphs_of(node))):
        for value in graph.initializers.values():
            if value.const_value is not None and (tensor := new(value.const_value)) is not None:
                value.const_value = tensor
    for node in nodes:
        for name, attribute in list(node.attributes.items()):
            if (changed := _changed(attribute, new)) is not None:
                node.attributes[name] = changed


def _changed(attribute: ir.Attr, new: Callable[[Tensor], Tensor | None]) -> ir.Attr | None:
    if attribute.is_ref():
        return None
    match attribute.type:
        case ir.AttributeType.TENSOR:
            # Not as_tensor(), which compares every name of a protocol: most of the time of a walk over a graph.
            tensor = new(attribute.value)
            return None if tensor is None else ir.AttrTensor(attribute.name, tensor, doc_string=attribute.doc_string)
        case ir.AttributeType.TENSORS:
            old = list(attribute.value)
            changed = [new(tensor) for tensor in old]
            if all(tensor is None for tensor in changed):
                return None
            kept = [tensor or before for tensor, before in zip(changed, old, strict=True)]
            return ir.AttrTensors(attribute.name, kept, doc_string=attribute.doc_string)
        case _:
            return None


def in_memory(tensor: Tensor) -> Tensor | None:
    """The tensor of a file with its numbers in memory; None for other tensors."""
    return _numbers(tensor) if isinstance(tensor, FileTensor) else None


def _numbers(tensor: FileTensor) -> Tensor:
    return ir.Tensor(
        tensor.numpy(),
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props) or None,
    )


def attach_files(model: ir.Model, folder: Path | None, *, own: DataFile | None = None, who: str) -> None:
    """Open the files of every external tensor, in place.

    Small ones are read at once, so that shapes and scales are available.

    Args:
        model: The model, its external tensors not opened yet.
        folder: The model's folder; None = the folder in the tensors themselves.
        own: The model's own file, if large tensors are read from inside it.
        who: How an error begins: "Cannot read m.onnx".

    Raises:
        ModelError: If a file is missing, refused, or too short for its tensors.
    """
    files: dict[tuple[Path, str], DataFile] = {}

    def opened(tensor: Tensor) -> Tensor | None:
        if not isinstance(tensor, ir.ExternalTensor) or isinstance(tensor, FileTensor):
            return None
        location = os.fspath(tensor.location)
        if own is not None and location == own.path.name:
            return _checked(FileTensor(tensor, own, folder=own.path.parent, within=True), who)
        if folder is None and not os.fspath(tensor.base_dir):
            raise ModelError(
                "The model has tensors in files, and its folder is not known.",
                hint="Give the path of its file.",
            )
        where = (folder or Path(tensor.base_dir), location)
        if where not in files:
            files[where] = open_beside(*where, who=who)
        return _checked(FileTensor(tensor, files[where], folder=where[0].resolve(), within=False), who)

    replace_tensors(model, opened)


def _checked(found: FileTensor, who: str) -> Tensor:
    """The tensor, or its numbers if it is small.

    Raises:
        ModelError: If it does not fit its file.
    """
    file = found.file
    if found.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        raise ModelError(f"{who}: tensor '{found.name}' of text or of no type cannot be in a data file.")
    length = found.nbytes if found.length is None else found.length
    if found.start < 0 or length != found.nbytes:
        raise ModelError(
            f"{who}: tensor '{found.name}' needs {found.nbytes} bytes by its shape, but is given as "
            f"{length} bytes from byte {found.start} of {file.path.name}."
        )
    if found.start + length > file.size:
        raise ModelError(
            f"{who}: tensor '{found.name}' ends at byte {found.start + length} of {file.path.name}, "
            f"which has {file.size}.",
            hint="The file may be cut short.",
        )
    return _numbers(found) if found.nbytes < _READ_BYTES else found
