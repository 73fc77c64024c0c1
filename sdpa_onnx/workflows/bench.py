"""Time several arms (a model on a runtime) in one interleaved run, as ratios to a baseline.

Numbers are judged elsewhere; here every arm gets the same inputs, pre-bound.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records import Sizes, TimingRecord
from sdpa_onnx.core.roofline import Ceilings, Work, roof_seconds
from sdpa_onnx.core.statistics import bootstrap_median, bootstrap_ratio
from sdpa_onnx.errors import ModelError, PlanError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.visits import ArmSamples, Plan, visit_arms
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, RanReport, Runtime, Unsupported
from sdpa_onnx.workflows.checked import MODULE_RUNTIME, Check, case_name, end_sizes, form_of
from sdpa_onnx.workflows.feeds import draw_feeds, dtype_of
from sdpa_onnx.workflows.work import model_work, site_case

__all__ = ["Arm", "Comparison", "bench"]

# Above this share of disturbed calls wall time is a lottery, and CPU time decides (METHOD B.4).
_DISTURBED_LIMIT = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One contestant.

    Args:
        name: Unique in the comparison.
        model: What runs.
        runtime: Where it runs.
    """

    name: str
    model: OnnxModel
    runtime: Runtime

    @property
    def form(self) -> str:
        return "" if self.runtime.name == MODULE_RUNTIME else form_of(self.model)

    @property
    def opset(self) -> int:
        return 0 if self.runtime.name == MODULE_RUNTIME else self.model.opset


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison gave: records and raw samples, by arm."""

    records: Mapping[str, TimingRecord]
    samples: Mapping[str, ArmSamples]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A finished comparison, ready to be written down arm by arm."""

    check: Check
    target: str
    baseline: str
    clock: str
    visits: Mapping[str, NDArray[np.float64]]
    ceilings: Ceilings | None

    def record(self, arm: Arm, sample: ArmSamples, ran: RanReport) -> TimingRecord:
        """One arm's record."""
        median = bootstrap_median(self.visits[arm.name], seed=self.check.seed)
        ratio = bootstrap_ratio(self.visits[arm.name], self.visits[self.baseline], seed=self.check.seed)
        work = model_work(arm.model, self.check.sizes)
        case = case_name(arm.model, self.check, self.target)
        return TimingRecord(
            target=self.target,
            case=case,
            form=arm.form,
            opset=arm.opset,
            runtime=arm.runtime.name,
            warnings=ran.warnings,
            group=case,
            sizes=_sizes(arm.model, self.check),
            dtype=dtype_of(arm.model).value,
            arm=arm.name,
            baseline=self.baseline,
            median_seconds=median.estimate,
            median_low=median.low,
            median_high=median.high,
            wall_min_seconds=float(sample.wall_seconds.min()),
            ratio=ratio.estimate,
            ratio_low=ratio.low,
            ratio_high=ratio.high,
            clock=self.clock,
            threads=self.check.threads,
            disturbed=sample.disturbed,
            calls=sample.wall_seconds.size,
            blocks=sample.wall_seconds.shape[0],
            steady=sample.steady,
            useful_flops=work.useful_flops if work else 0,
            executed_flops=work.executed_flops if work else 0,
            exps=work.exps if work else 0,
            bytes_moved=work.bytes_moved if work else 0,
            roof_share=_roof_share(work, self.ceilings, median.estimate),
            ran=dict(ran.node_counts),
            expanded=dict(ran.expanded),
            fused=dict(ran.fused),
            providers=dict(ran.providers),
        )


def bench(
    arms: Sequence[Arm],
    check: Check,
    *,
    target: str,
    baseline: str,
    plan: Plan,
    ceilings: Ceilings | None = None,
    on_block: Callable[[int], None] | None = None,
) -> Comparison:
    """Time arms interleaved.

    Args:
        arms: At least one; all take the same inputs.
        check: Sizes, seed, threads; its first spread is used.
        target: Name for the records.
        baseline: Name of the arm that ratios refer to.
        plan: How much to measure.
        ceilings: Measured in the same run, for the share of the roof.
        on_block: Told the number of blocks done.

    Raises:
        PlanError: If two arms share a name or the baseline is not among them.
        SessionError: If an arm does not run.
    """
    names = [arm.name for arm in arms]
    if len(set(names)) != len(names) or baseline not in names:
        raise PlanError(f"Arms are {', '.join(names)}, the baseline is '{baseline}'.", hint="Each arm once, please.")
    feeds = dict(check.inputs) if check.inputs is not None else None
    with ExitStack() as stack:
        calls: dict[str, Callable[[], None]] = {}
        ran: dict[str, RanReport] = {}
        for arm in arms:
            support = arm.runtime.supports(arm.model)
            if isinstance(support, Unsupported):
                raise SessionError(f"{arm.name}: {support.reason}")
            options = LoadOptions(threads=check.threads, purpose=Purpose.TIMING)
            session = stack.enter_context(arm.runtime.load(arm.model, options))
            calls[arm.name] = session.bind(feeds if feeds is not None else _feeds(arm.model, check))
            ran[arm.name] = session.ran()
        samples = visit_arms(calls, plan, on_block=on_block)
    clock = _choose_clock(samples, ran, check.threads)
    measured = _Measured(
        check=check,
        target=target,
        baseline=baseline,
        clock=clock,
        visits={name: _per_visit(sample, clock) for name, sample in samples.items()},
        ceilings=ceilings,
    )
    records = {arm.name: measured.record(arm, samples[arm.name], ran[arm.name]) for arm in arms}
    return Comparison(records=records, samples=samples)


def _feeds(model: OnnxModel, check: Check) -> dict[str, NDArray[np.generic]]:
    return draw_feeds(model, check.sizes, spread=check.spreads[0], seed=check.seed)


def _choose_clock(samples: Mapping[str, ArmSamples], ran: Mapping[str, RanReport], threads: int) -> str:
    """CPU time where one thread on a CPU was disturbed, else wall time.

    Source: METHOD B.4.
    """
    on_device = any("CUDA" in provider for report in ran.values() for provider in report.providers)
    if threads > 1 or on_device:
        return "wall"
    return "cpu" if max(sample.disturbed for sample in samples.values()) > _DISTURBED_LIMIT else "wall"


def _per_visit(sample: ArmSamples, clock: str) -> NDArray[np.float64]:
    """One number a visit: the median CPU time, or the least wall time.

    Source: METHOD B.4 ("paired blocks: median of log(visit-min ratio)" on wall).
    """
    if clock == "cpu":
        return np.asarray(np.median(sample.cpu_seconds, axis=1))
    return np.asarray(sample.wall_seconds.min(axis=1))


def _roof_share(work: Work | None, ceilings: Ceilings | None, seconds: float) -> float:
    if work is None or ceilings is None or not seconds:
        return -1.0
    return roof_seconds(work.useful_flops, work.exps, ceilings) / seconds


def _sizes(model: OnnxModel, check: Check) -> Sizes:
    """Sizes for charts: of the first attention, else of the named axes."""
    try:
        case = site_case(model, model.sites[0], check.sizes)
    except (ModelError, IndexError):
        return end_sizes(check)
    return Sizes(
        batch_size=case.batch_size,
        q_seq_len=case.q_seq_len,
        kv_seq_len=case.kv_seq_len,
        head_dim=case.spec.head_dim,
        q_num_heads=case.spec.q_num_heads,
    )
