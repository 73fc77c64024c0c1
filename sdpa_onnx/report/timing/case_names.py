"""The names of timed cases: the only place that makes them, so that a case has one name in all texts and charts.

A name has what distinguishes the case from the central one, whose factors are stated once (`CaseNames.usual`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.report.text.labels import (
    CaseFactor,
    CommonFactors,
    case_in_words,
    case_options,
    join_words,
    known_sizes,
    target_in_words,
)
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.timing.comparisons import RecordedComparison, central
from sdpa_onnx.report.timing.slices import axis_value

__all__ = ["CaseNames", "case_kind", "case_names", "is_masked"]

_SIZES = (CaseFactor.BATCH, CaseFactor.LENGTH, CaseFactor.HEAD_DIM, CaseFactor.HEADS)
# Greatest number of targets that a name has; of more it says what they have in common, or counts them.
_MOST_TARGETS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseNames:
    """What a name depends on besides its own case.

    Args:
        middle: The central case, whose factors no name repeats; None without a case.
        common: Heads and element type of most records.
        varied: What is computed at several lengths.
        with_causal: Whether a case of a bare attention is causal, so that the others are named as not causal.
    """

    middle: TimingRecord | None
    common: CommonFactors
    varied: frozenset[tuple[object, ...]]
    with_causal: bool

    @property
    def usual(self) -> str:
        """The factors of a case that no name repeats."""
        if self.middle is None:
            return ""
        words = (target_in_words(self.middle.target), case_in_words(self.middle, self.common), self.common.words)
        return ", ".join(dict.fromkeys(word for word in words if word))

    def unless_stated(self, found: Sequence[RecordedComparison]) -> str:
        """The usual factors and the numbers of threads as a sentence, for a caption."""
        threads = join_words(
            [count(number, "thread") for number in sorted({known(one.first.threads) for one in found})]
        )
        return f"Unless stated: {self.usual}, {threads}."

    def of(self, records: Sequence[TimingRecord]) -> str:
        """What cases have in common, without the factors that the central case has too; never empty.

        Args:
            records: One of each case, at least one.
        """
        targets = list(dict.fromkeys(record.target for record in records))
        middle, kind = self.middle or records[0], case_kind(records[0])
        # The length is named even if the central case has it, where the same is computed at another length too; of the
        # central case itself, because a name without any size would seem to be for all.
        with_length = kind in self.varied and (kind != case_kind(middle) or any(one is middle for one in records))
        is_open = self.with_causal and not any(is_masked(record) for record in records)
        target = "" if targets == [middle.target] else _targets_words(targets, is_open=is_open)
        options = {case_in_words(record, self.common, without=_SIZES) for record in records}
        if not any(options):
            options = {_mask_words(records, with_causal=self.with_causal)}
        if len(targets) > 1:
            options, with_length = set(), False
        sizes = [_factor_words(records, axis, middle) for axis in _SIZES]
        words = [target, *(options if len(options) == 1 else ()), *sizes]
        length = _length_words(records)
        words += [length] if with_length and length not in words else []
        return ", ".join(dict.fromkeys(word for word in words if word)) or length


def case_names(found: Sequence[RecordedComparison], common: CommonFactors) -> CaseNames:
    """The names of the cases of a run.

    Args:
        found: Its comparisons; the central one is among those that have a ratio, if any has.
        common: Heads and element type of most records.
    """
    compared = [one for one in found if one.contenders or one.missing] or found
    lengths = {(case_kind(one.first), axis_value(one.first, CaseFactor.LENGTH)) for one in compared}
    numbers = Counter(kind for kind, _ in lengths)
    return CaseNames(
        middle=central(compared).first if compared else None,
        common=common,
        varied=frozenset(kind for kind, number in numbers.items() if number > 1),
        with_causal=any(one.first.spec is not None and one.first.spec.is_causal for one in compared),
    )


def case_kind(record: TimingRecord) -> tuple[object, ...]:
    """What is computed, without sizes."""
    return (record.target, case_options(record), record.dtype)


def is_masked(record: TimingRecord) -> bool:
    """Whether a part of the pairs of query and key is masked by causality or a window.

    A larger model has no spec; there the counted work is less than what a kernel executes that skips nothing.
    """
    if record.spec is not None:
        return record.spec.is_causal or record.spec.left_window >= 0 or record.spec.right_window >= 0
    return bool(record.useful_flops and record.executed_flops and record.useful_flops < record.executed_flops)


def _targets_words(targets: Sequence[str], *, is_open: bool) -> str:
    if len(targets) > _MOST_TARGETS:
        return "not causal" if is_open else f"{len(targets)} targets"
    return join_words([target_in_words(target) for target in targets])


def _mask_words(records: Sequence[TimingRecord], *, with_causal: bool) -> str:
    """Whether cases without an option mask anything, if the table would be ambiguous without it."""
    if all(record.spec is None and is_masked(record) for record in records):
        return "masked"
    return "not causal" if with_causal and all(record.spec is not None for record in records) else ""


def _factor_words(records: Sequence[TimingRecord], axis: CaseFactor, middle: TimingRecord) -> str:
    """The values of a factor if any differs from the central case: length 32 to 1024."""
    values = sorted({axis_value(record, axis) for record in records} - {0})
    lengths = [known_sizes(record) for record in records]
    queries = {sizes.q_seq_len for sizes in lengths if sizes.q_seq_len != sizes.kv_seq_len}
    is_usual = values == [axis_value(middle, axis)] or not values
    if axis is CaseFactor.LENGTH:
        return "" if is_usual and not queries else _length_words(records)
    return "" if is_usual else f"{axis} {_values_words(values)}"


def _length_words(records: Sequence[TimingRecord]) -> str:
    keys = sorted({axis_value(record, CaseFactor.LENGTH) for record in records})
    lengths = [known_sizes(record) for record in records]
    queries = sorted({sizes.q_seq_len or 0 for sizes in lengths})
    if all(sizes.q_seq_len in (None, sizes.kv_seq_len) for sizes in lengths):
        return f"length {_values_words(keys)}" if keys != [0] else "all cases"
    return f"{_values_words(queries)} queries, {_values_words(keys)} keys"


def _values_words(values: Sequence[int]) -> str:
    if len(values) > 2:
        return f"{values[0]} to {values[-1]}"
    return join_words([str(value) for value in values])
