"""Read a file that pytest-benchmark or our pytest plugin wrote; what is in it `core.compare.benchmark_json` knows."""

from pathlib import Path

from sdpa_onnx.core.compare.benchmark_json import BenchmarkJson, read_benchmark_json
from sdpa_onnx.errors import RecordFormatError

__all__ = ["read_benchmarks"]


def read_benchmarks(path: Path) -> BenchmarkJson:
    """Read what `--benchmark-json`, `--benchmark-autosave` or `--sdpa-json` wrote.

    Raises:
        RecordFormatError: If it cannot be read or is no such file; file and field are named.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordFormatError(f"Cannot read {path}: {error.strerror or error}.") from error
    return read_benchmark_json(data, where=str(path))
