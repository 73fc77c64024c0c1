"""Files that onnxruntime's own quantizer and float16 converter write from a block with decomposed attention."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HIDDEN, HEADS = 32, 4
_WIDTH = HIDDEN // HEADS

Arrays = dict[str, NDArray[np.generic]]


def block(*, mask: bool = False, divides: bool = False, scaled_operands: bool = False) -> onnx.ModelProto:
    """Project, split heads, softmax(QK^T) V in single nodes, join heads and project: x (and mask) -> y.

    Args:
        mask: Whether a float mask is added to the scores.
        divides: Whether the scale is a Div and not a Mul.
        scaled_operands: Whether query and key are scaled instead of the scores, as torch.onnx writes it.
    """
    drawn = np.random.default_rng(0)
    arrays: Arrays = {f"w{name}": (drawn.standard_normal((HIDDEN, HIDDEN)) / HIDDEN**0.5) for name in "qkvo"}
    arrays |= {f"b{name}": 0.1 * drawn.standard_normal(HIDDEN) for name in "qkvo"}
    factor = _WIDTH**0.25 if scaled_operands else _WIDTH**0.5
    arrays |= {"scale": np.array(factor if divides else 1 / factor)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    arrays |= {"split": np.array([0, 0, HEADS, _WIDTH]), "join": np.array([0, 0, HIDDEN])}
    nodes = []

    def add(kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=f"node_{output}", **attributes))
        return output

    scaling = "Div" if divides else "Mul"
    for name in "qkv":
        made = add("Add", [add("MatMul", ["x", f"w{name}"], f"{name}_product"), f"b{name}"], f"{name}_sum")
        apart = add("Reshape", [made, "split"], f"{name}_apart")
        add("Transpose", [apart], f"{name}_heads", perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3])
    operands = ["q_heads", "k_heads"]
    if scaled_operands:
        operands = [add(scaling, [name, "scale"], f"{name}_scaled") for name in operands]
    scores = add("MatMul", operands, "qk")
    if not scaled_operands:
        scores = add(scaling, [scores, "scale"], "scores")
    if mask:
        scores = add("Add", [scores, "mask"], "masked")
    add("MatMul", [add("Softmax", [scores], "weights", axis=-1), "v_heads"], "attended")
    joined = add("Reshape", [add("Transpose", ["attended"], "back", perm=[0, 2, 1, 3]), "join"], "joined")
    add("Add", [add("MatMul", [joined, "wo"], "o_product"), "bo"], "y")
    shape = ["batch", "length", HIDDEN]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if mask:
        inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 1, "length", "length"]))
    graph = helper.make_graph(
        nodes,
        "block",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(names: list[str], *, length: int = 12, seed: int = 1) -> Arrays:
    """Inputs of a block; a fifth of the keys has a mask of -5."""
    drawn = np.random.default_rng(seed)
    found: Arrays = {"x": drawn.standard_normal((2, length, HIDDEN)).astype(np.float32)}
    if "mask" in names:
        found["mask"] = np.where(drawn.random((2, 1, length, length)) < 0.2, -5.0, 0.0).astype(np.float32)
    return found


def static(path: Path, target: Path, **options: Any) -> None:
    """Quantise a file statically: QDQ pairs at the inputs and outputs of its nodes."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    names = [value.name for value in onnx.load(path).graph.input]

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # has no types
        def __init__(self) -> None:
            self._sets = ({**feeds(["mask"], seed=seed)} for seed in range(4))

        def get_next(self) -> Arrays | None:
            found = next(self._sets, None)
            return None if found is None else {names[0]: found["x"], **{name: found[name] for name in names[1:]}}

    with _silent():
        quantize_static(path, target, Reader(), **{"quant_format": QuantFormat.QDQ, **options})


def dynamic(path: Path, target: Path) -> None:
    """Quantise the weights of a file; its inputs are quantised as they come."""
    from onnxruntime.quantization import quantize_dynamic

    with _silent():
        quantize_dynamic(path, target)


def few_bits(path: Path, target: Path, *, bits: int, is_symmetric: bool) -> None:
    """Quantise the weights of a file in blocks: MatMulNBits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(path), bits=bits, block_size=16, is_symmetric=is_symmetric)
    with _silent():
        quantizer.process()
    quantizer.model.save_model_to_file(str(target))


def half(path: Path, target: Path, *, keep_io_types: bool, convert: Callable[..., onnx.ModelProto]) -> None:
    """Convert a file to float16."""
    with _silent():
        onnx.save(convert(onnx.load(path), keep_io_types=keep_io_types), target)


@contextmanager
def _silent() -> Iterator[None]:
    """Without the advice that the quantizer logs."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
