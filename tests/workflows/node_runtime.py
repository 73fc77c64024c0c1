"""ONNX's reference evaluator with Attention nodes that follow a chosen reading; all other nodes are evaluated too."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES, AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock, attend, head_blocks, softmax
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind, ScaleRule
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions
from sdpa_onnx.runtimes.onnx_reference import OnnxReference, ReferenceSession
from tests.core.by_name import find_reading

Array = NDArray[np.generic]
Blocks = Callable[..., Iterator[HeadBlock]]


@dataclass
class NodeRuntime(OnnxReference):
    """A runtime that computes with the oracle, with an optional fault.

    Args:
        reading: Name of the reading that a node follows if it applies to its spec; "" = the oracle.
        refuses: Returns why a node with these inputs is refused, or "".
        measures_time: Whether it may be timed.
    """

    reading: str = ""
    refuses: Callable[[AttentionSpec, AttentionInputs], str] = lambda *_: ""
    measures_time: bool = False  # type: ignore[misc]  # a field here

    def load(self, model: OnnxModel, options: LoadOptions) -> ReferenceSession:
        return ReferenceSession(model, ReferenceEvaluator(model.to_proto(), new_ops=[self._operator()]))

    def _operator(self) -> type[OpRun]:
        runtime = self

        class Attention(OpRun):
            op_domain = ""

            def _run(self, *arrays: Array | None, **attributes: Any) -> tuple[Array, ...]:
                inputs = AttentionInputs(**dict(zip(ONNX_INPUT_NAMES, arrays, strict=False)))
                return runtime.outputs(_spec(inputs, attributes), inputs)

        return Attention

    def outputs(self, spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Array, ...]:
        """The outputs of one node."""
        refusal = self.refuses(spec, inputs)
        if refusal:
            raise SessionError(refusal)
        blocks: Blocks = head_blocks
        if self.reading and find_reading(self.reading).applies(spec):
            blocks = find_reading(self.reading).blocks
        truth = attend(spec, inputs)
        output = np.zeros(truth.output.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            for block in blocks(spec, inputs):
                weights = softmax(block.logits(block.capped(block.scores())))
                output[block.batch, block.head, block.rows] = weights @ block.value
        dtype = inputs.query.dtype
        results = (output, truth.present_key, truth.present_value)
        return tuple(np.zeros(0, dtype) if array is None else array.astype(dtype) for array in results)


def _spec(inputs: AttentionInputs, attributes: dict[str, Any]) -> AttentionSpec:
    """The spec of a 4-D node, from its inputs and attributes."""
    mask = MaskKind.NONE
    if inputs.attn_mask is not None:
        mask = MaskKind.BOOL if inputs.attn_mask.dtype == bool else MaskKind.FLOAT
    return AttentionSpec(
        q_num_heads=inputs.query.shape[1],
        kv_num_heads=inputs.key.shape[1],
        head_dim=inputs.query.shape[3],
        v_head_dim=inputs.value.shape[3],
        is_causal=bool(attributes.get("is_causal")),
        softcap=attributes.get("softcap") or 0.0,
        scale=ScaleRule.INVERSE_SQRT if attributes.get("scale") is None else attributes["scale"],
        mask=mask,
        has_past=inputs.past_key is not None,
    )
