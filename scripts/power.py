"""Measure how often planted faults are flagged by our verdict and by three common checks; prints Markdown.

Run from the root of the repository, on one thread: `OMP_NUM_THREADS=1 python -m scripts.power --seed 1 --trials 80`.
The trials are those of METHOD A.8. Each cell: flagged by us (share proved wrong) / allclose(rtol 1e-3, atol 1e-5) /
cosine > 0.999 / largest absolute error < 1e-4. Lines in italics are correct outputs, or faults that change nothing on
these inputs: they should not be flagged.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from scripts.mistakes import narrow_sums, not_shifted, secret_storage, secret_weights
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.core.judge.agreement import Expectation, expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.kernels import ARITHMETICS, KERNELS, Kernel, fused_scale, run_kernel

Array = NDArray[np.generic]
Bool = NDArray[np.bool_]

FORMATS = ("float32", "tf32", "float16", "bfloat16")
_HALF, _BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One random attention: 4 query heads on 2 key heads, causal to the last key, sometimes 3 padded keys."""

    precision: str
    spec: AttentionSpec
    inputs: AttentionInputs
    padded: int
    spread: float
    rng: np.random.Generator

    def run(self, *, kernel: Kernel = fused_scale, spec: AttentionSpec | None = None, **changes: Array) -> Array:
        """Compute the attention in the trial's arithmetic, with a changed kernel, spec or inputs."""
        with np.errstate(all="ignore"):
            inputs = replace(self.inputs, **changes)
            return run_kernel(kernel, spec or self.spec, inputs, ARITHMETICS[self.precision])

    def scaled(self, factor: float) -> Array:
        return self.run(spec=replace(self.spec, scale=self.spec.scale_value * factor))

    @property
    def mask(self) -> Bool:
        assert self.inputs.attn_mask is not None  # noqa: S101 - every trial has one
        return self.inputs.attn_mask.astype(bool)


def draw_trial(precision: str, rng: np.random.Generator) -> Trial:
    """Draw one trial (METHOD A.8)."""
    head_dim, keys = int(rng.choice([32, 64, 128])), int(rng.choice([32, 128, 384]))
    queries = min(keys // 2, 48)
    spread, value_scale = float(rng.choice([0.3, 1.0, 4.0])), 10.0 ** rng.uniform(-3, 2)
    padded = int(rng.choice([0, 3]))
    storage = ARITHMETICS[precision].storage
    offset = 0.5 * rng.standard_normal((1, 2, 1, head_dim))
    return Trial(
        precision=precision,
        spec=AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=head_dim, mask=MaskKind.BOOL),
        inputs=AttentionInputs(
            query=(rng.standard_normal((1, 4, queries, head_dim)) * spread**0.5).astype(storage),
            key=(rng.standard_normal((1, 2, keys, head_dim)) * spread**0.5).astype(storage),
            value=((rng.standard_normal((1, 2, keys, head_dim)) + offset) * value_scale).astype(storage),
            attn_mask=_causal(queries, keys, keys - queries, padded),
        ),
        padded=padded,
        spread=spread,
        rng=rng,
    )


def _causal(queries: int, keys: int, offset: int, padded: int) -> Bool:
    columns = np.arange(keys)
    return (columns <= np.arange(queries)[:, None] + offset) & (columns < keys - padded)


def outputs_of(trial: Trial) -> Iterator[tuple[str, Array, AttentionInputs]]:
    """Every correct output and every fault: its name, the output, and the inputs of the check."""
    inputs = trial.inputs
    for name, kernel in KERNELS.items():
        yield f"*right: {name}*", trial.run(kernel=kernel), inputs
    right = trial.run()
    step = 2.0 * find_precision(trial.precision).output.unit_roundoff
    noise = 1.0 + step * trial.rng.choice([-1, 0, 1], right.shape)
    yield "*one ulp of noise on every output*", (right.astype(np.float32) * noise).astype(right.dtype), inputs
    for factor in (1.05, 1.01, 1.002):
        yield f"scale x{factor}", trial.scaled(factor), inputs
    yield "no scale", trial.scaled(1.0 / trial.spec.scale_value), inputs
    yield from _wrong_masks(trial)
    yield from _wrong_heads(trial, right)
    yield from _wrong_arithmetic(trial)
    touched = right.copy()
    place = np.unravel_index(int(trial.rng.integers(touched.size)), touched.shape)
    touched[place] = touched.dtype.type(1.01 * float(touched[place]))
    yield "one output element x1.01", touched, inputs
    value = inputs.value.copy()
    value[:, :, 0] = 0
    yield "first row of value zero", trial.run(value=value), inputs


