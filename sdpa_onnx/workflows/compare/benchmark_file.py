"""Read a file that pytest-benchmark or our pytest plugin wrote.

Does not interpret the JSON: `core.compare.benchmark_json` does.
"""

from pathlib import Path

from sdpa_onnx.core.compare.benchmark_json import BenchmarkJson, read_benchmark_json
from sdpa_onnx.errors import RecordFormatError

__all__ = ["read_benchmarks"]


def read_benchmarks(path: Path) -> BenchmarkJson:
    """Read a file of `--benchmark-json`, `--benchmark-autosave` or `--sdpa-json`.

    Raises:
        RecordFormatError: If it cannot be read or has another format; file and field are named.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordFormatError(f"Cannot read {path}: {error.strerror or error}.") from error
    return read_benchmark_json(data, where=str(path))
