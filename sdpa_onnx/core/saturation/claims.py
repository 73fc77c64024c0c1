"""What measured saturation says of the claims in Vaswani et al. 2017, section 3.2.1, in plain words.

Every figure comes from a record; what was not measured is not said. Records
that are not ok carry no claim. Tables and charts are `report`'s.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.records import MeasuredValue, Outcome, SaturationRecord
from sdpa_onnx.core.saturation.measures import LIMIT_Z, MeasureName

__all__ = ["claims"]

# Soft below, frozen above, in beta / beta_c. Source: METHOD D.7.
_SOFT, _FROZEN = 0.5, 1.0
_QUERY_RMS, _LOGIT_RMS = MeasureName.QUERY_GRADIENT_RMS, MeasureName.LOGIT_GRADIENT_RMS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """The same draws without a scale and with 1/sqrt(d_k)."""

    plain: SaturationRecord
    scaled: SaturationRecord

    @property
    def place(self) -> str:
        return _place(self.plain)

    def ratio(self, name: MeasureName) -> float:
        """Unscaled over scaled."""
        below = self.scaled.measures[name].value
        return self.plain.measures[name].value / below if below else math.inf

    def difference(self, name: MeasureName) -> int:
        """1 where the unscaled one is surely larger, -1 smaller, 0 not surely either."""
        plain, scaled = self.plain.measures[name], self.scaled.measures[name]
        apart = plain.value - scaled.value
        if abs(apart) <= LIMIT_Z * math.hypot(plain.standard_error or 0.0, scaled.standard_error or 0.0):
            return 0
        return 1 if apart > 0 else -1


def claims(records: Sequence[SaturationRecord]) -> list[str]:
    """Say which of the paper's claims the records bear out, and which not.

    Args:
        records: Of any widths, lengths, rules and inputs.

    Returns:
        Sentences, grouped by the inputs (target, sigma, element type); empty without records.

    Source: METHOD D.3, D.7.
    """
    said: list[str] = []
    sound = [record for record in records if _is_sound(record)]
    if len(sound) < len(records):
        said.append(
            f"{len(records) - len(sound)} of {len(records)} cells were not measured whole or lie off their bound or "
            "prediction; nothing below rests on them."
        )
    inputs: dict[tuple[str, float, str], list[SaturationRecord]] = {}
    for record in sound:
        inputs.setdefault((record.target, record.sigma, record.dtype), []).append(record)
    for group in inputs.values():
        pairs = _pairs(group)
        said += [_inputs_sentence(group), _variance(group), *_phases(group)]
        if pairs:
            said += [_gradients_rms(pairs), _gradients_median(pairs), _dead_rows(pairs), _costs(pairs), _gains(pairs)]
    return said


def _is_sound(record: SaturationRecord) -> bool:
    """Whether all rows were measured, so that they were compared with the prediction, and agreed with it."""
    entropy = record.measures.get(MeasureName.ENTROPY.value)
    return record.outcome is Outcome.OK and entropy is not None and entropy.predicted is not None


def _inputs_sentence(group: Sequence[SaturationRecord]) -> str:
    first = group[0]
    what = "Independent components of query and key" if first.target == "sdpa" else f"Query and key of {first.target}"
    return (
        f"{what}, sigma^2 = {_text(first.sigma**2)}, {first.dtype}: d_k {_span([one.head_dim for one in group])}, "
        f"length {_span([one.kv_seq_len for one in group])}."
    )


def _variance(group: Sequence[SaturationRecord]) -> str:
    """Var(q.k) = d_k sigma^4, and after the scale."""
    ratios = [(record, _over(record.measures[MeasureName.PRODUCT_VARIANCE], record)) for record in group]
    off = [record for record, (ratio, error) in ratios if abs(ratio - 1.0) > LIMIT_Z * error]
    values, errors = [one[0] for _, one in ratios], [one[1] for _, one in ratios]
    is_unit = math.isclose(group[0].sigma, 1.0)
    unit = "d_k" if is_unit else "d_k sigma^4"
    measured = (
        f"the mean square of q.k is {_range(values)} times {unit}, with standard errors up to {_text(max(errors))}"
    )
    if off:
        return f"Variance of q.k: {measured}; at {_places(off)} it is not {unit}."
    paper = "as footnote 4 of the paper says" if is_unit else "the d_k of the paper's footnote 4 for this sigma"
    words = f"Variance of q.k: {measured}; it is {unit} within the errors, {paper}."
    scaled = [record for record in group if record.scale_rule == ScaleRule.INVERSE_SQRT.value]
    if scaled:
        variances = [record.measures[MeasureName.BETA].value ** 2 for record in scaled]
        whatever = ", whatever d_k is" if len({record.head_dim for record in scaled}) > 1 else ""
        words += f" Divided by sqrt(d_k), logits have variance {_range(variances)}{whatever}."
    return words


def _over(variance: MeasuredValue, record: SaturationRecord) -> tuple[float, float]:
    """Variance over d_k sigma^4, and its standard error."""
    unit = record.head_dim * record.sigma**4
    return variance.value / unit, (variance.standard_error or 0.0) / unit


def _phases(group: Sequence[SaturationRecord]) -> list[str]:
    """Soft, between, frozen: by rule."""
    said = []
    for rule in ScaleRule:
        cells = [record for record in group if record.scale_rule == rule.value]
        if not cells:
            continue
        indices = [record.measures[MeasureName.BETA_OVER_CRITICAL].value for record in cells]
        counts = {
            "soft": sum(index < _SOFT for index in indices),
            "between": sum(_SOFT <= index <= _FROZEN for index in indices),
            "frozen": sum(index > _FROZEN for index in indices),
        }
        told = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
        said.append(f"Scale {rule.value}: beta / beta_c is {_range(indices)}; of {_cells(len(cells))}, {told}.")
    if said:
        said[-1] += " Frozen, above 1: a few keys take all the weight however many there are. Soft: below 0.5."
    return said


def _gradients_rms(pairs: Sequence[_Pair]) -> str:
    """The mean square: does leaving out the scale make gradients small?"""
    parts = []
    for what, name in (("query", _QUERY_RMS), ("logits", _LOGIT_RMS)):
        larger, smaller = (sum(pair.difference(name) == sign for pair in pairs) for sign in (1, -1))
        parts.append(
            f"to the {what} {_range([pair.ratio(name) for pair in pairs])} times, surely larger in {larger} and surely "
            f"smaller in {smaller} of {_cells(len(pairs))}"
        )
    smaller = sum(pair.difference(_QUERY_RMS) < 0 for pair in pairs)
    verdict = f"true in {_cells(smaller)} only" if smaller else "not true in any cell"
    return (
        f"In the mean square, gradients without the scale against those with it: {'; '.join(parts)}. Of the mean "
        f'square of the gradient to the query, "extremely small" (section 3.2.1) is {verdict}.'
    )


def _gradients_median(pairs: Sequence[_Pair]) -> str:
    """The typical row: from which d_k on its gradient is smaller without the scale, length by length."""
    parts = []
    name = MeasureName.QUERY_GRADIENT_MEDIAN
    for length in sorted({pair.plain.kv_seq_len for pair in pairs}):
        row = sorted((pair for pair in pairs if pair.plain.kv_seq_len == length), key=lambda pair: pair.plain.head_dim)
        smaller = [pair for pair in row if pair.difference(name) < 0]
        larger = [pair for pair in row if pair.difference(name) > 0]
        words = [f"larger up to {_width(larger[-1])} ({_times(larger[-1], name)})"] if larger else []
        words += [f"smaller from {_width(smaller[0])} on ({_times(smaller[0], name)})"] if smaller else []
        parts.append(f"at length {length}, {', '.join(words) or 'not surely either'}")
    return (
        "In the median row, the gradient to the query without the scale is, of that with it, "
        f'{"; ".join(parts)}. "Extremely small" describes the typical row only where it is smaller.'
    )


def _dead_rows(pairs: Sequence[_Pair]) -> str:
    name = MeasureName.QUERY_GRADIENT_DEAD
    plain = sorted(pairs, key=lambda pair: pair.plain.measures[name].value)
    scaled = max(pair.scaled.measures[name].value for pair in pairs)
    low, high = plain[0], plain[-1]
    told = f"{_percent(high.plain.measures[name].value)} ({high.place})"
    if low is not high:
        told = f"{_percent(low.plain.measures[name].value)} ({low.place}) to {told}"
    return (
        "Dead rows, whose gradient to the query is below a tenth of the scaled median: "
        f"{told} without the scale, at most {_percent(scaled)} with it."
    )


def _costs(pairs: Sequence[_Pair]) -> str:
    """What scaling costs: gradient size."""
    most = max(pairs, key=lambda pair: pair.ratio(_QUERY_RMS))
    if most.ratio(_QUERY_RMS) <= 1.0:
        return "Scaling cost no gradient in the mean square in any of these cells."
    other = most.ratio(_LOGIT_RMS)
    compared = f"{_text(other)} times smaller" if other >= 1 else f"{_text(1 / other)} times larger"
    return (
        f"What scaling costs: the rms gradient to the query is up to {_text(most.ratio(_QUERY_RMS))} times smaller "
        f"with it, that to the logits {compared} there ({most.place})."
    )


def _gains(pairs: Sequence[_Pair]) -> str:
    """What scaling buys: more keys read, rows neither saturated nor flushed to zero."""
    most = max(pairs, key=lambda pair: 1.0 / pair.ratio(MeasureName.EFFECTIVE_KEYS))
    plain, scaled = most.plain.measures, most.scaled.measures
    keys, rows, zeros = MeasureName.EFFECTIVE_KEYS, MeasureName.SATURATED_ROWS, MeasureName.FLOAT16_ZEROS
    return (
        f"What scaling buys, at most ({most.place}): {_text(scaled[keys].value)} effective keys instead of "
        f"{_text(plain[keys].value)}; {_instead(scaled[rows], plain[rows])} of rows with a weight above 0.99; "
        f"{_instead(scaled[zeros], plain[zeros])} of weights that float16 stores as 0."
    )


def _pairs(group: Sequence[SaturationRecord]) -> list[_Pair]:
    """Cells that were measured both without a scale and with 1/sqrt(d_k)."""
    found = {(record.head_dim, record.kv_seq_len, record.scale_rule): record for record in group}
    pairs = []
    for (head_dim, length, rule), record in sorted(found.items()):
        partner = found.get((head_dim, length, ScaleRule.INVERSE_SQRT.value))
        if rule == ScaleRule.NONE.value and partner is not None:
            pairs.append(_Pair(plain=record, scaled=partner))
    return pairs


def _place(record: SaturationRecord) -> str:
    return f"d_k {record.head_dim}, length {record.kv_seq_len}"


def _places(records: Sequence[SaturationRecord]) -> str:
    more = f" and {len(records) - 1} more" if len(records) > 1 else ""
    return f"{_place(records[0])}{more}"


def _width(pair: _Pair) -> str:
    return f"d_k {pair.plain.head_dim}"


def _times(pair: _Pair, name: MeasureName) -> str:
    return f"{pair.ratio(name):.2g} x"


def _cells(number: int) -> str:
    return f"{number} cell" if number == 1 else f"{number} cells"


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _range(values: Sequence[float]) -> str:
    low, high = _text(min(values)), _text(max(values))
    return low if low == high else f"{low} to {high}"


def _text(value: float) -> str:
    """Three significant digits, no exponent for what people read as a plain number."""
    rounded = float(f"{value:.2e}")
    return f"{rounded:.0f}" if 1e3 <= abs(rounded) < 1e6 else f"{rounded:.3g}"


def _instead(scaled: MeasuredValue, plain: MeasuredValue) -> str:
    return f"{_percent(scaled.value)} instead of {_percent(plain.value)}"


def _percent(part: float) -> str:
    return f"{100 * part:.2g} %" if part < 0.995 else f"{100 * part:.1f} %"
