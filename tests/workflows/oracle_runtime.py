"""A runtime that computes with the oracle or with another reading: right and wrong runtimes without a kernel."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock, QkOutputMode, attend, head_blocks, softmax
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Session, Supported, Unsupported
from tests.core.by_name import find_reading

Arrays = dict[str, NDArray[np.generic]]


@dataclass
class OracleSession:
    """Runs models of one ONNX Attention node."""

    model: OnnxModel
    blocks: Callable[..., Iterator[HeadBlock]]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def run(self, inputs: Arrays) -> Arrays:
        site = self.model.sites[0]
        given = AttentionInputs(**{field: inputs[name] for field, name in site.inputs.items()})
        return self.outputs(site.spec, given)

    def outputs(self, spec: AttentionSpec, given: AttentionInputs) -> Arrays:
        node = next(iter(self.model.ir.graph))
        mode = node.attributes.get("qk_matmul_output_mode")
        truth = attend(spec, given, qk_mode=QkOutputMode(mode.as_int() if mode else 0))
        output = np.zeros((*given.query.shape[:-1], truth.output.shape[-1]))
        heads_first = output
        if spec.layout is Layout.BSH:
            heads_first = output.reshape(*output.shape[:2], spec.q_num_heads, spec.v_head_dim).transpose(0, 2, 1, 3)
        with np.errstate(invalid="ignore", over="ignore"):
            for block in self.blocks(spec, given):
                logits = block.logits(block.capped(block.scores()))
                heads_first[block.batch, block.head, block.rows] = softmax(logits) @ block.value
        if spec.layout is Layout.BSH:
            output = heads_first.transpose(0, 2, 1, 3).reshape(output.shape)
        results = zip(node.outputs, (output, truth.present_key, truth.present_value, truth.qk), strict=False)
        return {
            value.name: array.astype(given.query.dtype) for value, array in results if value.name and array is not None
        }

    def bind(self, inputs: Arrays) -> Callable[[], None]:
        raise NotImplementedError

    def ran(self) -> RanReport:
        return RanReport(
            providers={"oracle": 1}, node_counts={"Attention": 1}, precision=self.model.facts.attention_dtype.value
        )


def following(name: str) -> "OracleRuntime":
    """A runtime that follows another reading for every spec to which it applies."""
    reading = find_reading(name)

    def blocks(spec: AttentionSpec, inputs: AttentionInputs) -> Iterator[HeadBlock]:
        return (reading.blocks if reading.applies(spec) else head_blocks)(spec, inputs)

    return OracleRuntime(blocks)


@dataclass
class OracleRuntime:
    """Supports every ONNX Attention."""

    blocks: Callable[..., Iterator[HeadBlock]] = head_blocks
    name: str = "oracle"
    measures_time: bool = False

    def available(self) -> Supported | Unsupported:
        return Supported()

    def version(self) -> str:
        return "oracle 1"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        return Supported() if model.sites else Unsupported("the oracle runs standard attentions only")

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        return OracleSession(model, self.blocks)
