"""Count the kinds of planted faults that our check detects, and that common checks detect on their own inputs.

    python scripts/rival_checks.py [--dtype float32] [--seed 0]

Each kind is planted in every attention below that can have it and in which it changes an output
(at some sizes it is no fault: bottom-right equals upper-left if the lengths are equal).
A kind counts as caught if it is detected in all of them. The other checks get the best case: the correct
output is the float64 output rounded once, so that they raise no false alarm.

The other checks, with the inputs that tools use for them:
allclose, rtol 1e-3 and atol 1e-5, on U[0, 1) (Polygraphy and ONNX's backend tests draw so);
cosine above 0.999 on N(0, 1) (what torch.randn gives);
largest difference below 1e-4 on N(0, 0.1^2) (onnxruntime's attention benchmarks draw so).
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import LADDER, AttentionInputs, draw_inputs, numpy_dtype
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind
from sdpa_onnx.core.faults.planted_faults import FAULTS, Fault
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.records.records import Verdict

Array = NDArray[np.generic]
Outputs = dict[str, Array]
BASE = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=64)

# (spec, batch_size, q_seq_len, kv_seq_len, past_seq_len): every feature at lengths that users have.
ATTENTIONS: tuple[tuple[AttentionSpec, int, int, int, int], ...] = (
    (BASE, 2, 33, 301, 0),
    (replace(BASE, is_causal=True), 2, 257, 257, 0),
    (replace(BASE, is_causal=True, has_past=True), 2, 17, 17, 256),
    (replace(BASE, is_causal=True, has_past=True), 2, 1, 3, 256),
    (replace(BASE, mask=MaskKind.BOOL), 2, 33, 301, 0),
    (replace(BASE, mask=MaskKind.FLOAT, is_causal=True), 2, 257, 257, 0),
    (replace(BASE, mask=MaskKind.LENGTHS), 3, 33, 301, 0),
    (replace(BASE, left_window=31, right_window=0), 2, 257, 257, 0),
    (replace(BASE, left_window=16, right_window=16), 2, 257, 257, 0),
    (replace(BASE, softcap=2.0, mask=MaskKind.BOOL), 2, 33, 301, 0),
    (replace(BASE, scale=0.4), 2, 33, 301, 0),
    (replace(BASE, layout=Layout.BSH, v_head_dim=32), 2, 33, 301, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A common check: its inputs and its criterion."""

    name: str
    draw: Callable[[tuple[int, ...], np.random.Generator], NDArray[np.float64]]
    passes: Callable[[NDArray[np.float64], NDArray[np.float64]], bool]


def _cosine(actual: NDArray[np.float64], expected: NDArray[np.float64]) -> bool:
    norms = float(np.linalg.norm(actual) * np.linalg.norm(expected))
    return bool(np.isfinite(norms)) and float(actual.ravel() @ expected.ravel()) > 0.999 * norms


RIVALS = (
    Rival(
        name="allclose(1e-3, 1e-5) on U[0, 1)",
        draw=lambda shape, rng: rng.random(shape),
        passes=lambda actual, expected: bool(np.allclose(actual, expected, rtol=1e-3, atol=1e-5)),
    ),
    Rival(
        name="cosine > 0.999 on N(0, 1)",
        draw=lambda shape, rng: rng.standard_normal(shape),
        passes=_cosine,
    ),
    Rival(
        name="largest difference < 1e-4 on N(0, 0.1^2)",
        draw=lambda shape, rng: 0.1 * rng.standard_normal(shape),
        passes=lambda actual, expected: bool(np.abs(actual - expected).max(initial=0.0) < 1e-4),
    ),
)


def right_outputs(case: AttentionCase, inputs: AttentionInputs) -> Outputs:
    """The float64 outputs, each rounded once to the case's type."""
    result = attend(case.spec, inputs, qk_mode=QkOutputMode.SCORES)
    found = {OutputRole.OUTPUT: result.output}
    if case.spec.has_past:
        found |= {OutputRole.PRESENT_KEY: result.present_key, OutputRole.PRESENT_VALUE: result.present_value}
    return {name: array.astype(numpy_dtype(case.dtype)) for name, array in found.items()}


