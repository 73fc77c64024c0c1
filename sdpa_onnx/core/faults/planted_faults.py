"""Planted faults: computes the outputs of a faulty runtime as pure functions of spec and inputs.

A check is only as good as the planted faults that it finds. Runs no model; a wrapper
session in `runtimes` replaces a runtime's outputs by these.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention import spec_conditions as when
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout
from sdpa_onnx.core.faults.arithmetic_faults import ARITHMETIC_FAULTS
from sdpa_onnx.core.faults.fault_kind import Fault, on_blocks
from sdpa_onnx.core.faults.output_faults import CACHE_FAULTS, OUTPUT_FAULTS, QK_FAULTS
from sdpa_onnx.core.faults.readings import READINGS, Reading

__all__ = ["FAULTS", "Fault", "faults_for", "right_output"]

Array = NDArray[np.generic]

# A block of 16 keys stands for longer ones, which need more keys than a check by default has.
_NOT_PLANTED = tuple(f"{what}-blocks-reversed-{size}" for what in ("cache", "key") for size in (32, 64, 128))


def faults_for(
    spec: AttentionSpec, *, dtype: Dtype | None = None, outputs: Collection[OutputRole] = (OutputRole.OUTPUT,)
) -> tuple[Fault, ...]:
    """Return the faults that an attention can have.

    Args:
        spec: The attention.
        dtype: Element type; None = faults of every type.
        outputs: Outputs of the attention.
    """
    return tuple(
        fault
        for fault in FAULTS
        if fault.applies(spec) and fault.output in outputs and (dtype is None or dtype in fault.dtypes)
    )


def right_output(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    """Compute the oracle's output, rounded to the type of the query."""
    width = spec.v_head_dim * (1 if spec.layout is Layout.BNSH else spec.q_num_heads)
    empty: Array = np.zeros((*inputs.query.shape[:-1], width), dtype=inputs.query.dtype)
    return on_blocks()(spec, inputs, {OutputRole.OUTPUT: empty}, np.random.default_rng(0))[OutputRole.OUTPUT]


def _of_reading(reading: Reading) -> Fault:
    """Convert a reading to a fault: its float64 output, rounded to the output's type."""

    def applies(spec: AttentionSpec) -> bool:
        # Whether a window alone leaves a query without visible keys depends on sizes, which a spec does not have.
        can_mask_rows = not reading.name.startswith("masked-row") or when.has_mask(spec) or when.has_lengths(spec)
        return reading.applies(spec) and can_mask_rows

    return Fault(name=reading.name, says=reading.says, applies=applies, plant=on_blocks(reading.blocks))


FAULTS: tuple[Fault, ...] = (
    *(_of_reading(reading) for reading in READINGS if reading.name not in _NOT_PLANTED),
    *ARITHMETIC_FAULTS,
    *OUTPUT_FAULTS,
    *CACHE_FAULTS,
    *QK_FAULTS,
)
