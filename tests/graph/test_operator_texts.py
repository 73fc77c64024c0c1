"""What the text of each operator and opset says of outputs and masks, quoted, and that the judge does the same.

The quotations are looked up in the installed schemas, so that a change of a text makes a test fail.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx.defs
import pytest

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.mask_rule import MaskRule, mask_rule_of
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, MaskKind
from sdpa_onnx.core.judge.attention_outputs import permitted_readings
from sdpa_onnx.core.judge.cache_agreement import present_of
from sdpa_onnx.errors import CaseError
from sdpa_onnx.graph.attention_node import minimum_opset
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.site_outputs import FORMAL_OUTPUTS

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)
_CACHED = replace(_SPEC, has_past=True)
_STANDARD = ("", "Attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One sentence of an operator's text.

    Args:
        operator: Domain and name.
        opsets: Where the text has it; of onnxruntime's operators the version, 1.
        absent: Opsets whose text does not have it.
        text: A phrase of the schema.
        holds: Whether what we do at an opset agrees with it.
    """

    operator: tuple[str, str]
    opsets: tuple[int, ...]
    text: str
    holds: Callable[[int], bool]
    absent: tuple[int, ...] = ()


def _inputs(spec: AttentionSpec) -> AttentionInputs:
    past = 2 if spec.has_past else 0
    return draw_inputs(AttentionCase(spec=spec, batch_size=2, q_seq_len=3, kv_seq_len=3, past_seq_len=past))


def _hidden_rows(_: int) -> bool:
    spec = replace(_SPEC, mask=MaskKind.BOOL)
    inputs = replace(_inputs(spec), attn_mask=np.zeros((3, 3), np.bool_))
    truth = attend(spec, inputs, qk_mode=QkOutputMode.WEIGHTS)
    return truth.qk is not None and not truth.output.any() and not truth.qk.any()


def _present_lengths(_: int) -> bool:
    cache = present_of(_CACHED, _inputs(_CACHED))
    return {role: array.shape[-2] for role, array in cache.items()} == {
        OutputRole.PRESENT_KEY: 5,
        OutputRole.PRESENT_VALUE: 5,
        OutputRole.PRESENT: 5,
    }


def _past_together(_: int) -> bool:
    try:
        attend(_CACHED, replace(_inputs(_CACHED), past_value=None))
    except CaseError:
        return True
    return False


def _no_lengths_with_past(_: int) -> bool:
    try:
        replace(_CACHED, mask=MaskKind.LENGTHS)
    except CaseError:
        return True
    return False


def _before_the_mask(_: int) -> bool:
    spec = replace(_SPEC, softcap=1.0, is_causal=True)
    scores = attend(spec, _inputs(spec), qk_mode=QkOutputMode.AFTER_SOFTCAP).qk
    return scores is not None and bool(np.isfinite(scores).all()) and float(np.abs(scores).max()) < 1.0


def _offset_of_the_past(_: int) -> bool:
    spec = replace(_CACHED, is_causal=True)
    weights = attend(spec, _inputs(spec), qk_mode=QkOutputMode.WEIGHTS).qk
    return weights is not None and bool((weights[:, :, 0, :3] > 0).all()) and not weights[:, :, 0, 3:].any()


def _two_readings(_: int) -> bool:
    spec = replace(_SPEC, scale=-1.0)
    return len(permitted_readings(spec, _inputs(spec), MaskRule.PADDED)) == 2


def _outputs(name: str, *roles: OutputRole) -> Callable[[int], bool]:
    return lambda _: FORMAL_OUTPUTS[CONTRIB_DOMAIN, name][: len(roles)] == roles


_ALL = (23, 24, 25)
_PAIR = (OutputRole.OUTPUT, OutputRole.PRESENT_KEY, OutputRole.PRESENT_VALUE)
_MULTI, _GROUP, _PACKED = (
    (CONTRIB_DOMAIN, name) for name in ("MultiHeadAttention", "GroupQueryAttention", "Attention")
)

