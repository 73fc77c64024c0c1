"""The model container: load, save, tap, hash; nothing here runs a model.

Files, `onnx.ModelProto` and `onnx_ir.Model` come in, an `OnnxModel` goes out.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from numpy.typing import NDArray

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.attention_node import sites_of_nodes
from sdpa_onnx.graph.quiet import quiet_ir
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.graph.whole_file import write_whole

__all__ = ["SITES_KEY", "SPEC_KEY", "TRACED_KEY", "OnnxModel", "load_model"]

SITES_KEY = "sdpa_onnx.attentions"
SPEC_KEY = "sdpa_onnx.spec"
TRACED_KEY = "sdpa_onnx.traced_sizes"

GraphValue = ir.Value  # inside the class, `ir` is the field

# What damaged bytes make the readers raise.
_UNREADABLE = (DecodeError, ir.serde.SerdeError, ValueError, TypeError, KeyError, AttributeError, IndexError)
# protobuf refuses a message above 2 GiB; larger models keep their tensors in a file beside them.
_PROTOBUF_LIMIT_BYTES = 2**31 - 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxModel:
    """A graph, the attentions found in it, and where it came from.

    Args:
        ir: The graph. Treat as read-only; changes go through a copy.
        sites: Every attention, in graph order.
        source: The torch module that it was exported from, if this process
            exported it; the baseline runtime runs it.
        bind: Makes the arguments of a call of `source` from tensors in the order of
            the graph's inputs; None = they are the arguments.
        path: The file that it was read from, or None.
    """

    ir: ir.Model
    sites: tuple[AttentionSite, ...]
    source: object | None = None
    bind: Callable[..., tuple[tuple[object, ...], dict[str, object]]] | None = None
    path: Path | None = None

    @property
    def opset(self) -> int:
        """Operator-set version of the default domain."""
        return self.ir.opset_imports.get("", 0)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(value.name or "" for value in self.ir.graph.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(value.name or "" for value in self.ir.graph.outputs)

    @property
    def is_bare_attention(self) -> bool:
        """Whether the graph is one attention and nothing around it: its inputs and output are the graph's own."""
        if len(self.sites) != 1:
            return False
        site = self.sites[0]
        taken = sorted(site.inputs.values())
        return taken == sorted(self.input_names) and site.output in self.output_names

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
        counts: dict[str, int] = {}
        for node in self.ir.graph:
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
        return counts

    def to_bytes(self) -> bytes:
        """Serialise to one message.

        Raises:
            ModelError: If the model is above protobuf's 2 GiB.
        """
        try:
            data: bytes = ir.to_proto(self.ir).SerializeToString(deterministic=True)
            return data
        except (EncodeError, ValueError) as error:
            raise ModelError(
                f"The model {self.path or ''} is above 2 GiB and cannot be held in one message.",
                hint="Use a smaller model.",
            ) from error

    def content_hash(self) -> str:
        """sha256 of the serialised graph, hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def tapped(self, names: Sequence[str] | None = None) -> "OnnxModel":
        """Return a copy whose graph also outputs every value that a site names.

        Args:
            names: The values to add, instead of those that the sites name.

        Raises:
            ModelError: If a site names a value that is not in the graph.
        """
        model = ir.from_proto(ir.to_proto(self.ir))
        if names is None:
            names = [name for site in self.sites for name in (*site.inputs.values(), site.output)]
        values = {value.name: value for node in model.graph for value in node.outputs}
        present = {value.name for value in (*model.graph.outputs, *model.graph.inputs)}
        for name in dict.fromkeys(names):
            if name in present or name in model.graph.initializers:
                continue
            if name not in values:
                raise ModelError(
                    f"The metadata of {self.path or 'the model'} names a value '{name}' that is not in the graph.",
                    hint="The file was changed after its export; export it again.",
                )
            model.graph.outputs.append(values[name])
        return replace(self, ir=model)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model in one step: a reader sees the old file or the new one.

        Raises:
            ModelError: If the folder does not exist or cannot be written, or the disk is full.
        """
        return write_whole(Path(path), self.to_bytes(), failure=ModelError)


def load_model(source: "str | os.PathLike[str] | onnx.ModelProto | ir.Model | OnnxModel") -> OnnxModel:
    """Read a model from a file or take one from memory.

    Raises:
        ModelError: If there is no such file, or it is no ONNX model.
    """
    match source:
        case OnnxModel():
            return source
        case ir.Model():
            return _with_sites(source, None)
        case onnx.ModelProto():
            return _with_sites(ir.from_proto(source), None)
        case _:
            path = Path(source)
            return _with_sites(_read(path), path)


def _read(path: Path) -> ir.Model:
    if path.is_dir():
        raise ModelError(f"{path} is a directory.", hint="Give the name of an .onnx file.")
    try:
        if path.stat().st_size == 0:
            raise ModelError(f"{path} is empty.", hint="Give an .onnx file.")
        proto = onnx.load(path, format="protobuf", load_external_data=False)
        if not proto.opset_import or not (proto.graph.node or proto.graph.output):
            raise ModelError(f"{path} is not an ONNX model.", hint="It may be cut short, or of another kind.")
        _read_tensors(proto, path)
        return _from_proto(proto)
    except FileNotFoundError as error:
        raise ModelError(f"Cannot read {path}: there is no such file.") from error
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error
    except _UNREADABLE as error:
        raise ModelError(f"{path} is not an ONNX model.", hint="It may be cut short, or of another kind.") from error


def _read_tensors(proto: onnx.ModelProto, path: Path) -> None:
    """Load what lies in files beside the model; onnx refuses places outside the model's folder."""
    for tensor in proto.graph.initializer:
        places = [entry.value for entry in tensor.external_data if entry.key == "location"]
        missing = [path.parent / place for place in places if not (path.parent / place).exists()]
        if missing:
            raise ModelError(f"Cannot read {path}: its tensor file {missing[0]} is missing.")
    try:
        onnx.load_external_data_for_model(proto, str(path.parent))
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"Cannot read the tensors of {path}: {reason}") from error


def _from_proto(proto: onnx.ModelProto) -> ir.Model:
    with quiet_ir():
        return ir.from_proto(proto)


def _with_sites(model: ir.Model, path: Path | None) -> OnnxModel:
    text = model.metadata_props.get(SITES_KEY)
    if text is None:
        return OnnxModel(ir=model, sites=sites_of_nodes(model), path=path)
    try:
        sites = msgspec.json.decode(text, type=tuple[AttentionSite, ...])
    except msgspec.MsgspecError as error:
        raise ModelError(f"The metadata '{SITES_KEY}' of {path or 'the model'} cannot be read: {error}.") from error
    return OnnxModel(ir=model, sites=sites, path=path)
