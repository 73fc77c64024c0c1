"""onnx's evaluator whose Attention nodes follow a reading of our own: what a workaround writes around them counts."""

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
    """Right by the oracle, unless told otherwise.

    Args:
        reading: Name of the reading that nodes follow where their spec can tell it; "" = the oracle's own.
        refuses: Why a node of these inputs is refused, or "".
        measures_time: Whether it may be timed.
    """

    reading: str = ""
    refuses: Callable[[AttentionSpec, AttentionInputs], str] = lambda *_: ""
    measures_time: bool = False  # type: ignore[misc]  # told per runtime here

    def load(self, model: OnnxModel, options: LoadOptions) -> ReferenceSession:
        return ReferenceSession(model, ReferenceEvaluator(model.to_proto(), new_ops=[self._operator()]))

    def _operator(self) -> type[OpRun]:
        runtime = self

        class Attention(OpRun):
            op_domain = ""

            def _run(self, *arrays: Array | None, **attributes: Any) -> tuple[Array, ...]:
                given = AttentionInputs(**dict(zip(ONNX_INPUT_NAMES, arrays, strict=False)))
                return runtime.answer(_spec(given, attributes), given)

        return Attention

    def answer(self, spec: AttentionSpec, given: AttentionInputs) -> tuple[Array, ...]:
        """The outputs of one node."""
        refusal = self.refuses(spec, given)
        if refusal:
            raise SessionError(refusal)
        blocks: Blocks = head_blocks
        if self.reading and find_reading(self.reading).applies(spec):
            blocks = find_reading(self.reading).blocks
        right = attend(spec, given)
        output = np.zeros(right.output.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            for block in blocks(spec, given):
                weights = softmax(block.logits(block.capped(block.scores())))
                output[block.batch, block.head, block.rows] = weights @ block.value
        kind = given.query.dtype
        wanted = (output, right.present_key, right.present_value)
        return tuple(np.zeros(0, kind) if array is None else array.astype(kind) for array in wanted)


def _spec(given: AttentionInputs, attributes: dict[str, Any]) -> AttentionSpec:
    """What a 4-D node says of itself."""
    mask = MaskKind.NONE
    if given.attn_mask is not None:
        mask = MaskKind.BOOL if given.attn_mask.dtype == bool else MaskKind.FLOAT
    return AttentionSpec(
        q_num_heads=given.query.shape[1],
        kv_num_heads=given.key.shape[1],
        head_dim=given.query.shape[3],
        v_head_dim=given.value.shape[3],
        is_causal=bool(attributes.get("is_causal")),
        softcap=attributes.get("softcap") or 0.0,
        scale=ScaleRule.INVERSE_SQRT if attributes.get("scale") is None else attributes["scale"],
        mask=mask,
        has_past=given.past_key is not None,
    )
