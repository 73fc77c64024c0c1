"""Simulate the timing rules: rate of wrong verdicts, power, and warm-ups that end too early.

Run from the root of the repository, on one thread: `OMP_NUM_THREADS=1 python -m scripts.simulate_timing`. Prints the
tables of docs/decisions/0006; measures nothing. Launches are drawn from one pool per noise, so that the bootstrap runs
once per pool.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.paired import (
    LOOKS,
    Calibration,
    LaunchPair,
    RatioEstimate,
    StoppingLook,
    can_stop,
    judge_table,
    launch_pair,
    moved,
    random_effects,
)
from sdpa_onnx.core.timing.steady import WarmUp, judge_warm_up
from sdpa_onnx.sweep.runner import suite_looks

Float64 = NDArray[np.float64]
Offsets = Callable[[np.random.Generator, int], Float64]

_SINGLE = (StoppingLook(launches=3, alpha=0.01),)
_ARMS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Noise of one visit statistic, in logarithms.

    Args:
        spread: Standard deviation of an arm's own noise.
        phi: Correlation of neighbouring blocks.
        preempted: Share of visits slowed down by other processes, by half on average.
        decay: Standard deviation of the rest of the warm-up at the first block; it vanishes after about 20 blocks.
    """

    spread: float
    phi: float = 0.5
    preempted: float = 0.0
    decay: float = 0.0


# METHOD B.1 and B.3: correlation 0.2 to 0.84; half-widths of 80 blocks x 4 launches of 1.2 to 2.1 % are spreads of
# 1 to 2 % per arm.
NOISES = {
    "quiet 0.5 %": Noise(spread=0.005, phi=0.2),
    "2 %, phi 0.5": Noise(spread=0.02),
    "2 %, phi 0.8": Noise(spread=0.02, phi=0.8),
    "3 %, 10 % preempted": Noise(spread=0.03, preempted=0.1),
    "2 %, warming by 2 %": Noise(spread=0.02, decay=0.02),
}


def _normal(percent: float) -> Offsets:
    return lambda rng, count: 0.01 * percent * rng.standard_normal(count)


def _heavy(rng: np.random.Generator, count: int) -> Float64:
    """Student's t with 3 degrees of freedom, standard deviation 0.4 %."""
    return 0.004 / math.sqrt(3.0) * rng.standard_t(3, count)


def _two_levels(rng: np.random.Generator, count: int) -> Float64:
    """One process in ten is 3 % slower for as long as it lives."""
    return 0.003 * rng.standard_normal(count) + 0.03 * (rng.random(count) < 0.1)


