"""Build the folder of exported graphs: catalog entries at every suitable opset, one in every form, and a manifest.

`python -m sdpa_onnx.workflows.export.models_folder models/` builds it. Two builds with
the same versions write the same bytes. Judges nothing: tests/models does that.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sdpa_onnx.catalog import CATALOG, CatalogEntry
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.errors import FolderError, RecordFormatError, SdpaOnnxError
from sdpa_onnx.graph.attention_node import default_form, minimum_opset
from sdpa_onnx.graph.files.whole_file import write_whole
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.export.export_target import export_target

__all__ = ["MANIFEST", "ManifestRow", "build_models", "exported", "opsets_of", "read_manifest"]

MANIFEST = "manifest.json"

# 18 is the oldest opset that we export, 23 the first with Attention, 25 the newest that torch 2.13 declares correctly.
_OPSETS = (18, 23, 25)
_ATTENTION_OPSET = 23
_EXPORTER_KEY = "sdpa_onnx.exporter"

# The layer that is exported in every form, and the forms that torch.onnx does not write.
_IN_EVERY_FORM = "transformer-base/decoder-self"
_OTHER_FORMS = ((18, Form.BLOCKED), (23, Form.BLOCKED), (23, Form.ORT_MHA), (23, Form.ORT_GQA))


class ManifestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the folder.

    Args:
        file: Path inside the folder, with slashes.
        entry: Name in the catalog.
        sha256: Of the file, hex.
        size_bytes: Of the file.
        opset: Operator-set version of the default domain.
        form: See `Form`.
        exporter: Exporter of the graph: torch with its version, or sdpa_onnx.
        nodes: Nodes per operator.
        spec: The attention that it computes.
        source: Source of the figures.
    """

    file: str
    entry: str
    sha256: str
    size_bytes: int
    opset: int
    form: str
    exporter: str
    nodes: dict[str, int]
    spec: AttentionSpec
    source: str


@dataclass(slots=True)
class _Exports:
    """Graphs by spec and opset: some entries share both."""

    made: dict[tuple[AttentionSpec, int], OnnxModel | None] = field(default_factory=dict)

    def get(self, spec: AttentionSpec, opset: int) -> OnnxModel | None:
        if (spec, opset) not in self.made:
            self.made[spec, opset] = exported(spec, opset)
        return self.made[spec, opset]


def opsets_of(spec: AttentionSpec) -> tuple[int, ...]:
    """Opsets that a spec is exported at: 18, 23, 25, and the first that has its operator.

    Example:
        >>> opsets_of(AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, mask="lengths"))
        (18, 23, 24, 25)
    """
    return tuple(sorted({*_OPSETS, minimum_opset(spec)}))


def exported(spec: AttentionSpec, opset: int, form: Form | None = None) -> OnnxModel | None:
    """Export a spec; without a form, decomposed below opset 23 and as an Attention node from 23 on.

    Returns:
        The graph, or None where an Attention node cannot express the spec even with
        a computed mask (a softcap and a window below opset 25).
    """
    if form is not None:
        return export_target(spec, opset=opset, form=form, dtype=Dtype.FLOAT32)
    usual = default_form(spec, opset)
    if opset >= _ATTENTION_OPSET and usual == "decomposed":
        return None
    return export_target(spec, opset=opset, form=usual, dtype=Dtype.FLOAT32)


def build_models(
    folder: Path, *, entries: Sequence[CatalogEntry] = CATALOG, on_file: Callable[[str], None] | None = None
) -> list[ManifestRow]:
    """Write every graph and the manifest; files of the old manifest that no entry needs are removed.

    Args:
        folder: Created if missing.
        entries: Catalog entries to export.
        on_file: Called with each file before it is written, for progress.

    Raises:
        ExportError: If an export fails.
        FolderError: If the folder cannot be written.
        RecordFormatError: If the folder's manifest is invalid.
    """
    old = read_manifest(folder) if (folder / MANIFEST).exists() else []
    rows = []
    try:
        for entry, opset, form, model in _graphs(entries):
            file = f"{entry.name}/{opset}{'' if form is None else f'-{form}'}.onnx"
            if on_file is not None:
                on_file(file)
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            rows.append(_write(folder, file, entry, model))
        rows.sort(key=lambda row: row.file)
        write_whole(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
        _remove(folder, {row.file for row in old} - {row.file for row in rows})
    except OSError as error:
        raise FolderError(f"Cannot write {folder}: {error.strerror or error}.") from error
    return rows


def read_manifest(folder: Path) -> list[ManifestRow]:
    """Read the manifest of a folder.

    Raises:
        FolderError: If there is none.
        RecordFormatError: If it has another format.
    """
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[ManifestRow])
    except OSError as error:
        raise FolderError(f"Cannot read {path}: {error.strerror or error}.", hint="Run `make models`.") from error
    except msgspec.MsgspecError as error:
        raise RecordFormatError(f"{path} is no manifest: {error}.", hint="Remove it and run `make models`.") from error


def main(arguments: Sequence[str]) -> int:
    """Build the folder that the command line names; return 0, or 2 with the reason on one line."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m sdpa_onnx.workflows.export.models_folder FOLDER\n")
        return 2
    folder = Path(arguments[0])
    try:
        rows = build_models(folder, on_file=_report_file)
    except SdpaOnnxError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    total = sum(row.size_bytes for row in rows)
    sys.stdout.write(f"{len(rows)} graphs, {total} bytes, in {folder}\n")
    return 0


def _report_file(file: str) -> None:
    sys.stderr.write(f"{file}\n")


def _graphs(entries: Sequence[CatalogEntry]) -> Iterator[tuple[CatalogEntry, int, Form | None, OnnxModel]]:
    exports = _Exports()
    for entry in entries:
        for opset in opsets_of(entry.spec):
            model = exports.get(entry.spec, opset)
            if model is not None:
                yield entry, opset, None, model
        for opset, form in _OTHER_FORMS if entry.name == _IN_EVERY_FORM else ():
            model = exported(entry.spec, opset, form)
            if model is not None:
                yield entry, opset, form, model


def _write(folder: Path, file: str, entry: CatalogEntry, model: OnnxModel) -> ManifestRow:
    data = model.save(folder / file).read_bytes()
    return ManifestRow(
        file=file,
        entry=entry.name,
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        opset=model.opset,
        form=model.facts.form.value,
        exporter=model.ir.metadata_props[_EXPORTER_KEY],
        nodes=dict(sorted(model.node_counts().items())),
        spec=entry.spec,
        source=entry.source,
    )


def _remove(folder: Path, files: set[str]) -> None:
    """Remove files that the folder's own manifest listed, and folders that are empty then."""
    for file in sorted(files):
        path = folder / file
        if not path.resolve().is_relative_to(folder.resolve()):
            continue  # a manifest that was edited by hand
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == folder or any(parent.iterdir()):
                break
            parent.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
