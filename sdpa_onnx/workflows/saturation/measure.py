"""Measure the effect of the scale on the softmax: weights of an exported graph on a runtime, gradients of torch.

Each measure is compared with its exact prediction; too large a deviation is a
disagreement. Does not define measures or predictions: `core.saturation` does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import numpy_dtype
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype, ScaleRule
from sdpa_onnx.core.records.records import MeasuredValue, Outcome, SaturationRecord
from sdpa_onnx.core.saturation.measures import (
    LEAST_DRAWS,
    LIMIT_Z,
    RowStatistics,
    concatenate_rows,
    deviations,
    gradient_medians,
    measure_rows,
    summarise,
)
from sdpa_onnx.core.saturation.theory import predict
from sdpa_onnx.errors import PlanError
from sdpa_onnx.runtimes.base import Unsupported
from sdpa_onnx.workflows.saturation.draws import KeyDraw, gaussian_draw, gradient_norms, module_draw
from sdpa_onnx.workflows.saturation.sources import WeightSource, judge_block, open_source, spec_of

__all__ = ["MODULE_TARGET", "SaturationPlan", "module_check", "saturation"]

OnDone = Callable[[int, int], None]
# Norms of dL/dlogits and dL/dquery, each (rows,).
Norms = tuple[NDArray[np.float64], NDArray[np.float64]]
Sources = Mapping[ScaleRule, WeightSource | Unsupported]

MODULE_TARGET = "torch.nn.MultiheadAttention"
_BARE_TARGET = "sdpa"
# Beyond these a draw needs all memory, or its logits overflow or vanish: nothing can be measured.
_MOST = 65536
_SIGMAS = (1e-3, 1e3)

# Wishart matrices of the two projections multiply: tr(ABAB) / tr(AB)^2 = (1 + 2 head_dim / hidden_size) / head_dim.
_MODULE_WARNING = (
    "The prediction assumes independent components of query and key; those of a module share its weights, so beta^2 "
    "varies more from row to row, by a factor of about 1 + 2 head_dim / hidden_size in variance."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationPlan:
    """The cells to measure, and how.

    Args:
        head_dims, kv_seq_lens, scale_rules: Every combination is a cell.
        sigma: Standard deviation of the components of query and key.
        dtype: Element type of the graph.
        rows: Queries of one draw.
        draws: Independent draws of the keys.
        seed: Seed of the draws; every rule of a cell uses the same ones.
        threads: Threads inside one operator.
        runtime: Name of the runtime of the graph.

    Raises:
        PlanError: If a value allows no measurement.
    """

    head_dims: tuple[int, ...] = (16, 64, 256, 1024)
    kv_seq_lens: tuple[int, ...] = (64, 256, 1024, 4096)
    scale_rules: tuple[ScaleRule, ...] = (ScaleRule.NONE, ScaleRule.INVERSE_SQRT)
    sigma: float = 1.0
    dtype: Dtype = Dtype.FLOAT32
    rows: int = 128
    draws: int = 16
    seed: int = 0
    threads: int = 1
    runtime: str = "ort-cpu"

    def __post_init__(self) -> None:
        for name, values, least in (("head_dims", self.head_dims, 1), ("kv_seq_lens", self.kv_seq_lens, 2)):
            _require(name, values, f"{least} to {_MOST} each", holds=all(least <= one <= _MOST for one in values))
        _require("rows", self.rows, "1 or more", holds=self.rows >= 1)
        _require("draws", self.draws, f"{LEAST_DRAWS} or more", holds=self.draws >= LEAST_DRAWS)
        least_sigma, most_sigma = _SIGMAS
        allowed = f"{least_sigma:g} to {most_sigma:g}"
        _require("sigma", self.sigma, allowed, holds=least_sigma <= self.sigma <= most_sigma)

    @property
    def cells(self) -> int:
        """Number of records of the plan."""
        return len(self.head_dims) * len(self.kv_seq_lens) * len(self.scale_rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One width, length and kind of input, for every scale rule."""

    target: str
    head_dim: int
    kv_seq_len: int
    sigma: float
    dtype: Dtype
    rows: int
    draws: int
    draw: Callable[[int], KeyDraw]
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Found:
    """The statistics of the draws of a cell under one rule, collected draw by draw."""

    draws: list[RowStatistics] = field(default_factory=list)
    measures: dict[str, MeasuredValue] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def saturation(plan: SaturationPlan, *, on_done: OnDone | None = None) -> Iterator[SaturationRecord]:
    """Measure every cell of a plan.

    Args:
        plan: The cells.
        on_done: Called with the number of finished records and of all records.

    Yields:
        One record per cell; DISAGREES if the weights exceed the proven bound or
        a measure deviates by more than LIMIT_Z from its prediction, on fresh draws too.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError, SessionError, ExportError.
    """
    done = 0
    for head_dim in plan.head_dims:
        with ExitStack() as stack:
            sources = _sources(plan, head_dim, stack)
            for kv_seq_len in plan.kv_seq_lens:
                for record in _measure_cell(_plain_cell(plan, head_dim, kv_seq_len), sources):
                    done += 1
                    if on_done is not None:
                        on_done(done, plan.cells)
                    yield record


