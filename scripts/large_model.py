"""Create a model of more than 3 GB, convert it, and print memory and time as Markdown.

Run from the root of the repository: `python -m scripts.large_model --folder FOLDER`. The model has layers of
attention and MLP projections of hidden size 4096 in float16, with external data in one file. `--step save` only reads
and writes; `prove` also verifies, as the command line does, in a process that needs about twice the model's size
in memory. Anonymous memory (RssAnon of /proc, Linux only) is sampled in the process that converts; the process that
verifies is separate. A plain copy of the same two files is timed in turn for comparison. Files are deleted.
"""

import argparse
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.graph.model import load_model

HIDDEN, HEADS, HEAD_DIM, WIDTH = 4096, 32, 128, 11008
_NAME = "large.onnx"
_SAMPLE_SECONDS = 0.005
_PATIENCE_SECONDS = 1800.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder with 10 GB of free space")
    parser.add_argument("--step", choices=("save", "convert", "prove"), default="convert")
    parser.add_argument("--form", type=Form, default=Form.ORT_MHA, help="target form; the model itself is decomposed")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    source = options.folder / "source"
    source.mkdir()
    largest = write_model(source / _NAME, layers=options.layers)
    total = sum(path.stat().st_size for path in source.iterdir())
    print(f"{total / 1e9:.2f} GB, largest tensor {largest / 2**20:.0f} MiB, limit {largest / 2**20 + 500:.0f} MiB\n")
    print(f"| {options.step} | RssAnon before, MiB | peak, MiB | seconds | plain copy, seconds | ratio |")
    print("|---|---|---|---|---|---|")
    held = True
    try:
        for number in range(options.repeat):
            copying = copy_seconds(source, options.folder / "copy")
            before, peak, seconds = measured(source / _NAME, options.folder / "result", options.step, options.form)
            held &= peak < largest + 500 * 2**20
            figures = f"{before / 2**20:.0f} | {peak / 2**20:.0f} | {seconds:.1f} | {copying:.1f}"
            print(f"| {number + 1} | {figures} | {seconds / copying:.2f} |", flush=True)
    finally:
        shutil.rmtree(source)
    return 0 if held else 1


def write_model(path: Path, *, layers: int) -> int:
    """Write the model and its data; bytes of the largest tensor."""
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []
    rng = np.random.default_rng(0)
    value = "x"
    with path.with_name(f"{path.name}.data").open("wb") as data:

        def tensor(name: str, *shape: int) -> str:
            proto = TensorProto(name=name, data_type=TensorProto.FLOAT16, dims=shape)
            proto.data_location = TensorProto.EXTERNAL
            length = 2 * int(np.prod(shape))
            entries = (("location", f"{path.name}.data"), ("offset", data.tell()), ("length", length))
            for key, entry in entries:
                proto.external_data.add(key=key, value=str(entry))
            # Small, so that sums of 4096 products stay small; of odd length, so that rows differ.
            block = (rng.standard_normal(2**16 + 1) * 0.01).astype(np.float16).tobytes()
            for start in range(0, length, len(block)):
                data.write(block[: length - start])
            tensors.append(proto)
            return name

        for layer in range(layers):
            value = _layer(f"layer{layer}", value, nodes, tensor)
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    size = ["batch_size", "sequence", HIDDEN]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, size) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], tensors)
    split = helper.make_tensor("split", TensorProto.INT64, [4], [0, 0, HEADS, HEAD_DIM])
    joined = helper.make_tensor("joined", TensorProto.INT64, [3], [0, 0, HIDDEN])
    graph.initializer.extend([split, joined, helper.make_tensor("scale", TensorProto.FLOAT16, [], [HEAD_DIM**-0.5])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return 2 * HIDDEN * WIDTH


def _layer(name: str, value: str, nodes: list[onnx.NodeProto], tensor: Callable[..., str]) -> str:
    """One layer with residuals; returns the name of its output."""

    def node(operator: str, *inputs: str, **attributes: object) -> str:
        output = f"{name}/{operator}{len(nodes)}"
        nodes.append(helper.make_node(operator, list(inputs), [output], name=output, **attributes))
        return output

    def heads(letter: str, perm: list[int]) -> str:
        projected = node("MatMul", value, tensor(f"{name}.{letter}", HIDDEN, HIDDEN))
        return node("Transpose", node("Reshape", projected, "split"), perm=perm)

    query, key, content = heads("q", [0, 2, 1, 3]), heads("k", [0, 2, 3, 1]), heads("v", [0, 2, 1, 3])
    weights = node("Softmax", node("Mul", node("MatMul", query, key), "scale"), axis=-1)
    mixed = node("Transpose", node("MatMul", weights, content), perm=[0, 2, 1, 3])
    attended = node("MatMul", node("Reshape", mixed, "joined"), tensor(f"{name}.o", HIDDEN, HIDDEN))
    value = node("Add", value, attended)
    wide = node("Relu", node("MatMul", value, tensor(f"{name}.up", HIDDEN, WIDTH)))
    return node("Add", value, node("MatMul", wide, tensor(f"{name}.down", WIDTH, HIDDEN)))


def copy_seconds(source: Path, target: Path) -> float:
    """Time to read every file and write it again."""
    target.mkdir()
    start = time.perf_counter()
    for path in source.iterdir():
        with path.open("rb") as old, (target / path.name).open("wb") as new:
            while chunk := old.read(2**23):
                new.write(chunk)
    seconds = time.perf_counter() - start
    shutil.rmtree(target)
    return seconds


def measured(source: Path, folder: Path, step: str, form: Form) -> tuple[float, float, float]:
    """Anonymous memory before and at its peak in bytes, and seconds, of one step in a fresh process."""
    folder.mkdir()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            before = anonymous_bytes()
            start = time.perf_counter()
            with peak_memory() as peak:
                STEPS[step](source, folder / "result.onnx", form)
            os.write(writer, f"{before} {max(peak)} {time.perf_counter() - start}".encode())
            status = 0
        except BaseException:  # noqa: BLE001  # reported here: this process ends at once
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answer:
        figures = answer.read().split()
    os.waitpid(child, 0)
    shutil.rmtree(folder)
    if not figures:
        raise SystemExit(f"The step {step} failed; see above.")
    before, peak_bytes, seconds = (float(figure) for figure in figures)
    return before, peak_bytes, seconds


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Anonymous memory of this process, sampled until the block ends."""
    found = [anonymous_bytes()]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            found.append(anonymous_bytes())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def anonymous_bytes() -> int:
    """RssAnon of this process: memory that is not backed by a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise SystemExit("This system does not report RssAnon.")


def _save(source: Path, target: Path, form: Form) -> None:  # noqa: ARG001  # as the other steps
    load_model(source).save(target)


def _convert(source: Path, target: Path, form: Form) -> None:
    from sdpa_onnx.workflows.convert.convert_model import convert_model

    converted = convert_model(load_model(source), form)
    if converted.refused or not converted.converted:
        raise SystemExit(f"Of {len(converted.found)} attentions some were not converted: {converted.refused}")
    converted.model.save(target)


def _prove(source: Path, target: Path, form: Form) -> None:
    from sdpa_onnx.workflows.convert.convert_file import ProofOptions, convert_and_prove

    found = convert_and_prove(source, target, form, proof=ProofOptions(patience_seconds=_PATIENCE_SECONDS))
    if found.proof is None or not found.is_right:
        raise SystemExit(f"Not proved: {found.proof}")


STEPS = {"save": _save, "convert": _convert, "prove": _prove}

if __name__ == "__main__":
    sys.exit(main())
