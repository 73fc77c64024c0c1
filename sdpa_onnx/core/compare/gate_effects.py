"""Computes the ratio of HEAD to BASE with its standard error from timing records, or the reason why there is none.

Either from one interleaved comparison, or from two stored runs that each timed an arm against the same pinned
baseline. Raw seconds of different runs are never compared. Decides no verdict.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.records.verdicts import Outcome, RatioVerdict
from sdpa_onnx.core.timing.paired import LOOKS, RatioEstimate

__all__ = ["PINNED", "Effect", "Machine", "paired_effect", "stored_effect", "welch"]

# The runtime that a stored ratio must refer to: it runs the module itself, independent of the file. Any other baseline
# may have changed between the two runs. Twin: workflows/check/run_context.py, MODULE_RUNTIME.
PINNED = "torch"
# Properties of two machines that must be equal for comparable ratios; the names are those of measure/environment.py.
_MACHINE = ("cpu", "cores", "cores_usable")
_ALPHA = sum(look.alpha for look in LOOKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Machine and package versions of a run; empty if unknown."""

    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The ratio of HEAD to BASE.

    Args:
        estimate: Its logarithm, with standard error and degrees of freedom.
        alpha: Share of alpha of the look, or the pair of looks, at which measuring ended.
        is_noisy: Whether a clone of a baseline differs from the baseline.
    """

    estimate: RatioEstimate
    alpha: float
    is_noisy: bool = False


def paired_effect(head: TimingRecord) -> Effect | str:
    """Return the ratio of one interleaved comparison with BASE as its baseline, or the reason why there is none."""
    if head.outcome is not Outcome.OK:
        return head.reason or f"It is {head.outcome.value}."
    if head.ratio is None or head.log_ratio_se is None or head.degrees is None:
        return "The timing has no standard error."
    launches = known(head.launches)
    return Effect(
        estimate=RatioEstimate(
            log_ratio=math.log(head.ratio),
            standard_error=head.log_ratio_se,
            degrees=head.degrees,
            launches=launches,
        ),
        alpha=_alpha_of_look(launches),
        is_noisy=head.verdict is RatioVerdict.NOISY,
    )


def stored_effect(
    base: TimingRecord,
    head: TimingRecord,
    pins: tuple[TimingRecord | None, TimingRecord | None],
    machines: tuple[Machine, Machine],
    pinned: str = PINNED,
) -> Effect | str:
    """Return the ratio of the ratios to the common pinned baseline, or the reason why there is none.

    Args:
        base, head: The same arm in both runs.
        pins: The record of the baseline of each, from its own run.
        machines: The machine of each run.
        pinned: Arm or runtime that did not change between the runs.

    Source: difference of two independent estimates; degrees of freedom after Welch and Satterthwaite.
    """
    reason = _unlike(base, head, pins, machines, pinned)
    if reason:
        return reason
    effects = paired_effect(base), paired_effect(head)
    for side, found in zip(("BASE", "HEAD"), effects, strict=True):
        if isinstance(found, str):
            return f"{side}: {found}"
    before, now = (found for found in effects if isinstance(found, Effect))
    estimates = before.estimate, now.estimate
    if base.clock != head.clock:
        estimates = _by_cpu_time(before.estimate, base), _by_cpu_time(now.estimate, head)
    return Effect(
        estimate=welch(*estimates),
        # Each run ended at its own look; over all pairs of looks these products, divided by alpha, add up to alpha.
        alpha=before.alpha * now.alpha / _ALPHA,
        is_noisy=before.is_noisy or now.is_noisy,
    )


def welch(before: RatioEstimate, now: RatioEstimate) -> RatioEstimate:
    """Compute the difference of two independent log ratios.

    Source: Welch 1947; Satterthwaite 1946.
    """
    squares = before.standard_error**2, now.standard_error**2
    total = sum(squares)
    parts = zip(squares, (before.degrees, now.degrees), strict=True)
    spread = sum(square**2 / degrees for square, degrees in parts)
    return RatioEstimate(
        log_ratio=now.log_ratio - before.log_ratio,
        standard_error=math.sqrt(total),
        degrees=total**2 / spread if spread else min(before.degrees, now.degrees),
        launches=min(before.launches, now.launches),
    )


def _by_cpu_time(estimate: RatioEstimate, record: TimingRecord) -> RatioEstimate:
    """Replace the ratio by that of CPU time, if the two runs used different clocks because one was disturbed.

    For one undisturbed thread both clocks show the same time (METHOD B.2). The difference between the two clocks in
    this record is added to the standard error.
    """
    by_cpu = math.log(known(record.ratio_cpu))
    difference = by_cpu - estimate.log_ratio
    return replace(estimate, log_ratio=by_cpu, standard_error=math.hypot(estimate.standard_error, difference))


def _unlike(
    base: TimingRecord,
    head: TimingRecord,
    pins: tuple[TimingRecord | None, TimingRecord | None],
    machines: tuple[Machine, Machine],
    pinned: str,
) -> str:
    """Explain why two stored ratios are not comparable; "" if they are."""
    found = [pin for pin in pins if pin is not None and pinned in (pin.runtime, pin.arm)]
    if len(found) < len(pins):
        none = f"the runs have no common pinned baseline ({pinned}), and raw seconds of two runs are not comparable."
        return f"{none} {_other_pin(base, head, pinned)}".rstrip()
    facts = {
        **{name: tuple(machine.environment.get(name, "") for machine in machines) for name in _MACHINE},
        f"the version of {pinned}": tuple(map(_version, found, machines)),
        "threads": (str(base.threads), str(head.threads)),
        "settings of the baseline": tuple(repr(sorted(pin.options.items())) for pin in found),
    }
    unknown = [name for name, values in facts.items() if "" in values]
    if unknown:
        return f"{unknown[0]} is not known for both runs."
    other = [(name, values) for name, values in facts.items() if len(set(values)) > 1]
    if other:
        return f"{other[0][0]} differs: {other[0][1][0]}, now {other[0][1][1]}."
    if base.clock != head.clock and None in (base.ratio_cpu, head.ratio_cpu):
        return f"clock differs: {base.clock}, now {head.clock}, and a ratio by CPU time is not known for both runs."
    return ""


def _other_pin(base: TimingRecord, head: TimingRecord, pinned: str) -> str:
    """Suggest what to pin instead: the arm that the ratios of both runs refer to."""
    if base.baseline != head.baseline:
        found = f"BASE refers to '{base.baseline}' and HEAD to '{head.baseline}'"
        return f"{found}: time both with one baseline (bench --baseline ARM) and name it with --pinned ARM."
    if base.baseline == pinned:
        return f"Both refer to '{pinned}', which was not timed with as many threads in both."
    return f"Both refer to '{base.baseline}': if that did not change, give --pinned '{base.baseline}'."


def _version(pin: TimingRecord, machine: Machine) -> str:
    """Version of the baseline's package: from its worker, else from the run header."""
    return pin.runtime_version or machine.versions.get(pin.runtime, "")


def _alpha_of_look(launches: int) -> float:
    """Share of alpha of the last look that this number of launches reached; the first look if none."""
    reached = [look.alpha for look in LOOKS if look.launches <= launches]
    return reached[-1] if reached else LOOKS[0].alpha
