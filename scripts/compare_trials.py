"""Try `sdpa-onnx compare` on a real change, on a planted slow-down and on ten pairs without a change.

    python -m scripts.compare_trials FOLDER [--seconds 30] [--same 10]

Writes the models and the Markdown of every comparison into FOLDER, and prints a table. A comparison that exists is not
repeated.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import onnx_ir as ir

from scripts.planted_work import with_extra_work
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.nodes import Nodes

_AT = "q_seq_len=512,kv_seq_len=512"
# Rows of 512 whose scores are computed again: about a tenth more time; the true slow-down is measured.
_ROWS = 80


def main() -> None:
    """Create the models, compare them, and print the table."""
    arguments = _arguments()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    pairs = _models(folder, arguments.same)
    for name, (base, head, options) in pairs.items():
        if not (folder / f"{name}.json").exists():
            _compare(folder, name, base, head, [*options, "--seconds", str(arguments.seconds)])
        print(_line(name, json.loads((folder / f"{name}.json").read_text())), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--same", type=int, default=10, help="Pairs without a change.")
    return parser.parse_args()


def _models(folder: Path, same: int) -> dict[str, tuple[Path, Path, list[str]]]:
    """Every pair by name: BASE, HEAD, options."""
    attention, blocked, planted = (folder / f"{name}.onnx" for name in ("attention", "blocked", "planted"))
    if not planted.exists():
        _run("export", "sdpa", "--q-num-heads", "8", "--head-dim", "64", "--causal", "-o", attention)
        _run("convert", attention, "-o", blocked, "--form", "blocked")
        _with_the_same_outputs(with_extra_work(load_model(attention), rows=_ROWS)).save(planted)
    pairs = {
        "blocked": (attention, blocked, ["--at", _AT, "--at", "q_seq_len=2048,kv_seq_len=2048"]),
        "planted": (attention, planted, ["--at", _AT]),
    }
    for number in range(same):
        copy = folder / f"same{number}.onnx"
        copy.write_bytes(attention.read_bytes())
        pairs[f"same{number}"] = (attention, copy, ["--at", _AT, "--seed", str(number)])
    return pairs


def _with_the_same_outputs(model: OnnxModel) -> OnnxModel:
    """Add the extra work to Y, multiplied by zero, so that BASE and HEAD have the same outputs."""
    graph = model.ir.graph
    extra, result = graph.outputs[-1], graph.outputs[0]
    nodes = Nodes("extra_end")
    # Finite for all inputs: a comparison with NaN is false.
    is_large = nodes("Greater", extra, _constant(graph, 3e38), dtype=ir.DataType.BOOL)
    large = nodes("Cast", is_large, to=ir.DataType.FLOAT, dtype=ir.DataType.FLOAT)
    zero = nodes("Mul", large, _constant(graph, 0.0))
    total = nodes("Add", result, zero)
    graph.extend(nodes.written)
    total.name, total.dtype, total.shape = "Y", result.dtype, result.shape
    result.name = "Y_before"
    graph.outputs[0] = total
    del graph.outputs[-1]
    return load_model(ir.serde.serialize_model(model.ir))


def _constant(graph: ir.Graph, number: float) -> ir.Value:
    """A constant of the graph."""
    name = f"extra_{number:g}"
    value = ir.Value(name=name, const_value=ir.tensor(number, dtype=ir.DataType.FLOAT, name=name))
    graph.register_initializer(value)
    return value


def _compare(folder: Path, name: str, base: Path, head: Path, options: list[str]) -> None:
    begin = time.monotonic()
    done = _run("compare", base, head, "--json", "--markdown", folder / f"{name}.md", *options)
    rows = json.loads(done.stdout)
    result = {"code": done.returncode, "seconds": time.monotonic() - begin, "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(result))


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "sdpa_onnx", *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{arguments[0]} ended with {done.returncode}.")
    return done


def _line(name: str, result: dict[str, object]) -> str:
    """The results of the gates in one line."""
    rows: list[dict[str, object]] = result["rows"]  # type: ignore[assignment]  # as written above
    results = [f"{row['gate']} {row['word']}" for row in rows if row["word"] != "same"]
    ratios = [
        f"{row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}] {row['word']}"
        for row in rows
        if row["gate"] == "time" and float(row["ratio"]) > 0  # type: ignore[arg-type]  # a number
    ]
    others = [result for result in results if not result.startswith("time")]
    return f"{name:8} exit {result['code']} {result['seconds']:5.0f} s  {'; '.join(ratios)}  {', '.join(others)}"


if __name__ == "__main__":
    main()
