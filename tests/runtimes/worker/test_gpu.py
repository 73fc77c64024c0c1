"""A worker on a real GPU; skipped where there is none. scripts/gpu_check.sh runs it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.measure.arm_settings import arm_settings
from sdpa_onnx.measure.what_ran import worker_report
from sdpa_onnx.runtimes.arm_job import ArmJob
from sdpa_onnx.runtimes.array_files import read_arrays
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, Supported, get_runtime
from sdpa_onnx.runtimes.timing_worker import TimingWorker
from tests.runtimes.worker.environments import ORT_CUDA

pytestmark = pytest.mark.skipif(
    not isinstance(get_runtime("ort-cuda").available(), Supported), reason="no GPU, or an onnxruntime without CUDA"
)


def test_a_worker_on_the_gpu(folder: Path, tmp_path: Path) -> None:
    """The numbers are those of the session, the time is the GPU's, and its clock is told."""
    model = load_model(folder / "model.onnx")
    job = ArmJob(
        runtime="ort-cuda",
        engine=ORT_CUDA,
        model=folder / "model.onnx",
        inputs=folder / "inputs",
        new_length_inputs=folder / "longer",
        settings=arm_settings("ort-cuda", threads=1),
    )
    with TimingWorker(ORT_CUDA, python=None, threads=1, patience_seconds=120.0) as worker:
        loaded = worker.load(job)
        warm = worker.visit(100)
        report = worker_report(worker, model, "ort-cuda", threads=1)
        worker.outputs(tmp_path / "outputs")
        worker.load(replace(job, copies=2))
        cold = worker.visit(100)
    print(loaded, warm, cold)  # noqa: T201 - kept by gpu_check.sh
    assert (loaded.device, loaded.warnings) == ("cuda", ())
    assert report.providers == {"CUDAExecutionProvider": 2}
    assert len(warm.wall_ns) == len(cold.wall_ns) == 10
    assert (warm.wall_ns > 0).all()
    assert (warm.wall_ns <= warm.cpu_ns).all()
    assert np.median(warm.wall_ns) < np.median(cold.wall_ns)
    assert warm.clock_mhz > 0
    inputs = read_arrays(folder / "inputs")
    with get_runtime("ort-cuda").load(model, LoadOptions(purpose=Purpose.TIMING)) as session:
        expected = session.run(inputs)["z"]
    unit = find_precision("tf32").output.unit_roundoff
    np.testing.assert_allclose(read_arrays(tmp_path / "outputs")["z"], expected, rtol=0.0, atol=24 * unit)
