"""Timed cases gathered into few groups, with the range of ratios of each arm: the data of the first table of a report.

A group has cases that differ in one factor, such as the length, and is cut where another arm becomes the fastest or a
verdict changes, as far as the number of rows allows. Forms no lines.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import CaseFactor, case_options, known_sizes
from sdpa_onnx.report.timing.case_names import CaseNames, case_kind
from sdpa_onnx.report.timing.comparisons import RecordedComparison, fastest
from sdpa_onnx.report.timing.slices import axis_value

__all__ = ["ArmRange", "CaseGroup", "CaseGroups", "WrongArm", "case_groups", "wrong_arm"]

WrongArm = tuple[str, AttentionSpec | None, str, str, int | None]
"""Target, spec, runtime, form and opset of an arm whose outputs are wrong."""

# The factors along which cases form a group, the most telling first.
_AXES = (CaseFactor.LENGTH, CaseFactor.HEAD_DIM, CaseFactor.BATCH, CaseFactor.HEADS)
# Verdicts that contradict each other.
_DIRECTIONS = (RatioVerdict.FASTER, RatioVerdict.SLOWER)

_Cases = tuple[RecordedComparison, ...]
_Findings = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRange:
    """The ratios of one arm over the baseline in the cases of a group.

    Args:
        arm: Name of the arm.
        low, high: Smallest and largest ratio; None if no case has a valid one.
        verdicts: Number of cases by verdict.
        missing: Number of cases without a time by outcome.
        doubtful: Number of cases by verdict in which a check of the measurement contradicts it; among `verdicts`.
        is_fastest: Whether it is proven to be faster than every other arm in all cases of the group.
        is_worst: Whether it has the largest proven slow-down of all groups.
        is_wrong: Whether its outputs are wrong, so that its times do not count.
    """

    arm: str
    low: float | None
    high: float | None
    verdicts: Mapping[RatioVerdict, int]
    missing: Mapping[Outcome, int]
    doubtful: Mapping[RatioVerdict, int]
    is_fastest: bool = False
    is_worst: bool = False
    is_wrong: bool = False

    @property
    def is_open(self) -> bool:
        """Whether any of its ratios has no verdict, or a doubtful one."""
        is_undecided = self.verdicts.get(RatioVerdict.INCONCLUSIVE) or self.verdicts.get(RatioVerdict.NOISY)
        return bool(is_undecided or self.doubtful)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseGroup:
    """Cases in one row of the table.

    Args:
        label: What its cases have in common, as far as it is not what most cases have.
        cases: The comparisons, by rising length.
        ranges: One entry per arm that was requested in any of them, without the baseline.
        fastest: The arm that is proven to be the fastest in all of them, the baseline included; "" if none is.
    """

    label: str
    cases: _Cases
    ranges: tuple[ArmRange, ...]
    fastest: str

    def range_of(self, arm: str) -> ArmRange | None:
        """The entry of an arm; None if it was not requested here."""
        return next((one for one in self.ranges if one.arm == arm), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseGroups:
    """All groups of a run.

    Args:
        groups: In the order of the report.
        arms: All arms without the baselines, in order of appearance.
        baselines: What the ratios refer to.
        usual: The factors of a case that no label repeats, in words.
    """

    groups: tuple[CaseGroup, ...]
    arms: tuple[str, ...]
    baselines: tuple[str, ...]
    usual: str


def case_groups(
    found: Sequence[RecordedComparison], names: CaseNames, wrong: Collection[WrongArm] = ()
) -> Callable[[int], CaseGroups]:
    """Group the cases in at most so many rows: each case alone if possible, else along one factor, else by target.

    Args:
        found: The comparisons of a run; those without a contender are left out.
        names: The names of its cases.
        wrong: Arms whose outputs are wrong.

    Returns:
        The groups for a greatest number of them, at least 2.
    """
    compared = [one for one in found if one.contenders or one.missing]
    if not compared:
        return lambda _: CaseGroups(groups=(), arms=(), baselines=(), usual="")
    findings = {id(one): _findings(one) for one in compared}
    levels = list(_levels(compared, findings))
    worst = max(_slow_downs(compared), default=None)
    baselines = tuple(sorted({one.first.baseline for one in compared}))

    def at_most(most: int) -> CaseGroups:
        groups = []
        for row in _rows(levels, most):
            winners = {findings[id(one)][0][1] for one in row}
            winner = winners.pop() if len(winners) == 1 else ""
            groups.append(_group(row, names.of([one.first for one in row]), winner, worst, wrong))
        arms = tuple(dict.fromkeys(one.arm for group in groups for one in group.ranges))
        return CaseGroups(groups=tuple(groups), arms=arms, baselines=baselines, usual=names.usual)

    return at_most


def wrong_arm(record: TimingRecord | AgreementRecord) -> WrongArm:
    """The arm of a record, as in a list of wrong arms."""
    return record.target, record.spec, record.runtime, record.form, record.opset


def _levels(found: Sequence[RecordedComparison], findings: Mapping[int, _Findings]) -> Iterator[list[_Cases]]:
    """Every grouping, the finest first."""
    families = _families(found)
    yield [(one,) for one in found]
    yield [tuple(part) for family in families for _, part in groupby(family, key=lambda one: findings[id(one)])]
    yield [part for family in families for part in _cut_at_contradictions(family, findings)]
    yield families
    yield _gathered(found, lambda one: case_kind(one.first))


def _rows(levels: Sequence[list[_Cases]], most: int) -> list[_Cases]:
    """The finest grouping that fits."""
    return next((rows for rows in levels if len(rows) <= most), None) or _merged_rest(levels[-1], most)


def _merged_rest(rows: Sequence[_Cases], most: int) -> list[_Cases]:
    """Keep the rows with the largest slow-downs and the largest gains; the last row has all other cases."""
    ranked = {id(row) for row in sorted(rows, key=_extent, reverse=True)[: most - 1]}
    kept = [row for row in rows if id(row) in ranked]
    return [*kept, tuple(one for row in rows if id(row) not in ranked for one in row)]


def _extent(row: _Cases) -> tuple[float, float]:
    ratios = [one.judged(arm).ratio.value for one in row for arm in one.contenders]
    return max((ratio for ratio, _ in _slow_downs(row)), default=0.0), -min(ratios, default=1.0)


def _slow_downs(row: Sequence[RecordedComparison]) -> Iterable[tuple[float, str]]:
    """Ratio and arm of every proven slow-down."""
    for one in row:
        for arm in one.contenders:
            judged = one.judged(arm)
            if judged.proven is RatioVerdict.SLOWER:
                yield judged.ratio.value, arm.arm


def _families(found: Sequence[RecordedComparison]) -> list[_Cases]:
    """Cases that differ in one factor only, along the first factor that varies; each case is in one family."""
    # By identity: to compare 10,000 of them by their fields would take minutes.
    places = {id(one): place for place, one in enumerate(found)}
    left, families, taken = list(found), [], set[int]()
    for axis in _AXES:
        for family in _gathered(left, lambda one, axis=axis: _without(one, axis)):  # type: ignore[misc]
            if len(family) > 1:
                families.append(tuple(sorted(family, key=lambda one: axis_value(one.first, axis))))
                taken |= {id(one) for one in family}
        left = [one for one in left if id(one) not in taken]
    families += [(one,) for one in left]
    return sorted(families, key=lambda family: min(places[id(one)] for one in family))


def _gathered(
    found: Sequence[RecordedComparison], key: Callable[[RecordedComparison], tuple[object, ...]]
) -> list[_Cases]:
    rows: dict[tuple[object, ...], list[RecordedComparison]] = {}
    for one in found:
        rows.setdefault(key(one), []).append(one)
    return [tuple(row) for row in rows.values()]


def _without(one: RecordedComparison, axis: CaseFactor) -> tuple[object, ...]:
    """Everything that distinguishes a case, except one factor."""
    sizes = known_sizes(one.first)
    # Along the length, the number of queries equals that of keys, or is fixed while the keys grow (decoding).
    queries = "as keys" if sizes.q_seq_len == sizes.kv_seq_len else sizes.q_seq_len
    factors: dict[CaseFactor, object] = {
        CaseFactor.LENGTH: (sizes.q_seq_len, sizes.kv_seq_len),
        CaseFactor.HEAD_DIM: sizes.head_dim,
        CaseFactor.BATCH: sizes.batch_size,
        CaseFactor.HEADS: sizes.q_num_heads,
    }
    factors[axis] = queries if axis is CaseFactor.LENGTH else None
    options = case_options(one.first, with_heads=axis is not CaseFactor.HEADS)
    return (one.first.target, options, one.first.dtype, one.first.threads, one.first.cache, *factors.values())


def _cut_at_contradictions(family: _Cases, findings: Mapping[int, _Findings]) -> list[_Cases]:
    """Cut a family where one arm follows another as the fastest, or an arm that was faster becomes slower."""
    parts: list[list[RecordedComparison]] = []
    known: dict[str, str] = {}
    for one in family:
        found = {name: word for name, word in findings[id(one)] if word}
        if not parts or any(known.get(name, word) != word for name, word in found.items()):
            parts.append([])
            known = {}
        parts[-1].append(one)
        known |= found
    return [tuple(part) for part in parts]


def _findings(one: RecordedComparison) -> _Findings:
    """The fastest arm, under the name "", and whether each arm is faster or slower; "" if that is not proven."""
    winner = fastest(one)
    verdicts = {arm.arm: one.judged(arm).proven for arm in one.contenders}
    proven = sorted((name, verdict.value if verdict in _DIRECTIONS else "") for name, verdict in verdicts.items())
    return (("", winner.arm if winner else ""), *proven)


def _group(
    row: _Cases, label: str, winner: str, worst: tuple[float, str] | None, wrong: Collection[WrongArm]
) -> CaseGroup:
    arms = dict.fromkeys(
        arm.arm for one in row for arm in (*one.contenders, *one.missing) if arm.arm and arm.arm != arm.baseline
    )
    bad = {arm.arm for one in row for arm in one.contenders if wrong_arm(arm) in wrong}
    winner = "" if winner in bad else winner
    return CaseGroup(
        label=label,
        cases=row,
        ranges=tuple(replace(_range(row, arm, worst), is_fastest=arm == winner, is_wrong=arm in bad) for arm in arms),
        fastest=winner,
    )


def _range(row: _Cases, name: str, worst: tuple[float, str] | None) -> ArmRange:
    judged = [one.judged(arm) for one in row for arm in one.contenders if arm.arm == name]
    valid = [one.ratio.value for one in judged if one.verdict is not RatioVerdict.NOISY]
    return ArmRange(
        arm=name,
        low=min(valid, default=None),
        high=max(valid, default=None),
        verdicts=Counter(one.verdict for one in judged),
        doubtful=Counter(one.verdict for one in judged if one.doubt is not None),
        missing=Counter(arm.outcome.counted for one in row for arm in one.missing if arm.arm == name),
        is_worst=worst is not None and worst[1] == name and worst in _slow_downs(row),
    )
