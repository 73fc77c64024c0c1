"""Files of arms in a temporary folder, and the error if the disk is full."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.errors import FolderError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import get_runtime
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
