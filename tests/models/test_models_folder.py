"""The committed graphs have the structure of a current export, and match the manifest."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from sdpa_onnx.catalog import CATALOG, CatalogEntry, find_entry
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.errors import FolderError, RecordFormatError
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.export import models_folder
from sdpa_onnx.workflows.export.models_folder import MANIFEST, build_models, exported, main, opsets_of, read_manifest
from tests.models.folder import FOLDER, ROWS, asked_form, is_quick, structure_of

# Source: issue 3; the folder is in every clone.
_LARGEST_FOLDER_BYTES = 2_000_000

_EXPORTED = [pytest.param(name, id=name, marks=() if is_quick(row) else pytest.mark.slow) for name, row in ROWS.items()]
# Only its opset 18 needs torch, so its folder is built quickly.
_NATIVE = CatalogEntry(
    name="tiny/cached",
    title="",
    spec=AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=8, is_causal=True, has_past=True),
    q_seq_len=8,
    kv_seq_len=8,
    source="made up",
)


@pytest.mark.parametrize("name", _EXPORTED)
def test_file_has_the_structure_that_is_exported_today(name: str) -> None:
    """Detects a change of the exporter without `make models`."""
    row = ROWS[name]
    today = exported(find_entry(row.entry).spec, row.opset, asked_form(row))
    assert today is not None
    assert structure_of(load_model(FOLDER / row.file)) == structure_of(today)


@pytest.mark.parametrize("name", ROWS)
def test_manifest_row_is_what_the_file_is(name: str) -> None:
    """Hash, size, opset, form, nodes and spec match the file, and the source matches the catalog."""
    row = ROWS[name]
    data = (FOLDER / row.file).read_bytes()
    model = load_model(FOLDER / row.file)
    entry = find_entry(row.entry)
    assert row.sha256 == hashlib.sha256(data).hexdigest()
    assert row.size_bytes == len(data)
    assert (row.opset, row.form, row.nodes) == (model.opset, model.facts.form, model.node_counts())
    assert row.exporter == model.ir.metadata_props["sdpa_onnx.exporter"]
    assert [row.spec] == [entry.spec] == [site.spec for site in model.sites]
    assert row.source == entry.source


def test_folder_holds_what_the_manifest_lists() -> None:
    """No graph is missing or left over, and every entry is listed, sorted."""
    assert {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.onnx")} == {
        row.file for row in ROWS.values()
    }
    files = [row.file for row in read_manifest(FOLDER)]
    assert files == sorted(files)
    wanted = {(entry.name, opset) for entry in CATALOG for opset in opsets_of(entry.spec)}
    missing = wanted - {(row.entry, row.opset) for row in ROWS.values()}
    # A softcap and a window: no Attention node below opset 25 expresses both.
    assert missing == {("gemma-2-9b/local", 23), ("gemma-2-27b/local", 23)}


def test_one_layer_is_there_in_every_form() -> None:
    """Each graph can be inspected and run."""
    assert {row.form for row in ROWS.values() if row.entry == "transformer-base/decoder-self"} == set(Form)


def test_folder_is_small() -> None:
    """The folder stays below 2 MB, so that cloning stays fast."""
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < _LARGEST_FOLDER_BYTES


def test_no_path_of_a_machine_stands_in_a_file() -> None:
    """torch.onnx writes stack traces; none may reach the folder (tests/packaging looks for private folders)."""
    for row in ROWS.values():
        data = (FOLDER / row.file).read_bytes()
        assert not any(word in data for word in (b"site-packages", b"stack_trace", b".py")), row.file


def test_a_changed_graph_would_be_seen() -> None:
    """A graph with one figure changed by one has another structure."""
    model = load_model(FOLDER / "mistral-7b/self/25.onnx")
    spec = find_entry("mistral-7b/self").spec
    for changed in (replace(spec, left_window=4096), replace(spec, is_causal=False), replace(spec, kv_num_heads=4)):
        other = exported(changed, 25)
        assert other is not None
        assert structure_of(other) != structure_of(model)


@pytest.mark.slow
def test_two_builds_are_byte_equal(tmp_path: Path) -> None:
    """Building twice gives the same files, and the manifest equals the returned one."""
    first, second = tmp_path / "first", tmp_path / "second"
    rows = build_models(first, entries=(_NATIVE,))
    assert build_models(second, entries=(_NATIVE,)) == rows == read_manifest(first)
    before = {path.relative_to(first): path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert {path.relative_to(second): path.read_bytes() for path in second.rglob("*") if path.is_file()} == before
    assert [(row.file, row.form, row.exporter.split()[0]) for row in rows] == [
        ("tiny/cached/18.onnx", "decomposed", "torch"),
        ("tiny/cached/23.onnx", "attention", "sdpa_onnx"),
        ("tiny/cached/25.onnx", "attention", "sdpa_onnx"),
    ]


@pytest.mark.slow
def test_committed_folder_is_what_a_build_gives(tmp_path: Path) -> None:
    """With the versions that wrote the folder, `make models` changes no byte of it."""
    rows = build_models(tmp_path)
    if {row.exporter for row in rows} != {row.exporter for row in ROWS.values()}:
        pytest.skip("another torch: only the structure is comparable")
    assert (tmp_path / MANIFEST).read_text() == (FOLDER / MANIFEST).read_text()


def test_files_that_no_entry_wants_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a removed entry are deleted; files that the manifest never listed are kept."""
    graph = exported(_NATIVE.spec, 25)
    monkeypatch.setattr(models_folder, "exported", lambda *_: graph)
    build_models(tmp_path, entries=(_NATIVE, find_entry("bert-base/self")))
    note = tmp_path / "bert-base" / "note.txt"
    note.write_text("mine", encoding="utf-8")
    build_models(tmp_path, entries=(replace(_NATIVE, name="tiny/renamed"),))
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {
        MANIFEST,
        "bert-base/note.txt",
        *(f"tiny/renamed/{opset}.onnx" for opset in (18, 23, 25)),
    }
    assert not (tmp_path / "tiny/cached").exists()


def test_manifest_errors(tmp_path: Path) -> None:
    """A missing manifest and an invalid one have different errors, which say what to do."""
    with pytest.raises(FolderError) as missing:
        read_manifest(tmp_path)
    assert str(missing.value) == f"Cannot read {tmp_path / MANIFEST}: No such file or directory. Run `make models`."
    (tmp_path / MANIFEST).write_text("{}", encoding="utf-8")
    with pytest.raises(RecordFormatError) as other:
        read_manifest(tmp_path)
    assert str(other.value) == (
        f"{tmp_path / MANIFEST} is no manifest: Expected `array`, got `object`. Remove it and run `make models`."
    )


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a folder, or with a read-only one, the command exits with 2 and one line."""
    assert main([]) == 2
    assert capsys.readouterr().err == "usage: python -m sdpa_onnx.workflows.export.models_folder FOLDER\n"
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main([str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: Cannot write {tmp_path / 'file'}: Not a directory."


def test_readme_example_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The code in models/README.md runs."""
    monkeypatch.chdir(FOLDER.parent)
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    exec(compile(code, "models/README.md", "exec"), {})  # noqa: S102 - our own README
    assert len([line for line in code.splitlines() if line]) == 6
    assert capsys.readouterr().out == "(1, 32, 16, 128)\n"
