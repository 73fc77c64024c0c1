"""Outputs that a run kept are judged again as they were, and wrong ones are called wrong."""

from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.records.records import AgreementRecord, Verdict
from sdpa_onnx.errors import CaseError, FolderError, PlanError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.given_arrays import read_arrays, read_inputs
from sdpa_onnx.workflows.verify.stored_outputs import OutputKeeper, judge_stored
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.core.by_name import find_fault
from tests.graph.models import SPECS, bare, inner_attention
from tests.workflows.faulty_runtime import FaultyRuntime

_SIZES = {"batch_size": 1, "q_seq_len": 3, "kv_seq_len": 5, "past_seq_len": 2}
_PLAIN = bare(SPECS["plain"])


def _kept(folder: Path, model: OnnxModel, runtime: Runtime) -> tuple[Path, list[AgreementRecord]]:
    """One run at spread 1 into a folder, and what was found in it."""
    check = CheckOptions(sizes={axis: _SIZES[axis] for axis in model.facts.axes}, spreads=(1.0,))
    keep = OutputKeeper(folder=folder)
    records = check_model(model, runtime, check, target="t", expectations=ExpectationCache(), keep=keep)
    return folder / f"{runtime.name}-spread-1.npz", records


def _judged(model: OnnxModel, path: Path, precision: str | None = None) -> list[AgreementRecord]:
    return list(judge_stored(model, read_inputs(path, model), path, precision=precision, target="t"))


@pytest.mark.parametrize("name", ["plain", "cache", "bfloat16", "inner"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    """What was kept is judged to the same figures: an attention, its cache, two-byte floats, and one inside a model."""
    models = {
        "plain": lambda: _PLAIN,
        "cache": lambda: bare(SPECS["past"]),
        "bfloat16": lambda: bare(SPECS["gqa"], dtype=Dtype.BFLOAT16),
        "inner": lambda: load_model(inner_attention()),
    }
    model = models[name]()
    path, ran = _kept(tmp_path / "new" / "folder", model, get_runtime("onnx-reference"))
    stored = _judged(model, path)
    assert [(one.site, one.verdict) for one in stored] == [(one.site, one.verdict) for one in ran]
    assert [one.max_bound_ratio for one in stored] == [one.max_bound_ratio for one in ran]
    assert {(one.inputs, one.runtime, one.dtype) for one in stored} == {("given", "", ran[0].dtype)}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("fault", ["scale-missing", "one-element-nan", "heads-tiled"])
def test_wrong_outputs_are_wrong(tmp_path: Path, fault: str) -> None:
    """The arrays of a wrong runtime are as wrong in the file as they were in the run."""
    model = bare(SPECS["gqa"])
    path, ran = _kept(tmp_path, model, FaultyRuntime(get_runtime("onnx-reference"), find_fault(fault)))
    assert [one.verdict for one in ran] == [Verdict.WRONG]
    assert [one.verdict for one in _judged(model, path)] == [Verdict.WRONG]


def test_declared_precision_decides(tmp_path: Path) -> None:
    """Products of ten-bit numbers are right if TF32 is declared, and wrong as float32."""
    path, _ = _kept(tmp_path, _PLAIN, FaultyRuntime(get_runtime("onnx-reference"), find_fault("tf32-in-secret")))
    assert [(one.verdict, one.precision) for one in _judged(_PLAIN, path)] == [(Verdict.WRONG, "float32")]
    assert [(one.verdict, one.precision) for one in _judged(_PLAIN, path, "tf32")] == [(Verdict.OK, "tf32")]


def test_unknown_precision(tmp_path: Path) -> None:
    """A slip of the finger is told before anything is judged."""
    path, _ = _kept(tmp_path, _PLAIN, get_runtime("onnx-reference"))
    with pytest.raises(CaseError) as raised:
        _judged(_PLAIN, path, "tf23")
    assert str(raised.value).startswith("There is no precision 'tf23'.")


def test_array_that_is_missing(tmp_path: Path) -> None:
    """A file without an output, or without a value around an inner attention, is refused with what it has."""
    path, _ = _kept(tmp_path, _PLAIN, get_runtime("onnx-reference"))
    arrays = read_arrays(path)
    del arrays["Y"]
    np.savez(path, **arrays)
    with pytest.raises(PlanError) as raised:
        _judged(_PLAIN, path)
    hint = "Name arrays as the outputs; `sdpa-onnx verify --keep FOLDER` writes such files."
    assert str(raised.value) == f"{path} lacks the output 'Y'; it has Q, K, V. {hint}"
    inner = load_model(inner_attention())
    np.savez(path, x=np.ones((1, 2, 3, 8), np.float32), y=np.ones((1, 2, 3, 8), np.float32))
    with pytest.raises(PlanError) as raised:
        _judged(inner, path)
    assert str(raised.value) == f"{path} lacks the output 'q'; it has x, y. {hint}"


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the place of the folder, and a file where a parent should be."""
    blocked = tmp_path / "taken"
    blocked.write_text("")
    for folder, why in ((blocked, "File exists"), (blocked / "in", "Not a directory")):
        with pytest.raises(FolderError) as raised:
            OutputKeeper(folder=folder)("ort-cpu", "spread 1", {"Y": np.ones(3)})
        assert str(raised.value) == f"Cannot write into {folder}: {why}."


def test_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half way leaves what was there before."""
    keep = OutputKeeper(folder=tmp_path)
    keep("ort-cpu", "probe poison", {"Y": np.ones(3)})
    before = (tmp_path / "ort-cpu-probe-poison.npz").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(FolderError) as raised:
        keep("ort-cpu", "probe poison", {"Y": np.zeros(3)})
    assert str(raised.value) == f"Cannot write into {tmp_path}: No space left on device."
    assert [path.name for path in tmp_path.iterdir()] == ["ort-cpu-probe-poison.npz"]
    assert (tmp_path / "ort-cpu-probe-poison.npz").read_bytes() == before
