"""A folder with models and modules, created once; each test works in a copy of it."""

import shutil
from pathlib import Path

import onnx
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.workflows.export.export_target import export_target
from tests.cli.invoke import Shell
from tests.graph.models import fixed_batch, product

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)
_CAUSAL = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True)


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("material")
    export_target(_SPEC, opset=23, form="attention", dtype=Dtype.FLOAT32).save(folder / "bare.onnx")
    export_target(_SPEC, opset=18, form="decomposed", dtype=Dtype.FLOAT32).save(folder / "decomposed.onnx")
    export_target(_CAUSAL, opset=23, form="attention", dtype=Dtype.FLOAT32).save(folder / "causal.onnx")
    onnx.save(product(), folder / "product.onnx")
    onnx.save(fixed_batch(), folder / "fixed.onnx")
    shutil.copy(Path(__file__).parent / "user_modules.py", folder / "mods.py")
    return folder


@pytest.fixture
def shell(material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """A command line in its own folder, with the models and modules of `material`."""
    folder = tmp_path / "work"
    shutil.copytree(material, folder)
    monkeypatch.chdir(folder)
    return Shell(folder, capfd)