def module_check(
    *,
    hidden_size: int = 512,
    num_heads: int = 8,
    kv_seq_len: int = 512,
    rows: int = 64,
    draws: int = 8,
    seed: int = 0,
    threads: int = 1,
    runtime: str = "ort-cpu",
) -> list[SaturationRecord]:
    """Measure `torch.nn.MultiheadAttention` at its own initialisation, scaled and unscaled.

    At sigma^2 = 1/2 the unscaled spread is sqrt(d_k) / 2, not sqrt(d_k).

    Args:
        hidden_size, num_heads: Of the module.
        kv_seq_len: Positions of the N(0, 1) input of its self-attention.
        rows: Positions whose queries are measured, of every head.
        draws: Number of modules, each with its own weights and inputs.
        seed, threads, runtime: As in SaturationPlan.

    Source: METHOD D.4, "Real module check".
    """
    plan = SaturationPlan(
        head_dims=(hidden_size // num_heads,),
        kv_seq_lens=(kv_seq_len,),
        sigma=0.5**0.5,
        rows=rows * num_heads,
        draws=draws,
        seed=seed,
        threads=threads,
        runtime=runtime,
    )
    draw = partial(
        module_draw,
        rows=rows,
        kv_seq_len=kv_seq_len,
        hidden_size=hidden_size,
        num_heads=num_heads,
        dtype=numpy_dtype(plan.dtype),
    )
    cell = _cell(plan, plan.head_dims[0], kv_seq_len, draw, target=MODULE_TARGET, warnings=(_MODULE_WARNING,))
    with ExitStack() as stack:
        return list(_measure_cell(cell, _sources(plan, cell.head_dim, stack)))


def _plain_cell(plan: SaturationPlan, head_dim: int, kv_seq_len: int) -> _Cell:
    element = numpy_dtype(plan.dtype)
    draw = partial(
        gaussian_draw, rows=plan.rows, kv_seq_len=kv_seq_len, head_dim=head_dim, sigma=plan.sigma, dtype=element
    )
    return _cell(plan, head_dim, kv_seq_len, draw, target=_BARE_TARGET)


def _cell(
    plan: SaturationPlan,
    head_dim: int,
    kv_seq_len: int,
    draw: Callable[[np.random.Generator], KeyDraw],
    *,
    target: str,
    warnings: tuple[str, ...] = (),
) -> _Cell:
    return _Cell(
        target=target,
        head_dim=head_dim,
        kv_seq_len=kv_seq_len,
        sigma=plan.sigma,
        dtype=plan.dtype,
        rows=plan.rows,
        draws=plan.draws,
        draw=lambda index: draw(np.random.default_rng([plan.seed, head_dim, kv_seq_len, index])),
        warnings=warnings,
    )


def _sources(plan: SaturationPlan, head_dim: int, stack: ExitStack) -> Sources:
    """One loaded graph per scale rule, for all lengths."""
    return {
        rule: open_source(
            spec_of(head_dim, rule), dtype=plan.dtype, runtime=plan.runtime, threads=plan.threads, stack=stack
        )
        for rule in plan.scale_rules
    }


def _measure_cell(cell: _Cell, sources: Sources) -> Iterator[SaturationRecord]:
    """Run the draws through every rule, and fresh draws where a measure deviates; then write the records."""
    able = {rule: source for rule, source in sources.items() if not isinstance(source, Unsupported)}
    first = _run_draws(cell, able, start=0)
    doubted = {rule: able[rule] for rule, found in first.items() if deviations(found.measures)}
    again = _run_draws(cell, doubted, start=cell.draws) if doubted else {}
    for rule, source in sources.items():
        if isinstance(source, Unsupported):
            yield _record(cell, rule, outcome=Outcome.UNSUPPORTED, reason=source.reason)
        else:
            yield _measured_record(cell, rule, source, first[rule], again.get(rule))


def _run_draws(cell: _Cell, sources: Mapping[ScaleRule, WeightSource], *, start: int) -> dict[ScaleRule, _Found]:
    """Measure some draws under every rule; all rules use the same draws."""
    found = {rule: _Found() for rule in sources}
    alive: list[Norms] = []
    scaled = ScaleRule.INVERSE_SQRT
    for index in range(start, start + cell.draws):
        draw = cell.draw(index)
        gradients = {rule: _gradients(draw, cell.head_dim, rule) for rule in {*sources, scaled}}
        alive += gradients[scaled]
        for rule, source in sources.items():
            _add_draw(found[rule], source, draw, gradients[rule])
    for rule, source in sources.items():
        found[rule].measures = summarise(
            found[rule].draws,
            kv_seq_len=cell.kv_seq_len,
            predicted=predict(
                head_dim=cell.head_dim, kv_seq_len=cell.kv_seq_len, scale=source.spec.scale_value, sigma=cell.sigma
            ),
            alive=gradient_medians(alive),
        )
    return found


def _gradients(draw: KeyDraw, head_dim: int, rule: ScaleRule) -> list[Norms]:
    """Gradient norms of a draw, block by block."""
    scale = spec_of(head_dim, rule).scale_value
    return [gradient_norms(block, scale) for block in draw.blocks()]


def _add_draw(found: _Found, source: WeightSource, draw: KeyDraw, gradients: Sequence[Norms]) -> None:
    """Measure one draw; the first block of the first draw is judged."""
    parts: list[RowStatistics] = []
    for block, (logit_gradient, query_gradient) in zip(draw.blocks(), gradients, strict=True):
        attended = source.attend(block)
        if not found.draws and not parts:
            found.faults, found.warnings = judge_block(source, block, attended)
        parts.append(
            measure_rows(
                attended.logits,
                attended.weights,
                scale=source.spec.scale_value,
                logit_gradient=logit_gradient,
                query_gradient=query_gradient,
            )
        )
    found.draws.append(concatenate_rows(parts))


def _measured_record(
    cell: _Cell, rule: ScaleRule, source: WeightSource, first: _Found, again: _Found | None
) -> SaturationRecord:
    """The record of a cell, with the measures of the fresh draws if there are any.

    A deviation counts only if fresh draws show it too. A run has a thousand
    measures, some of them skewed: the first draws alone would raise a false
    alarm in every fourth run.
    """
    shown = again or first
    before = deviations(first.measures)
    beyond = {name: one for name, one in deviations(shown.measures).items() if name in before}
    reasons = list(dict.fromkeys((*first.faults, *shown.faults)))
    warnings = [*cell.warnings, *source.warnings, *shown.warnings, *_nonfinite_warning(shown.draws)]
    if beyond:
        reasons.append(_deviation_words(beyond))
    elif before:
        name, one = next(iter(before.items()))
        warnings.append(
            f"In the first {cell.draws} draws {name} has z = {one.z:+.1f}; as many fresh draws, shown here, do not "
            "confirm it."
        )
    return _record(
        cell,
        rule,
        outcome=Outcome.DISAGREES if reasons else Outcome.OK,
        reason=" ".join(reasons),
        warnings=tuple(warnings),
        runtime=source.runtime,
        opset=source.opset,
        measures=shown.measures,
    )


def _deviation_words(beyond: Mapping[str, MeasuredValue]) -> str:
    name, worst = next(iter(beyond.items()))
    others = f"; {len(beyond) - 1} others deviate too" if len(beyond) > 1 else ""
    return (
        f"{name} is {worst.value:.4g}, predicted {worst.predicted:.4g} "
        f"(z = {worst.z:+.1f}, allowed {LIMIT_Z:g}){others}."
    )


def _nonfinite_warning(draws: Sequence[RowStatistics]) -> tuple[str, ...]:
    """A warning about rows without statistics."""
    entropies = np.concatenate([draw.entropy for draw in draws])
    broken = int(np.isnan(entropies).sum())
    if not broken:
        return ()
    excluded = f"{broken} of {entropies.size} rows have logits or weights that are not finite; they are excluded"
    return (f"{excluded}, and only the overflow is compared with a prediction.",)


def _record(
    cell: _Cell,
    rule: ScaleRule,
    *,
    outcome: Outcome,
    reason: str = "",
    warnings: tuple[str, ...] = (),
    runtime: str = "",
    opset: int = 0,
    measures: Mapping[str, MeasuredValue] | None = None,
) -> SaturationRecord:
    case = AttentionCase(
        spec=spec_of(cell.head_dim, rule), q_seq_len=cell.rows, kv_seq_len=cell.kv_seq_len, dtype=cell.dtype
    )
    return SaturationRecord(
        target=cell.target,
        case=case.case_id,
        form="decomposed" if opset else "",
        opset=opset,
        runtime=runtime,
        outcome=outcome,
        reason=reason,
        warnings=warnings,
        scale_rule=rule.value,
        head_dim=cell.head_dim,
        kv_seq_len=cell.kv_seq_len,
        sigma=cell.sigma,
        dtype=cell.dtype.value,
        rows=cell.rows * cell.draws,
        draws=cell.draws,
        measures=dict(measures or {}),
    )


def _require(name: str, value: object, allowed: str, *, holds: bool) -> None:
    if not holds:
        raise PlanError(f"{name} is {value}; it must be {allowed}.")
