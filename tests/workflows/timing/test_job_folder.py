"""Files of arms in a temporary folder, and the error if the disk is full."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sdpa_onnx.errors import FolderError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.torch_export.targets import resolve_target
from sdpa_onnx.workflows.timing import job_folder as bench_jobs
from sdpa_onnx.workflows.timing.job_folder import Arm, JobFolder


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (
            errno.ENOSPC,
            "No space left on device. Free some space, or name another folder in the environment variable TMPDIR.",
        ),
        (errno.EACCES, "Permission denied."),
    ],
)
def test_no_room(bare_model: OnnxModel, monkeypatch: pytest.MonkeyPatch, number: int, reason: str) -> None:
    """The error names a full disk, and how to use another one."""

    def full(folder: Path, _: object) -> Path:
        raise OSError(number, os.strerror(number), folder)

    monkeypatch.setattr(bench_jobs, "write_arrays", full)
    arm = Arm(name="a", model=bare_model, runtime=get_runtime("ort-cpu"))
    with JobFolder() as files, pytest.raises(FolderError) as caught:
        files.job(arm, {"Q": np.zeros(2)}, threads=1)
    assert str(caught.value) == f"Cannot write {files._folder.name}: {reason}"


_BLOCK = """
import torch
from block_parts import Scaled
class Block(torch.nn.Module):
    sample_inputs = (torch.zeros(2, 3),)
    def __init__(self):
        super().__init__()
        self.scaled = Scaled()
    def forward(self, x):
        return self.scaled(x)
"""
_PARTS = """
import torch
class Scaled(torch.nn.Module):
    def forward(self, x):
        return 2 * x
"""
_WORKER = """
import sys
from pathlib import Path
import torch
from sdpa_onnx.runtimes.worker.on_sdpa_onnx import IMPORTS_SUFFIX, _import_classes
path = Path(sys.argv[1])
_import_classes(path.with_suffix(IMPORTS_SUFFIX))
module, _ = torch.load(path, weights_only=False)
print(module(torch.ones(1)).item())
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["FILE", "module"])
def test_a_module_is_found_in_another_process(
    bare_model: OnnxModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Of a file, which imports another one of its folder, and of a package in the current folder."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "block_parts.py").write_text(_PARTS)
    for file in (tmp_path / "my_block.py", package / "inner.py"):
        file.write_text(_BLOCK)
    monkeypatch.chdir(tmp_path)
    target = resolve_target(f"{tmp_path / 'my_block.py'}:Block" if where == "FILE" else "my_package.inner:Block")
    model = replace(bare_model, source=target.module)
    with JobFolder() as files:
        job = files.job(Arm(name="t", model=model, runtime=get_runtime("torch")), {"Q": np.zeros(2)}, threads=1)
        pickled = job.model.with_suffix(".pt")
        done = subprocess.run(
            [sys.executable, "-c", _WORKER, str(pickled)], cwd="/", capture_output=True, text=True, check=False
        )
    assert (done.stdout, done.stderr) == ("2.0\n", "")


def test_names_that_are_not_ascii(bare_model: OnnxModel, tmp_path: Path) -> None:
    """The file and the class of a module may have any letters."""
    file = tmp_path / "mö'<b>.py"
    file.write_text("import torch\nclass Blöck(torch.nn.Identity):\n    sample_inputs = (torch.zeros(2),)\n", "utf-8")
    model = replace(bare_model, source=resolve_target(f"{file}:Blöck").module)
    with JobFolder() as files:
        job = files.job(Arm(name="t", model=model, runtime=get_runtime("torch")), {"Q": np.zeros(2)}, threads=1)
        read, _ = torch.load(job.model.with_suffix(".pt"), weights_only=False)
    assert type(read) is type(model.source)
