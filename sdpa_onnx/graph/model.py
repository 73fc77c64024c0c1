"""The model container: load, save, tap, hash; nothing here runs a model.

Files, `onnx.ModelProto` and `onnx_ir.Model` come in, an `OnnxModel` goes out.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from numpy.typing import NDArray

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.attention_node import find_sites
from sdpa_onnx.graph.files.data_file import DataFile
from sdpa_onnx.graph.files.external_data import FileTensor, attach_files, tensors_of
from sdpa_onnx.graph.files.large import number_bytes
from sdpa_onnx.graph.files.message import content_hash, serialised, to_message
from sdpa_onnx.graph.files.saved_files import LinkedFiles, fits_one_message, linked, staged
from sdpa_onnx.graph.files.whole_file import open_files_hint, write_whole
from sdpa_onnx.graph.files.wire import WireError, is_too_deep, without_bulk
from sdpa_onnx.graph.model_facts import ModelFacts, read_facts
from sdpa_onnx.graph.quiet import quiet_ir
from sdpa_onnx.graph.site import AttentionSite, encode_sites
from sdpa_onnx.graph.site_outputs import locate_outputs
from sdpa_onnx.graph.structure import read_message

__all__ = [
    "BODY_SITES_KEY",
    "SITES_KEY",
    "SPECS_KEY",
    "SPEC_KEY",
    "ModelSource",
    "OnnxModel",
    "load_model",
    "load_sent",
]

SITES_KEY = "sdpa_onnx.attentions"
# The same for attentions inside the bodies of If, Loop and Scan.
BODY_SITES_KEY = "sdpa_onnx.body_attentions"
SPEC_KEY = "sdpa_onnx.spec"
# What attentions compute that can be read only after nodes are added, so that `SITES_KEY` cannot name their values.
SPECS_KEY = "sdpa_onnx.specs"

GraphValue = ir.Value  # inside the class, `ir` is the field

# What damaged bytes make the readers raise.
_UNREADABLE = (
    DecodeError,
    ir.serde.SerdeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NotImplementedError,
)
# A file from this size on is not read whole: its large tensors are mapped.
_MAPPED_FILE_BYTES = 2**28


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OnnxModel:
    """A graph, the attentions found in it, and where it came from.

    Args:
        ir: The graph. Treat as read-only; changes go through a copy.
        sites: Every attention of the main graph, in order; their optional outputs are named here, from the graph.
        source: The torch module that it was exported from, if this process
            exported it; the baseline runtime runs it.
        bind: Makes the arguments of a call of `source` from tensors in the order of
            the graph's inputs; None = they are the arguments.
        path: The file that it was read from, or None.
        unread: Why an attention of the graph cannot be judged, a sentence for each; None = it is not known whether
            there is one, until `with_lifted_sites` reads the graph.
        body_sites: Every attention inside the bodies of If, Loop and Scan that is known. Its values have names that no
            other value of the model has; no output can tap them, see `opened_bodies`.
        facts: Figures of the graph and its sites. They are read here and cannot be given, so
            that no model has those of another graph.
    """

    ir: ir.Model
    sites: tuple[AttentionSite, ...]
    source: object | None = None
    bind: Callable[..., tuple[tuple[object, ...], dict[str, object]]] | None = None
    path: Path | None = None
    unread: tuple[str, ...] | None = None
    body_sites: tuple[AttentionSite, ...] = ()
    facts: ModelFacts = field(init=False, repr=False, compare=False)
    _sent: LinkedFiles | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", locate_outputs(self.ir, self.sites))
        object.__setattr__(self, "facts", read_facts(self.ir, self.sites))

    def __repr__(self) -> str:
        sites, nodes = len(self.sites) + len(self.body_sites), sum(self.facts.node_counts.values())
        found = f"{sites} attention{'' if sites == 1 else 's'}"
        # Attentions that are no node of their own are found when the graph is read.
        found = "attentions: see inspect" if not sites and self.unread is None else found
        counts = f"{found}, {nodes} node{'' if nodes == 1 else 's'}"
        return f"OnnxModel(opset {self.opset}, {counts}, {_size_text(number_bytes(self.ir))})"

    @property
    def opset(self) -> int:
        """Operator-set version of the default domain."""
        return self.facts.opset

    @property
    def input_names(self) -> tuple[str, ...]:
        return self.facts.input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.facts.output_names

    @property
    def is_bare_attention(self) -> bool:
        """Whether the graph is one attention and nothing around it: its inputs and output are the graph's own."""
        return self.facts.is_bare_attention

    def input_value(self, name: str) -> GraphValue:
        """The graph input of that name (its type and symbolic shape)."""
        return next(value for value in self.ir.graph.inputs if value.name == name)

    def constants(self) -> dict[str, NDArray[np.generic]]:
        """Initializers that a site names, by value name."""
        named = {name for site in self.sites for name in site.inputs.values()}
        found = {name: value.const_value for name, value in self.ir.graph.initializers.items() if name in named}
        return {name: tensor.numpy() for name, tensor in found.items() if tensor is not None}

    def node_counts(self) -> dict[str, int]:
        """Nodes per operator type, functions and subgraphs not entered."""
        return dict(self.facts.node_counts)

    def to_bytes(self) -> bytes:
        """Serialise to one message that stands alone: numbers in files are read into it.

        Raises:
            ModelError: If the model is above protobuf's 2 GiB.
        """
        try:
            if self.fits_one_message:
                return serialised(self.ir)
        except (EncodeError, ValueError) as error:
            raise self._too_large() from error
        raise self._too_large()

    def _too_large(self) -> ModelError:
        return ModelError(
            f"The model {self.path or ''} is above 2 GiB and cannot be held in one message.",
            hint="Use a smaller model.",
        )

    def to_proto(self) -> onnx.ModelProto:
        """The message as an object that stands alone, of any size: numbers in files are read into it."""
        return to_message(self.ir)

    def linked(self) -> LinkedFiles:
        """The graph's message for a program that reads tensor files itself; see `saved_files.linked`."""
        return self._sent or linked(self.ir)

    def linked_with_sites(self) -> LinkedFiles:
        """The same with its sites in the metadata, for one of our own processes: it shall not read the graph again."""
        files = self.linked()
        if not self.sites or SITES_KEY in self.ir.metadata_props:
            return files
        # A message that follows another one adds to its repeated fields.
        note = onnx.ModelProto()
        note.metadata_props.add(key=SITES_KEY, value=encode_sites(self.sites))
        return replace(files, message=files.message + note.SerializeToString())

    @property
    def fits_one_message(self) -> bool:
        """Whether `to_bytes` can hold it; else only files can."""
        return fits_one_message(self.ir)

    def content_hash(self) -> str:
        """sha256 of the graph, hex; the same whether numbers lie in it or in files, which are read."""
        return content_hash(self.ir)

    def tapped(self, names: Sequence[str] | None = None) -> "OnnxModel":
        """Return a copy whose graph also outputs every value that a site names; itself if it does so already.

        Args:
            names: The values to add, instead of those that the sites name.

        Raises:
            ModelError: If a site names a value that is not in the graph.
        """
        if names is None:
            names = [name for site in self.sites for name in site.taps]
        present = {*self.input_names, *self.output_names, *self.ir.graph.initializers}
        missing = [name for name in dict.fromkeys(names) if name not in present]
        if not missing:
            return self
        model = self.ir.clone()
        values = {value.name: value for node in model.graph for value in node.outputs}
        for name in missing:
            if name not in values:
                raise ModelError(
                    f"The metadata of {self.path or 'the model'} names a value '{name}' that is not in the graph.",
                    hint="The file was changed after its export; export it again.",
                )
            model.graph.outputs.append(values[name])
        return replace(self, ir=model)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model in one step: a reader sees the old file or the new one.

        With tensors in files, or above 2 GiB, it is `path` and a data file
        `path` + ".data"; numbers are copied from file to file. It may be
        saved over the very file that it was read from.

        Raises:
            ModelError: If the folder does not exist or cannot be written, or the disk is full.
        """
        if self.fits_one_message and not any(isinstance(tensor, FileTensor) for tensor in tensors_of(self.ir)):
            return write_whole(Path(path), self.to_bytes(), failure=ModelError)
        with staged(self.ir, Path(path)) as draft:
            return draft.commit()


# What is accepted as a model: a path, or a model in memory.
ModelSource: TypeAlias = str | os.PathLike[str] | onnx.ModelProto | ir.Model | OnnxModel


def _size_text(size_bytes: int) -> str:
    """Bytes of the tensors of a model, in the unit in which they are at least 1."""
    units = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
    return next((f"{size_bytes / size:.3g} {unit}" for size, unit in units if size_bytes >= size), f"{size_bytes} B")


def load_model(source: ModelSource, *, folder: Path | None = None) -> OnnxModel:
    """Read a model from a file or take one from memory.

    Tensors in files beside the model stay there until they are used, and so do
    the large ones inside a large file.

    Args:
        source: A path, or the model.
        folder: Where the tensor files of a message lie.

    Raises:
        ModelError: If there is no such file, or it is not a valid ONNX model, or
            its tensors lie outside of its folder.
    """
    match source:
        case OnnxModel():
            return source
        case onnx.ModelProto():
            model, path = _taken(source, folder), None
        case ir.Model():
            attach_files(source, folder, who="Cannot read the model")
            model, path = source, None
        case str() | os.PathLike():
            path = Path(source)
            model = _read(path)
        case _:  # a caller without type checks
            raise ModelError(f"A {type(source).__name__} is not an ONNX model.", hint="Give a path or a model.")
    return _with_sites(model, path)


def load_sent(message: bytes, folder: Path | None) -> OnnxModel:
    """A model that another of our processes read, checked and sent as `OnnxModel.linked` gives it.

    Args:
        message: The graph.
        folder: Where its tensor files lie.

    Raises:
        ModelError: If a file is missing.
    """
    with quiet_ir():
        model = ir.from_proto(onnx.load_from_string(message))
    attach_files(model, folder, who="Cannot read the model")
    found = _with_sites(model, None)
    object.__setattr__(found, "_sent", LinkedFiles(message=message, folder=folder))
    return found


def _taken(proto: onnx.ModelProto, folder: Path | None) -> ir.Model:
    try:
        model = read_message(proto, who="The model")
    except _UNREADABLE as error:
        raise ModelError("The message is not an ONNX model.") from error
    attach_files(model, folder, who="Cannot read the model")
    return model


def _read(path: Path) -> ir.Model:
    try:
        if path.is_dir():
            raise ModelError(f"{path} is a directory.", hint="Give the name of an .onnx file.")
        if path.exists() and not path.is_file():  # reading a pipe would wait for a writer
            raise ModelError(f"{path} is not a regular file.", hint="Give the name of an .onnx file.")
        if path.stat().st_size == 0:
            raise ModelError(f"{path} is empty.", hint="Give an .onnx file.")
        proto, own = _message(path)
        if not proto.opset_import or not (proto.graph.node or proto.graph.output):
            raise ModelError(f"{path} is not an ONNX model.", hint="It may be cut short, or of another kind.")
        model = read_message(proto, who=str(path))
        attach_files(model, path.parent.absolute(), own=own, who=f"Cannot read {path}")
        return model
    except FileNotFoundError as error:
        raise ModelError(f"Cannot read {path}: there is no such file.") from error
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.", hint=open_files_hint(error)) from error
    except _UNREADABLE as error:
        raise ModelError(f"{path} is not an ONNX model.", hint="It may be cut short, or of another kind.") from error


def _message(path: Path) -> tuple[onnx.ModelProto, DataFile | None]:
    """The message of a file; of a large one without its large tensors, and the file to read them from."""
    if path.stat().st_size < _MAPPED_FILE_BYTES:
        return _parsed(path.read_bytes(), path), None
    own = DataFile(path.resolve())
    try:
        skeleton = without_bulk(own.view(0, own.size), own.path.name)
    except WireError as error:
        raise ModelError(f"{path} is not an ONNX model.", hint="It may be cut short, or of another kind.") from error
    return _parsed(skeleton, path), own


def _parsed(data: bytes, path: Path) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
        return proto
    except DecodeError as error:
        if not is_too_deep(data):
            raise
        raise ModelError(
            f"{path} has subgraphs of If, Loop or Scan nested deeper than protobuf reads, about 30 deep.",
            hint="onnxruntime cannot read it either. Export it with fewer nested branches.",
        ) from error


def _with_sites(model: ir.Model, path: Path | None) -> OnnxModel:
    sites, inside = (_noted(model, path, key) for key in (SITES_KEY, BODY_SITES_KEY))
    return OnnxModel(ir=model, sites=find_sites(model) if sites is None else sites, path=path, body_sites=inside or ())


def _noted(model: ir.Model, path: Path | None, key: str) -> tuple[AttentionSite, ...] | None:
    """The attentions that the metadata lists under a key; None without it."""
    text = model.metadata_props.get(key)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=tuple[AttentionSite, ...])
    except msgspec.MsgspecError as error:
        raise ModelError(f"The metadata '{key}' of {path or 'the model'} cannot be read: {error}.") from error