def our_inputs(case: AttentionCase, seed: int) -> list[AttentionInputs]:
    """The ladder and the probes."""
    drawn = [draw_inputs(case, spread=spread, seed=seed) for spread in LADDER]
    return drawn + [probe.draw(case, seed) for probe in probes_for(case.spec)]


def is_fault(case: AttentionCase, fault: Fault, seed: int) -> bool:
    """Whether the fault changes an output for any of our inputs."""
    for inputs in our_inputs(case, seed):
        right = right_outputs(case, inputs)
        planted = fault.plant(case.spec, inputs, right, np.random.default_rng(seed))
        if any(not np.array_equal(planted[name], right[name], equal_nan=True) for name in right):
            return True
    return False


def ours_catches(case: AttentionCase, fault: Fault, seed: int) -> bool:
    """Whether ladder or probes detect the fault: verdict wrong or suspicious, or a different cache."""
    drawn = our_inputs(case, seed)
    precision = find_precision(case.dtype)
    for inputs in drawn:
        right = right_outputs(case, inputs)
        planted = fault.plant(case.spec, inputs, right, np.random.default_rng(seed))
        verdict = judge(expect(case.spec, inputs, precision=precision), planted[OutputRole.OUTPUT]).verdict
        cache = any(not np.array_equal(planted[name], right[name]) for name in right if name.startswith("present"))
        if cache or verdict in (Verdict.WRONG, Verdict.SUSPICIOUS):
            return True
    return False


def rival_catches(rival: Rival, case: AttentionCase, fault: Fault, seed: int) -> bool:
    """Whether a common check flags the fault but not the correct output rounded to the type."""
    rng = np.random.default_rng(seed)
    drawn = draw_inputs(case, seed=seed)
    arrays = {
        name: rival.draw(array.shape, rng).astype(array.dtype)
        for name, array in drawn.named().items()
        if name not in ("attn_mask", "nonpad_kv_seqlen")
    }
    inputs = replace(drawn, **arrays)
    exact = attend(case.spec, inputs)
    right = right_outputs(case, inputs)
    planted = fault.plant(case.spec, inputs, right, np.random.default_rng(seed))
    truth = {
        OutputRole.OUTPUT: exact.output,
        OutputRole.PRESENT_KEY: exact.present_key,
        OutputRole.PRESENT_VALUE: exact.present_value,
    }
    with np.errstate(all="ignore"):
        flagged = any(not rival.passes(planted[name].astype(np.float64), truth[name]) for name in right)
        alarm = any(not rival.passes(right[name].astype(np.float64), truth[name]) for name in right)
    return flagged and not alarm


def main() -> None:
    """Print one line per kind, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dtype", default="float32", choices=[dtype.value for dtype in Dtype])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = ("ladder and probes", *(rival.name for rival in RIVALS))
    totals = dict.fromkeys(names, 0)
    kinds = 0
    print("| kind | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for fault in FAULTS:
        cases = [
            AttentionCase(
                spec=spec, batch_size=batch, q_seq_len=q, kv_seq_len=kv, past_seq_len=past, dtype=Dtype(options.dtype)
            )
            for spec, batch, q, kv, past in ATTENTIONS
            if fault.applies(spec) and Dtype(options.dtype) in fault.dtypes
        ]
        cases = [case for case in cases if is_fault(case, fault, options.seed)]
        if not cases or fault.name.startswith("qk-"):  # only `conformance` requests the scores output
            continue
        kinds += 1
        caught = {
            names[0]: all(ours_catches(case, fault, options.seed) for case in cases),
            **{rival.name: all(rival_catches(rival, case, fault, options.seed) for case in cases) for rival in RIVALS},
        }
        for name, found in caught.items():
            totals[name] += found
        print(f"| {fault.name} | " + " | ".join("caught" if caught[name] else "missed" for name in names) + " |")
    print(f"| **of {kinds} kinds** | " + " | ".join(f"**{totals[name]}**" for name in names) + " |")


if __name__ == "__main__":
    main()