def _wrong_masks(trial: Trial) -> Iterator[tuple[str, Array, AttentionInputs]]:
    inputs, mask = trial.inputs, trial.mask
    queries, keys = mask.shape
    yield "causal to the top left", trial.run(attn_mask=_causal(queries, keys, 0, trial.padded)), inputs
    yield "causal off by one", trial.run(attn_mask=_causal(queries, keys, keys - queries + 1, trial.padded)), inputs
    missing = mask.copy()
    missing[:, keys - trial.padded - 1] = False
    yield "last key missing", trial.run(attn_mask=missing), inputs
    added = replace(trial.spec, mask=MaskKind.FLOAT)
    finite = np.where(mask, 0.0, -1e4).astype(np.float32)
    yield "*mask of -1e4, ordinary rows*", trial.run(spec=added, attn_mask=finite), inputs
    hidden = mask.copy()
    hidden[3] = False
    finite = np.where(hidden, 0.0, -1e4).astype(np.float32)
    yield "mask of -1e4, one row hidden", trial.run(spec=added, attn_mask=finite), replace(inputs, attn_mask=hidden)


def _wrong_heads(trial: Trial, right: Array) -> Iterator[tuple[str, Array, AttentionInputs]]:
    yield "one pair of heads swapped", right[:, [1, 0, 2, 3]], trial.inputs
    tiled = {name: np.tile(getattr(trial.inputs, name), (1, 2, 1, 1)) for name in ("key", "value")}
    yield "heads tiled, not repeated", trial.run(spec=replace(trial.spec, kv_num_heads=4), **tiled), trial.inputs


def _wrong_arithmetic(trial: Trial) -> Iterator[tuple[str, Array, AttentionInputs]]:
    inputs = trial.inputs
    yield "*no shift, logits to about 15*", trial.run(kernel=not_shifted), inputs
    wide = replace(inputs, query=(inputs.query.astype(np.float32) * (60.0 / trial.spread)).astype(inputs.query.dtype))
    yield "no shift, logits of spread 60", trial.run(kernel=not_shifted, query=wide.query), wide
    brain = trial.precision == "bfloat16"
    sums = partial(narrow_sums, storage=_BRAIN if brain else _HALF, softmax=not brain)
    yield "16-bit accumulators", trial.run(kernel=sums), inputs
    if trial.precision == "float32":
        in_secret = run_kernel(fused_scale, trial.spec, inputs, ARITHMETICS["tf32"])
        yield "TF32 in secret", in_secret, inputs
        yield "bfloat16 weights in secret", trial.run(kernel=partial(secret_weights, storage=_BRAIN)), inputs
        yield "float16 scores and weights in secret", trial.run(kernel=partial(secret_storage, storage=_HALF)), inputs


def rivals(actual: Array, oracle: NDArray[np.float64]) -> tuple[bool, bool, bool]:
    """Whether allclose, cosine and the largest absolute error would flag an output."""
    values = actual.astype(np.float64)
    with np.errstate(all="ignore"):
        close = np.allclose(values, oracle, rtol=1e-3, atol=1e-5)
        cosine = float(values.ravel() @ oracle.ravel() / np.linalg.norm(values) / np.linalg.norm(oracle))
        largest = float(np.abs(values - oracle).max())
    return not close, not cosine > 0.999, not largest < 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--trials", type=int, default=80, help="trials of each format")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    options = parser.parse_args()
    flags: dict[tuple[str, str], list[tuple[bool, ...]]] = defaultdict(list)
    for precision in options.formats:
        rng = np.random.default_rng([options.seed, FORMATS.index(precision)])
        for _ in range(options.trials):
            trial = draw_trial(precision, rng)
            made: dict[int, tuple[Expectation, NDArray[np.float64]]] = {}
            for name, actual, inputs in outputs_of(trial):
                if id(inputs) not in made:
                    expectation = expect(trial.spec, inputs, precision=find_precision(precision))
                    made[id(inputs)] = (expectation, attend(trial.spec, inputs).output)
                expectation, oracle = made[id(inputs)]
                verdict = judge(expectation, actual).verdict
                ours = (verdict in (Verdict.WRONG, Verdict.SUSPICIOUS), verdict is Verdict.WRONG)
                flags[name, precision].append((*ours, *rivals(actual, oracle)))
    _show(flags, options.formats)


def _show(flags: dict[tuple[str, str], list[tuple[bool, ...]]], formats: list[str]) -> None:
    print(f"| planted | {' | '.join(formats)} |\n|{'---|' * (1 + len(formats))}")
    for name in dict.fromkeys(name for name, _ in flags):
        cells = []
        for precision in formats:
            found = flags.get((name, precision))
            shares = np.mean(found, axis=0) if found else []
            text = "**{:.2f} ({:.2f})** / {:.2f} / {:.2f} / {:.2f}"
            cells.append(text.format(*shares) if found else "-")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
