"""The parts of a worker by themselves: its loop, its reading of a profile, its files."""

import ast
import errno
import gc
import json
import platform
import resource
import sys
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.runtimes import worker
from sdpa_onnx.runtimes.worker import memory
from sdpa_onnx.runtimes.worker.arrays import read_bits, write_bits
from sdpa_onnx.runtimes.worker.profile import UNKNOWN, read_profile
from sdpa_onnx.runtimes.worker.visit import Turns, visit

_IN_OUR_ENVIRONMENT = {"on_sdpa_onnx", "sessions", "function", "own_errors"}
# What an engine's runtime needs, and what such runtimes bring.
_PACKAGES = {
    "emx": ("emx_onnx_cgen", "onnx"),
    "iree": ("iree", "onnx"),
    "mnn": ("MNN", "_tools"),
    "fixed_sizes": ("onnx",),
    "model_file": ("onnx",),
    "nxrt": ("nxrt", "ml_dtypes"),
    "onnxruntime_import": ("onnxruntime",),
    "plain_arrays": ("ml_dtypes",),
    "tract": ("tract",),
}
_FILES = sorted(Path(worker.__path__[0]).rglob("*.py"))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_calls_take_turns_over_visits(count: int) -> None:
    """Each visit goes on where the last one stopped, with as many times as calls, none negative."""
    made: list[int] = []
    turns = Turns([lambda number=number: made.append(number) for number in range(count)])  # type: ignore[misc]
    for calls in (3, 4):
        counters, arrays = visit(turns, calls)
        assert [len(arrays[name]) for name in ("wall_ns", "cpu_ns")] == [calls, calls]
        assert all((array >= 0).all() and array.dtype == np.int64 for array in arrays.values())
        assert set(counters) == {"switches", "faults"}
    assert made == [index % count for index in range(7)]


def test_times_stand_beside_each_other() -> None:
    """The end of one call is the start of the next, so that the times of a visit add up to its length."""
    clock = iter(range(0, 10_000, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdpa_onnx.runtimes.worker.visit.time.perf_counter_ns", lambda: next(clock))
        patch.setattr("sdpa_onnx.runtimes.worker.visit.time.process_time_ns", lambda: 0)
        _, arrays = visit(Turns([lambda: None]), 5)
    assert arrays["wall_ns"].tolist() == [7] * 5
    assert next(clock) == 6 * 7


def test_no_collection_within_a_visit() -> None:
    """Python's collector is off during calls, and on again after, even after a failure."""
    seen: list[bool] = []
    visit(Turns([lambda: seen.append(gc.isenabled())]), 2)
    assert seen == [False, False]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        visit(Turns([lambda: 1 // 0]), 1)
    assert gc.isenabled()


def _event(name: str, start: int, length: int) -> dict[str, object]:
    return {"cat": "Node", "name": name, "ts": start, "dur": length}


def test_kernel_time_of_a_profile(tmp_path: Path) -> None:
    """Warm-up is left out, a kernel inside another counts once, the median of the runs is told in seconds."""
    path = tmp_path / "profile.json"
    events = [
        _event("a_kernel_time", 0, 900),
        _event("model_run", 0, 1000),  # warm-up
        _event("a_kernel_time", 1000, 10),
        _event("a_fence_after", 1010, 5),
        _event("model_run", 1000, 100),
        _event("inner_kernel_time", 2010, 20),
        _event("outer_kernel_time", 2000, 50),
        _event("a_kernel_time", 2060, 10),
        _event("model_run", 2000, 100),
        _event("a_kernel_time", 3000, 70),
        _event("model_run", 3000, 100),
    ]
    path.write_text(json.dumps(events))
    found = read_profile(path, 3)
    assert (found["kernels"], found["call"]) == pytest.approx((60e-6, 100e-6), rel=1e-12)
    path.write_text("[]")
    assert read_profile(path, 3) == UNKNOWN


def test_nodes_of_a_profile(tmp_path: Path) -> None:
    """Each node has its median over the runs, the longest first; a branch counts to the node that it is in."""
    path = tmp_path / "profile.json"
    attention = {"args": {"op_name": "Attention"}}
    events = [
        _event("warm_kernel_time", 0, 900) | attention,
        _event("model_run", 0, 1000),
        _event("if_kernel_time", 1000, 10) | {"args": {"op_name": "If"}},
        _event("branch_kernel_time", 1001, 5),
        _event("a/b_kernel_time", 1020, 30) | attention,
        _event("model_run", 1000, 100),
        _event("if_kernel_time", 2000, 20) | {"args": {"op_name": "If"}},
        _event("a/b_kernel_time", 2020, 50) | attention,
        _event("model_run", 2000, 100),
    ]
    path.write_text(json.dumps(events))
    found = [(one["node"], one["operator"], round(one["seconds"] * 1e6)) for one in read_profile(path, 2)["nodes"]]
    assert found == [("a/b", "Attention", 40), ("if", "If", 15)]


def test_memory_where_it_is_not_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Elsewhere than on Linux there is a word for it, not a wrong number."""
    assert memory.resident_bytes() > 0 or not Path("/proc/self/status").exists()
    monkeypatch.setattr(memory, "_PROCESSES", tmp_path)
    assert (memory.resident_bytes(), memory.peak_bytes(), memory.reset_peak()) == (-1, -1, False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_the_peak_is_told() -> None:
    """64 MiB that were held for a moment stand in the peak and not in what is resident."""
    if not memory.reset_peak():
        pytest.skip("this system does not let the peak begin anew")
    before = memory.resident_bytes()
    np.ones(2**23).sum()
    assert memory.peak_bytes() - before > 2**25 > memory.resident_bytes() - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc does it")
def test_freed_memory_is_given_back() -> None:
    """64 MiB of freed blocks below one that is still held are not resident any more."""
    blocks = [bytes(2**16) for _ in range(2**10)]
    del blocks[:-1]
    before = memory.resident_bytes()
    memory.give_back()
    assert before - memory.resident_bytes() > 2**25


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_files_run_in_other_environments(path: Path) -> None:
    """Each file is Python 3.9 and imports nothing but Python's own, numpy, its runtime and its neighbours."""
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    allowed = {
        *sys.stdlib_module_names,
        "numpy",
        *_PACKAGES.get(path.stem, ()),
        *(["sdpa_onnx", "onnx", "torch"] if path.stem in _IN_OUR_ENVIRONMENT else []),
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
    assert found <= allowed
    has_annotations = any(isinstance(node, ast.FunctionDef) for node in tree.body) or path.stem == "main"
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert bool(futures) or not has_annotations


def test_arrays_of_every_layout_come_back(tmp_path: Path) -> None:
    """Also transposed ones and those of no or one element."""
    arrays = {"t": np.arange(6.0).reshape(2, 3).T, "s": np.float16(3), "e": np.zeros((0, 2), dtype=np.int8)}
    write_bits(tmp_path / "bits", {name: (np.asarray(array), 1) for name, array in arrays.items()})
    found = read_bits(tmp_path / "bits")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name][0], array, strict=name != "s")


def test_an_array_that_finds_no_room(tmp_path: Path) -> None:
    """The system's reason reaches us; numpy by itself tells only how much was written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_bits(tmp_path / "bits", {"x": (np.zeros(4096), 11)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