# Log difference of one process from the mean of its kind; METHOD B.3 measured 0.3 to 0.45 %.
OFFSETS: dict[str, Offsets] = {
    "0.2 %": _normal(0.2),
    "0.4 %": _normal(0.4),
    "0.8 %": _normal(0.8),
    "t(3), 0.4 %": _heavy,
    "10 % are 3 % slower": _two_levels,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The simulated design: blocks per launch, looks, and the calibration of the machine."""

    blocks: int
    looks: tuple[StoppingLook, ...]
    calibration: Calibration


@dataclass(slots=True, kw_only=True)
class Tally:
    """Results of many simulated comparisons."""

    tables: int = 0
    verdicts: Counter[RatioVerdict] = field(default_factory=Counter)
    wrong_tables: int = 0
    held: int = 0
    launches: int = 0
    half_widths: list[float] = field(default_factory=list)

    def share(self, *verdicts: RatioVerdict) -> float:
        return sum(self.verdicts[verdict] for verdict in verdicts) / max(self.verdicts.total(), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--degrees", type=float, default=Calibration().degrees, help="what the calibration is worth")
    parser.add_argument("--quick", action="store_true", help="a tenth of the trials")
    options = parser.parse_args()
    trials, launches = (200, 80) if options.quick else (2000, 1000)
    rng = np.random.default_rng(options.seed)
    for title, blocks, looks in (
        ("Looks at 4, 6, 8 launches, 80 blocks", 80, LOOKS),
        ("Looks at 4, 6, 8 launches, 40 blocks", 40, LOOKS),
        ("Looks at 2 and 3 launches, 16 blocks", 16, suite_looks(2, 3)),
        ("One look at 3 launches, alpha 1 %, 40 blocks", 40, _SINGLE),
        ("One look at 3 launches, alpha 1 %, 13 blocks", 13, _SINGLE),
    ):
        print(f"\n### {title}\n")
        _rule_tables(
            rng, Rule(blocks=blocks, looks=looks, calibration=Calibration(degrees=options.degrees)), trials, launches
        )
    print("\n### Warm-up\n")
    _warm_up_table(rng, 20 if options.quick else 200)


# --- The complete rule ---


def _rule_tables(rng: np.random.Generator, rule: Rule, trials: int, launches: int) -> None:
    print("Arms equal to the baseline (and A/A): share of verdicts; `any` = tables of six arms with a false verdict.\n")
    titles = "noise | between processes | false | any of 6 | EQUAL | NOISY | interval holds 1 | launches | half | moved"
    print(f"| {titles} |\n|" + "---|" * 10)
    pools = {name: draw_pool(rng, noise, rule.blocks, launches) for name, noise in NOISES.items()}
    for noise, offsets in _pairs():
        one = run_rule(rng, pools[noise], OFFSETS[offsets], [1.0], rule, trials)
        six = run_rule(rng, pools[noise], OFFSETS[offsets], [1.0] * _ARMS, rule, trials // 2)
        moving = _moved_share(rng, pools[noise], rule.looks[-1].launches, trials // 4)
        cells = [false_share(one), six.wrong_tables / six.tables]
        cells += [one.share(RatioVerdict.EQUAL), one.share(RatioVerdict.NOISY), one.held / one.tables]
        print(
            f"| {noise} | {offsets} | {' | '.join(_p(cell) for cell in cells)} "
            f"| {one.launches / one.tables:.1f} | {np.median(one.half_widths):.1%} | {_p(moving)} |"
        )
    print("\nOne slower arm: share of verdict SLOWER (power), and of EQUAL or FASTER (wrong).\n")
    print("| noise | between processes | 2 % | 5 % | 10 % | EQUAL at 3 % | EQUAL at 5 % | FASTER at 2 % |")
    print("|" + "---|" * 8)
    for noise, offsets in _pairs():
        found = {
            ratio: run_rule(rng, pools[noise], OFFSETS[offsets], [ratio], rule, trials // 2)
            for ratio in (1.02, 1.03, 1.05, 1.1)
        }
        cells = [found[ratio].share(RatioVerdict.SLOWER) for ratio in (1.02, 1.05, 1.1)]
        cells += [found[ratio].share(RatioVerdict.EQUAL) for ratio in (1.03, 1.05)]
        cells.append(found[1.02].share(RatioVerdict.FASTER))
        print(f"| {noise} | {offsets} | " + " | ".join(_p(cell) for cell in cells) + " |")


def _pairs() -> Iterator[tuple[str, str]]:
    """Every noise with the default difference between processes, and every difference with one noise."""
    for noise in NOISES:
        yield noise, "0.4 %"
    for offsets in OFFSETS:
        if offsets != "0.4 %":
            yield "2 %, phi 0.5", offsets


def run_rule(
    rng: np.random.Generator,
    pool: Sequence[Sequence[LaunchPair]],
    offsets: Offsets,
    ratios: Sequence[float],
    rule: Rule,
    trials: int,
) -> Tally:
    """Run the complete sequential rule, including the clone, on launches drawn from the pool."""
    tally = Tally()
    for _ in range(trials):
        drawn = _draw(rng, pool, offsets, ratios, rule.looks[-1].launches)
        _judge(drawn, rule, ratios, tally)
    return tally


def _judge(drawn: Mapping[str, list[LaunchPair]], rule: Rule, ratios: Sequence[float], tally: Tally) -> None:
    """One comparison, with the stopping rule of the timing engine."""
    estimates: dict[str, RatioEstimate] = {}
    verdicts: dict[str, RatioVerdict] = {}
    alpha = rule.looks[-1].alpha
    last = rule.looks[-1]
    for look in rule.looks:
        alpha = look.alpha
        joined = {name: random_effects(pairs[: look.launches], rule.calibration) for name, pairs in drawn.items()}
        clone = joined.pop("clone")
        estimates, verdicts = joined, judge_table(joined, clone, alpha=alpha)
        if can_stop(estimates, verdicts, alpha=alpha, last=None if look is last else last):
            break
    tally.tables += 1
    tally.verdicts.update(verdicts.values())
    wrong = [_is_false(verdicts[str(index)], ratio) for index, ratio in enumerate(ratios)]
    tally.wrong_tables += any(wrong)
    low, high = estimates["0"].interval(alpha)
    tally.held += low <= ratios[0] <= high
    tally.launches += estimates["0"].launches
    tally.half_widths.append(math.log(high / low) / 2.0)


def _is_false(verdict: RatioVerdict, ratio: float) -> bool:
    match verdict:
        case RatioVerdict.FASTER:
            return ratio >= 1.0
        case RatioVerdict.SLOWER:
            return ratio <= 1.0
        case _:
            return False


def false_share(tally: Tally) -> float:
    return tally.share(RatioVerdict.FASTER, RatioVerdict.SLOWER)


def _draw(
    rng: np.random.Generator,
    pool: Sequence[Sequence[LaunchPair]],
    offsets: Offsets,
    ratios: Sequence[float],
    launches: int,
) -> dict[str, list[LaunchPair]]:
    """Launches of every arm and of the clone (last in the pool), which shares the baseline's process."""
    arms = len(ratios)
    own = offsets(rng, launches * (arms + 2)).reshape(launches, arms + 2)
    shifts = own[:, 1:] - own[:, :1] + np.log([*ratios, 1.0])
    picked = rng.integers(0, len(pool), launches)
    names = [*(str(index) for index in range(arms)), "clone"]
    columns = [*range(arms), -1]
    return {
        name: [
            LaunchPair(
                log_ratio=pool[launch][columns[at]].log_ratio + float(shifts[k, at]),
                standard_error=pool[launch][columns[at]].standard_error,
                blocks=pool[launch][columns[at]].blocks,
                drift=pool[launch][columns[at]].drift,
            )
            for k, launch in enumerate(picked)
        ]
        for at, name in enumerate(names)
    }


def _moved_share(rng: np.random.Generator, pool: Sequence[Sequence[LaunchPair]], launches: int, trials: int) -> float:
    picked = rng.integers(0, len(pool), (trials, launches))
    return float(np.mean([moved([pool[launch][0] for launch in row]) for row in picked]))


def draw_pool(rng: np.random.Generator, noise: Noise, blocks: int, launches: int) -> list[list[LaunchPair]]:
    """Pairs, (launches)(arms + clone), without a difference between processes."""
    pool = []
    for launch in range(launches):
        visits = np.exp(_series(rng, noise, _ARMS + 2, blocks) + 0.1 * _correlated(rng, 1, blocks, 0.8))
        pool.append([launch_pair(arm, visits[0], seed=launch) for arm in visits[1:]])
    return pool


def _series(rng: np.random.Generator, noise: Noise, arms: int, blocks: int) -> Float64:
    """Log times: (arms, blocks)."""
    logs = noise.spread * _correlated(rng, arms, blocks, noise.phi)
    lost = rng.random((arms, blocks)) < noise.preempted
    logs += lost * np.log1p(rng.exponential(0.5, (arms, blocks)))
    cold = noise.decay * rng.standard_normal((arms, 1))
    return logs + cold * np.exp(-np.arange(blocks) / 20.0)


def _correlated(rng: np.random.Generator, arms: int, blocks: int, phi: float) -> Float64:
    """AR(1) noise of standard deviation 1: (arms, blocks)."""
    steps = rng.standard_normal((arms, blocks))
    noise = np.empty((arms, blocks))
    noise[:, 0] = steps[:, 0]
    for block in range(1, blocks):
        noise[:, block] = phi * noise[:, block - 1] + math.sqrt(1.0 - phi**2) * steps[:, block]
    return noise


# --- Warm-up ---

_VISITS = 200
_AT = np.arange(_VISITS, dtype=np.float64)


def _decay(more: float, visits: float) -> Float64:
    curve: Float64 = 1.0 + more * np.exp(-_AT / visits)
    return curve


CURVES: dict[str, Float64] = {
    "flat": np.ones(_VISITS),
    **{f"half more, decays over {visits} visits": _decay(0.5, visits) for visits in (2, 5, 20, 60)},
    **{f"a tenth more, decays over {visits} visits": _decay(0.1, visits) for visits in (5, 20)},
    **{f"20 % faster after {step} visits": np.where(step > _AT, 1.2, 1.0) for step in (3, 8, 20)},
    "10 % faster over 200 visits": 1.0 + 0.1 * (1.0 - _AT / _VISITS),
    "two levels 5 % apart, 3 visits each": 1.0 + 0.05 * (np.floor(_AT / 3.0) % 2.0),
}
# The arm stays at these levels, so no end of the warm-up is too early.
_LEVELS = "two levels 5 % apart, 3 visits each"


def _method_rule(medians: Sequence[float], *, calls: int, seconds: float, limit_seconds: float) -> WarmUp:
    """METHOD B.4's rule, for comparison: three visits within 2 % of the best so far."""
    last = medians[-3:]
    if calls >= 5 and len(last) == 3 and max(last) <= 1.02 * min(medians):
        return WarmUp.STEADY
    return WarmUp.NEVER if seconds > limit_seconds else WarmUp.NOT_YET


def _warm_up_table(rng: np.random.Generator, trials: int) -> None:
    print("Share `early` (more than 2 % above its end) / `never` (in 200 visits of 10 ms), and mean visits.\n")
    spreads = (0.003, 0.01, 0.03, 0.1)
    print("| curve | rule |" + "".join(f" noise {spread:.1%} |" for spread in spreads))
    print("|" + "---|" * (2 + len(spreads)))
    for name, curve in CURVES.items():
        for rule_name, rule in (("METHOD", _method_rule), ("ours", judge_warm_up)):
            cells = []
            for spread in spreads:
                early, never, visits = warm_up_rates(rng, curve, spread, trials, rule, always=name == _LEVELS)
                cells.append(f"{_p(early)} / {_p(never)}, {visits:.0f}")
            print(f"| {name} | {rule_name} | " + " | ".join(cells) + " |")


def warm_up_rates(
    rng: np.random.Generator,
    curve: Float64,
    spread: float,
    trials: int,
    rule: Callable[..., WarmUp] = judge_warm_up,
    *,
    always: bool = False,
) -> tuple[float, float, float]:
    """Shares of too early and never, and mean visits until steady; `always`: no end is too early."""
    early = never = 0
    visits: list[int] = []
    for _ in range(trials):
        medians = (curve * np.exp(spread * _correlated(rng, 1, curve.size, 0.5)[0])).tolist()
        ended = _steady_after(medians, rule)
        if ended is None:
            never += 1
            continue
        visits.append(ended)
        early += not always and curve[min(ended, curve.size - 1)] > 1.02 * curve[-1]
    return early / trials, never / trials, float(np.mean(visits)) if visits else math.nan


def _steady_after(medians: list[float], rule: Callable[..., WarmUp]) -> int | None:
    for visits in range(1, len(medians) + 1):
        verdict = rule(medians[:visits], calls=5 * visits, seconds=0.01 * visits, limit_seconds=2.0)
        if verdict is WarmUp.STEADY:
            return visits
    return None


def _p(share: float) -> str:
    return f"{share:.1%}"


if __name__ == "__main__":
    main()
