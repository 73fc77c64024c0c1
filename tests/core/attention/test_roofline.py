"""Counts of work against loops that visit every pair, and the roof in seconds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.roofline import (
    AttentionWork,
    Ceilings,
    attention_work,
    bound_by,
    is_memory_bound,
    roof_seconds,
)
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind
from tests.core.loops import is_visible

SPEC: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 2, "head_dim": 3, "v_head_dim": 5}


def case(of_spec: dict[str, Any], **sizes: Any) -> AttentionCase:
    return AttentionCase(
        spec=AttentionSpec(**{**SPEC, **of_spec}), **{"batch_size": 2, "q_seq_len": 5, "kv_seq_len": 7, **sizes}
    )


def counted(problem: AttentionCase) -> tuple[int, int, int]:
    """Useful operations, exponentials, operations of a kernel that skips nothing: one pair after the other."""
    spec, inputs = problem.spec, draw_inputs(replace(problem, spec=replace(problem.spec, mask=MaskKind.NONE)))
    useful = exps = executed = 0
    for batch in range(problem.batch_size):
        for head in range(spec.q_num_heads):
            for i in range(problem.q_seq_len):
                for j in range(problem.total_seq_len):
                    # One multiply and one add for each element of a key, and for each of a value.
                    operations = sum(2 for _ in range(spec.head_dim)) + sum(2 for _ in range(spec.v_head_dim))
                    executed += operations
                    if is_visible(spec, inputs, (batch, head, i, j), problem.q_seq_len):
                        useful += operations
                        exps += 1
    return useful, exps, executed


CASES: dict[str, AttentionCase] = {
    "plain": case({}),
    "causal": case({"is_causal": True}),
    "causal-square": case({"is_causal": True}, q_seq_len=6, kv_seq_len=6),
    "causal-more-queries": case({"is_causal": True}, q_seq_len=7, kv_seq_len=4),
    "causal-past": case({"is_causal": True, "has_past": True}, past_seq_len=3, kv_seq_len=5),
    "decode": case({"is_causal": True, "has_past": True}, past_seq_len=9, q_seq_len=1, kv_seq_len=1),
    "past": case({"has_past": True}, past_seq_len=3),
    "left-window": case({"left_window": 1}),
    "left-window-beyond-keys": case({"left_window": 0}, q_seq_len=9, kv_seq_len=3),
    "right-window": case({"right_window": 0}),
    "both-windows": case({"left_window": 2, "right_window": 1}),
    "window-causal": case({"left_window": 1, "right_window": 2, "is_causal": True}),
    "window-past": case({"left_window": 1, "right_window": 0, "has_past": True}, past_seq_len=4),
    "bool-mask": case({"mask": MaskKind.BOOL, "is_causal": True}),
    "no-queries": case({}, q_seq_len=0),
    "no-keys": case({}, kv_seq_len=0),
}


@pytest.mark.parametrize("name", CASES)
def test_counts_equal_loops(name: str) -> None:
    """Useful operations and exponentials on visible pairs, executed ones on all."""
    work = attention_work(CASES[name])
    assert (work.useful_flops, work.exps, work.executed_flops) == counted(CASES[name])


def test_lengths_count_as_if_nothing_were_hidden() -> None:
    """Full lengths of 7 put 5 causal queries at positions 2 to 6: 3 + 4 + 5 + 6 + 7 pairs a head."""
    problem = case({"mask": MaskKind.LENGTHS, "is_causal": True})
    inputs = replace(draw_inputs(problem), nonpad_kv_seqlen=np.array([7, 7]))
    pairs = sum(is_visible(problem.spec, inputs, (0, 0, i, j), 5) for i in range(5) for j in range(7))
    assert pairs == 25
    assert attention_work(problem).exps == 2 * 4 * pairs


def test_the_formulas_of_the_method() -> None:
    """4 P D for equal widths; causal halves it to (S + 1) / 2S; source: METHOD C.1."""
    spec = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=64)
    work = attention_work(AttentionCase(spec=spec, q_seq_len=100))
    assert work == AttentionWork(
        useful_flops=4 * 100 * 100 * 512,
        executed_flops=4 * 100 * 100 * 512,
        exps=8 * 100 * 100,
        bytes_moved=4 * 100 * 512 * 4,
    )
    causal = attention_work(AttentionCase(spec=replace(spec, is_causal=True), q_seq_len=100))
    assert causal.useful_flops * 2 * 100 == work.useful_flops * 101
    assert causal.executed_flops == work.executed_flops


@pytest.mark.parametrize(
    ("dtype", "width"), [(Dtype.FLOAT64, 8), (Dtype.FLOAT32, 4), (Dtype.FLOAT16, 2), (Dtype.BFLOAT16, 2)]
)
def test_bytes_are_those_of_the_arrays(dtype: Dtype, width: int) -> None:
    """Query, key, value with the cache read once, and the output written once."""
    problem = case({"has_past": True}, past_seq_len=3, dtype=dtype)
    arrays = draw_inputs(problem).named()
    output = 2 * 4 * 5 * 5
    assert attention_work(problem).bytes_moved == width * (sum(array.size for array in arrays.values()) + output)


# A second of products, half of one of exponentials, and a second and a half of memory.
_WORK = AttentionWork(useful_flops=10**9, executed_flops=10**9, exps=500_000, bytes_moved=1500)


def _ceilings(bytes_per_second: float) -> Ceilings:
    return Ceilings(gemm_flops_per_second=1e9, exps_per_second=1e6, bytes_per_second=bytes_per_second)


def test_the_roof_adds_products_and_exponentials() -> None:
    """On one thread computing does not overlap; memory reads do, and count if they take longer."""
    assert roof_seconds(_WORK, Ceilings(gemm_flops_per_second=1e9, exps_per_second=1e6)) == 1.5
    assert roof_seconds(_WORK, _ceilings(1e4)) == 1.5
    assert roof_seconds(_WORK, _ceilings(1e2)) == 15.0


@pytest.mark.parametrize(("bytes_per_second", "is_bound"), [(1001.0, False), (999.0, True), (-1.0, False)])
def test_memory_bound_on_either_side(bytes_per_second: float, is_bound: bool) -> None:
    """Memory is the limit if it takes longer than all computing; an unmeasured bandwidth is never the limit."""
    assert is_memory_bound(_WORK, _ceilings(bytes_per_second)) is is_bound


@pytest.mark.parametrize(
    ("bytes_per_second", "host_seconds", "word"),
    [(1e9, -1.0, "products"), (1e3, 0.1, "memory"), (1e9, 1.01, "host"), (-1.0, 0.99, "products")],
)
def test_what_bounds_a_case(bytes_per_second: float, host_seconds: float, word: str) -> None:
    """The largest of the four."""
    assert bound_by(_WORK, _ceilings(bytes_per_second), host_seconds=host_seconds) == word


def test_exponentials_may_bound() -> None:
    """The softmax takes longer than the products."""
    slow = Ceilings(gemm_flops_per_second=1e9, exps_per_second=1e5)
    assert bound_by(_WORK, slow) == "exponentials"