CONSTRAINTS = (
    Constraint(
        operator=_STANDARD,
        opsets=(23,),
        absent=(24, 25),
        text="Shape must be broadcastable to 4D tensor with shape",
        holds=lambda opset: mask_rule_of(opset) is MaskRule.BROADCAST,
    ),
    Constraint(
        operator=_STANDARD,
        opsets=(24, 25),
        absent=(23,),
        text="The last dimension can also be shorter than `total_sequence_length` and will be padded to "
        "`total_sequence_length` with negative infinity",
        holds=lambda opset: mask_rule_of(opset) is MaskRule.PADDED,
    ),
    Constraint(
        operator=_STANDARD,
        opsets=_ALL,
        text="Updated key cache with shape `(batch_size, kv_num_heads, total_sequence_length, head_size)` where "
        "`total_sequence_length = past_sequence_length + kv_sequence_length`",
        holds=_present_lengths,
    ),
    Constraint(operator=_STANDARD, opsets=_ALL, text="They shall be used together", holds=_past_together),
    Constraint(operator=_STANDARD, opsets=_ALL, text="produces a zero output row", holds=_hidden_rows),
    Constraint(
        operator=_STANDARD,
        opsets=_ALL,
        text="In mode `3`, a fully-masked query row (every key disallowed",
        holds=_hidden_rows,
    ),
    Constraint(
        operator=_STANDARD,
        opsets=(23, 24),
        absent=(25,),
        text="If set to `1`, qk_matmul_output is the output after the softcap operation (before mask addition)",
        holds=_before_the_mask,
    ),
    Constraint(
        operator=_STANDARD,
        opsets=(25,),
        absent=(23, 24),
        text="`1`: after softcap (before bias addition)",
        holds=_before_the_mask,
    ),
    Constraint(
        operator=_STANDARD,
        opsets=(23,),
        absent=(24, 25),
        text="query `i` attends key `j` iff `j <= i + past_sequence_length`",
        holds=_offset_of_the_past,
    ),
    Constraint(
        operator=_STANDARD,
        opsets=(24, 25),
        absent=(23,),
        text="`offset = past_sequence_length` when `past_key` is provided",
        holds=_offset_of_the_past,
    ),
    Constraint(operator=_STANDARD, opsets=_ALL, text="Scaling factor applied to $Q*K^T$", holds=_two_readings),
    Constraint(
        operator=_STANDARD, opsets=_ALL, text="scale `Q`, `K` by `sqrt(scale)` before matmul", holds=_two_readings
    ),
    Constraint(
        operator=_STANDARD,
        opsets=(24, 25),
        absent=(23,),
        text="This should not be used together with `past_key` and `past_value` inputs",
        holds=_no_lengths_with_past,
    ),
    Constraint(
        operator=_STANDARD,
        opsets=(25,),
        absent=(23, 24),
        text="Maximum number of positions to the left of the current absolute query position",
        holds=lambda opset: minimum_opset(replace(_SPEC, left_window=1)) == opset,
    ),
    Constraint(operator=_MULTI, opsets=(1,), text="normalized Q * K", holds=_outputs(_MULTI[1], *_PAIR, OutputRole.QK)),
    Constraint(operator=_MULTI, opsets=(1,), text="present state for key", holds=_outputs(_MULTI[1], *_PAIR)),
    Constraint(
        operator=_GROUP,
        opsets=(1,),
        text="Output values of QK matrix multiplication before (1) or after (2) softmax normalization",
        holds=_outputs(_GROUP[1], *_PAIR, OutputRole.QK),
    ),
    Constraint(
        operator=_GROUP,
        opsets=(1,),
        text="present state key with support for format BNSH",
        holds=_outputs(_GROUP[1], *_PAIR),
    ),
    Constraint(
        operator=_PACKED,
        opsets=(1,),
        text="past state for key and value with shape (2, batch_size, num_heads, total_sequence_length, head_size)",
        holds=_outputs(_PACKED[1], OutputRole.OUTPUT, OutputRole.PRESENT),
    ),
)


def _text_of(operator: tuple[str, str], opset: int) -> str:
    """Documentation, inputs, outputs and attributes of a schema in one line."""
    if operator == _STANDARD:
        schema = onnx.defs.get_schema("Attention", opset)
    else:
        contrib = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
        schemas = {(one.domain, one.name): one for one in contrib.get_all_operator_schema()}
        schema = schemas[operator]
    parts = [schema.doc or "", *(one.description for one in (*schema.inputs, *schema.outputs))]
    parts += [attribute.description for attribute in schema.attributes.values()]
    return " ".join(" ".join(parts).split())


def _named(constraint: Constraint) -> str:
    return f"{constraint.operator[1]}-{constraint.opsets[0]}-{constraint.text[:30]}"


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=_named)
def test_the_judge_follows_the_text_of_the_opset(constraint: Constraint) -> None:
    """The phrase is in the text of these opsets and in no other, and what we do there agrees with it."""
    for opset in constraint.opsets:
        assert constraint.text in _text_of(constraint.operator, opset)
        assert constraint.holds(opset)
    for opset in constraint.absent:
        assert constraint.text not in _text_of(constraint.operator, opset)


def test_every_operator_that_we_read_is_in_the_table() -> None:
    """A new operator needs its rows, and every opset of the standard one has some."""
    assert {one.operator for one in CONSTRAINTS} == set(FORMAL_OUTPUTS)
    assert {opset for one in CONSTRAINTS if one.operator == _STANDARD for opset in one.opsets} == set(_ALL)
