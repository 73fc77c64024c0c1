"""Tables and plot of `timing_trials`: applies the product's timing rules to recorded sessions. Records nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.timing_rivals import RIVALS
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.timing_plan import TimingPlan, blocks_of_launch
from sdpa_onnx.measure.verdict_rule import CLONE, clock_of, decide, ratio

__all__ = ["print_tables", "write_plot"]

_EQUAL_ARMS = ("base", "same", CLONE)
_PLANTS = ("plant 0", "plant 1", "plant 2")
_SHORT_SECONDS, _LONG_SECONDS, _LONG_CALL_SECONDS = 30.0, 90.0, 0.010
# A/A comparisons per setting; comparisons beyond the sessions are drawn from the launches of all sessions.
_EQUAL_COMPARISONS = 60
_POWER_COMPARISONS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One recorded comparison: samples by arm, seconds by launch."""

    samples: Mapping[str, ArmSamples]
    seconds: np.ndarray

    def arms(self, base: str, head: str, clone: str) -> dict[str, ArmSamples]:
        """The three arms of one comparison, with the names that `decide` needs."""
        return {"base": self.samples[base], "head": self.samples[head], CLONE: self.samples[clone]}

    @property
    def starting_seconds(self) -> float:
        """Seconds of start, loading and warm-up of one process, averaged over launches."""
        visits = sum(sample.wall_seconds.sum(axis=(1, 2)) for sample in self.samples.values())
        return float(np.mean(self.seconds - visits)) / len(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The product's verdict on a comparison, and its cost."""

    verdict: RatioVerdict
    clock: str
    launches: int
    seconds: float


def print_tables(folder: Path, settings: Sequence[str]) -> None:
    """A/A, power, time used, and the rivals, as Markdown."""
    sessions = {name: found for name in settings if (found := read_sessions(folder / name))}
    _print_equal(sessions)
    _print_power(sessions)
    _print_rivals(sessions)


def read_sessions(folder: Path) -> list[Session]:
    """Sessions of a setting in the order in which they were recorded."""
    return [_read(path) for path in sorted(folder.glob("*.npz"))]


def _read(path: Path) -> Session:
    with np.load(path) as arrays:
        names = {key.rpartition("/")[0] for key in arrays.files if "/" in key}
        samples = {
            name: ArmSamples(
                wall_seconds=arrays[f"{name}/wall"].astype(float), cpu_seconds=arrays[f"{name}/cpu"].astype(float)
            )
            for name in names
        }
        return Session(samples=samples, seconds=arrays["seconds"])


def outcome(samples: Mapping[str, ArmSamples], *, starting_seconds: float, seed: int = 0) -> Outcome:
    """Evaluate look after look within the budget, as `Schedule` does."""
    base = samples["base"]
    call = float(np.median(base.per_visit("cpu")))
    budget = _SHORT_SECONDS if call < _LONG_CALL_SECONDS else _LONG_SECONDS
    plan = TimingPlan(budget_seconds=budget, blocks=base.wall_seconds.shape[1], seed=seed)
    block_seconds = float(sum(sample.wall_seconds.sum(axis=2).mean() for sample in samples.values()))
    setting_up = starting_seconds * len(samples)
    blocks = blocks_of_launch(plan, block_seconds=block_seconds, spent=setting_up, setting_up=setting_up)
    cut = {name: _first_blocks(sample, blocks) for name, sample in samples.items()}
    launch_seconds = setting_up + blocks * block_seconds
    last = None
    for look in plan.looks:
        recorded = samples["base"].launches
        if last is not None and (look.launches > recorded or look.launches * launch_seconds > budget):
            break
        last = decide(cut, "base", look=look, plan=plan, threads=1)
        if last.can_stop:
            break
    if last is None:
        raise ValueError("A plan without looks.")
    launches = last.look.launches
    return Outcome(
        verdict=last.verdicts["head"], clock=last.clock, launches=launches, seconds=launches * launch_seconds
    )


def _first_blocks(sample: ArmSamples, blocks: int) -> ArmSamples:
    return ArmSamples(wall_seconds=sample.wall_seconds[:, :blocks], cpu_seconds=sample.cpu_seconds[:, :blocks])


def _fresh(sessions: Sequence[Session], pairs: Sequence[tuple[str, str, str]]) -> Iterator[Outcome]:
    """Each recorded session."""
    for number, session in enumerate(sessions):
        for base, head, clone in pairs:
            yield outcome(session.arms(base, head, clone), starting_seconds=session.starting_seconds, seed=number)


def _drawn(sessions: Sequence[Session], pairs: Sequence[tuple[str, str, str]], count: int) -> Iterator[Outcome]:
    """Comparisons of launches drawn from all sessions; the arms of a launch stay together."""
    rng = np.random.default_rng(0)
    launches = [(session, launch) for session in sessions for launch in range(session.seconds.size)]
    for number in range(count):
        base, head, clone = pairs[number % len(pairs)]
        picked = rng.choice(len(launches), size=sessions[0].seconds.size, replace=False)
        parts = [(launches[one][0].arms(base, head, clone), launches[one][1]) for one in picked]
        calls = {name: min(arms[name].wall_seconds.shape[2] for arms, _ in parts) for name in ("base", "head", CLONE)}
        blocks = min(arms["base"].wall_seconds.shape[1] for arms, _ in parts)
        drawn = {
            name: ArmSamples(
                wall_seconds=np.stack([arms[name].wall_seconds[one, :blocks, : calls[name]] for arms, one in parts]),
                cpu_seconds=np.stack([arms[name].cpu_seconds[one, :blocks, : calls[name]] for arms, one in parts]),
            )
            for name in calls
        }
        starting = float(np.mean([session.starting_seconds for session in sessions]))
        yield outcome(drawn, starting_seconds=starting, seed=number)


def _print_equal(sessions: Mapping[str, Sequence[Session]]) -> None:
    print("\n| A/A | fresh | drawn | faster | slower | equal | inconclusive | noisy | launches | seconds | clock |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    pairs = [(_EQUAL_ARMS[k], _EQUAL_ARMS[(k + 1) % 3], _EQUAL_ARMS[(k + 2) % 3]) for k in range(3)]
    total: Counter[RatioVerdict] = Counter()
    for name, found in sessions.items():
        fresh = list(_fresh(found, pairs[:1]))
        drawn = list(_drawn(found, pairs, max(_EQUAL_COMPARISONS - len(fresh), 0)))
        verdicts = Counter(one.verdict for one in [*fresh, *drawn])
        total += verdicts
        print(f"| {name} | {len(fresh)} | {len(drawn)} | {_counts(verdicts)} | {_used([*fresh, *drawn])} |")
    print(f"| all | | {total.total()} | {_counts(total)} | | | |")


def _counts(verdicts: Counter[RatioVerdict]) -> str:
    return " | ".join(str(verdicts[verdict]) for verdict in RatioVerdict)


def _used(outcomes: Sequence[Outcome]) -> str:
    clocks = Counter(one.clock for one in outcomes)
    return (
        f"{np.mean([one.launches for one in outcomes]):.1f} | {np.median([one.seconds for one in outcomes]):.0f} | "
        f"{', '.join(f'{clock} {count}' for clock, count in clocks.most_common())}"
    )


def _print_power(sessions: Mapping[str, Sequence[Session]]) -> None:
    print(
        "\n| setting | realised | fresh: called slower | drawn: slower | faster | noisy | launches | seconds | clock |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, every in sessions.items():
        found = _with_plants(every)
        for plant in _PLANTS if found else ():
            pair = [("base", plant, CLONE)]
            fresh, drawn = list(_fresh(found, pair)), list(_drawn(found, pair, _POWER_COMPARISONS))
            slower = [sum(one.verdict is RatioVerdict.SLOWER for one in group) for group in (fresh, drawn)]
            verdicts = Counter(one.verdict for one in drawn)
            print(
                f"| {name} | {100 * realised(found, plant):.1f} % | {slower[0]} of {len(fresh)} | "
                f"{100 * slower[1] / len(drawn):.1f} % | {verdicts[RatioVerdict.FASTER]} | "
                f"{verdicts[RatioVerdict.NOISY]} | "
                f"{_used([*fresh, *drawn])} |"
            )


def _with_plants(sessions: Sequence[Session]) -> list[Session]:
    return [session for session in sessions if _PLANTS[0] in session.samples]


def realised(sessions: Sequence[Session], plant: str) -> float:
    """The real cost of a planted slow-down: the mean over every recorded launch."""
    plan = TimingPlan()
    logs = []
    for session in sessions:
        seen = session.arms("base", plant, CLONE)
        clock = clock_of(seen, threads=1)
        logs.append(ratio(seen["head"], seen["base"], clock, plan.calibration).log_ratio)
    return float(np.expm1(np.mean(logs)))


def _print_rivals(sessions: Mapping[str, Sequence[Session]]) -> None:
    print("\n| rule, on the same seconds | setting | false alarms | " + " | ".join(_PLANTS) + " |")
    print("|---|---|---|---|---|---|")
    for rule, says_slower in RIVALS.items():
        for name, every in sessions.items():
            found, shares = _with_plants(every), list[str]()
            if not found:
                continue
            for head in ("same", *_PLANTS):
                flagged = [
                    says_slower(session.samples["base"].wall_seconds, session.samples[head].wall_seconds)
                    for session in found
                ]
                shares.append(f"{sum(flagged)} of {len(flagged)}")
            print(f"| {rule} | {name} | " + " | ".join(shares) + " |")


def write_plot(folder: Path, settings: Sequence[str], output: Path) -> None:
    """Share detected over the realised slow-down, one line per setting, and the other methods for comparison."""
    import altair as alt

    rows = []
    for name in settings:
        found = _with_plants(read_sessions(folder / name))
        for plant in _PLANTS if found else ():
            share = np.mean(
                [
                    one.verdict is RatioVerdict.SLOWER
                    for one in _drawn(found, [("base", plant, CLONE)], _POWER_COMPARISONS)
                ]
            )
            cost = 100 * realised(found, plant)
            rows.append({"setting": name, "rule": "paired launches", "slow-down, %": cost, "found, %": 100 * share})
            for rule, says_slower in RIVALS.items():
                flagged = [
                    says_slower(one.samples["base"].wall_seconds, one.samples[plant].wall_seconds) for one in found
                ]
                rows.append({"setting": name, "rule": rule, "slow-down, %": cost, "found, %": 100 * np.mean(flagged)})
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("slow-down, %:Q", title="realised slow-down, %"),
            y=alt.Y("found, %:Q", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color("rule:N", legend=alt.Legend(labelLimit=400)),
        )
        .properties(width=240, height=160)
        .facet(facet=alt.Facet("setting:N", sort=list(settings)), columns=3)
    )
    chart.save(output)
