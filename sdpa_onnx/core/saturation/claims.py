"""Compares measured softmax saturation with the claims in Vaswani et al. 2017, section 3.2.1, in sentences.

Every figure is from a record, and records that are not ok are not used. Renders no
tables or charts; see `report`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import MeasuredValue, Outcome, SaturationRecord
from sdpa_onnx.core.saturation.measures import LIMIT_Z, MeasureName

__all__ = ["claims"]

# Limits of beta / beta_c: soft below the first, frozen above the second. Source: METHOD D.7.
_SOFT, _FROZEN = 0.5, 1.0
_QUERY_RMS, _LOGIT_RMS = MeasureName.QUERY_GRADIENT_RMS, MeasureName.LOGIT_GRADIENT_RMS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Records of the same draws without a scale and with 1/sqrt(d_k)."""

    plain: SaturationRecord
    scaled: SaturationRecord

    @property
    def place(self) -> str:
        return _place(self.plain)

    def ratio(self, name: MeasureName) -> float:
        """Ratio of the unscaled to the scaled measure."""
        denominator = self.scaled.measures[name].value
        return self.plain.measures[name].value / denominator if denominator else math.inf

    def difference(self, name: MeasureName) -> int:
        """1 if the unscaled measure is significantly larger, -1 if significantly smaller, else 0."""
        plain, scaled = self.plain.measures[name], self.scaled.measures[name]
        change = plain.value - scaled.value
        if abs(change) <= LIMIT_Z * math.hypot(plain.standard_error or 0.0, scaled.standard_error or 0.0):
            return 0
        return 1 if change > 0 else -1


def claims(records: Sequence[SaturationRecord]) -> list[str]:
    """Write sentences on which of the paper's claims the records confirm, and which not.

    Args:
        records: Records with any head_dim, length, scale rule and inputs.

    Returns:
        Sentences, grouped by the inputs (target, sigma, element type); empty without records.

    Source: METHOD D.3, D.7.
    """
    sentences: list[str] = []
    valid = [record for record in records if _is_valid(record)]
    if len(valid) < len(records):
        sentences.append(
            f"{len(records) - len(valid)} of {len(records)} cells are incomplete or outside their bound or "
            "prediction, and are not used below."
        )
    inputs: dict[tuple[str, float | None, str], list[SaturationRecord]] = {}
    for record in valid:
        inputs.setdefault((record.target, record.sigma, record.dtype), []).append(record)
    for group in inputs.values():
        pairs = _pairs(group)
        sentences += [_inputs_sentence(group), _variance(group), *_phases(group)]
        if pairs:
            sentences += [_gradients_rms(pairs), _gradients_median(pairs), _dead_rows(pairs)]
            sentences += [_costs(pairs), _gains(pairs)]
    return sentences


def _is_valid(record: SaturationRecord) -> bool:
    """Whether all rows were measured and agree with the prediction."""
    entropy = record.measures.get(MeasureName.ENTROPY.value)
    return record.outcome is Outcome.OK and entropy is not None and entropy.predicted is not None


def _inputs_sentence(group: Sequence[SaturationRecord]) -> str:
    first = group[0]
    what = "Independent components of query and key" if first.target == "sdpa" else f"Query and key of {first.target}"
    head_dims, lengths = [known(one.head_dim) for one in group], [known(one.kv_seq_len) for one in group]
    return (
        f"{what}, sigma^2 = {_text(known(first.sigma) ** 2)}, {first.dtype}: d_k {_span(head_dims)}, "
        f"length {_span(lengths)}."
    )


def _variance(group: Sequence[SaturationRecord]) -> str:
    """Compare Var(q.k) with d_k sigma^4, and report the variance after the scale."""
    ratios = [(record, _over(record.measures[MeasureName.PRODUCT_VARIANCE], record)) for record in group]
    off = [record for record, (ratio, error) in ratios if abs(ratio - 1.0) > LIMIT_Z * error]
    values, errors = [one[0] for _, one in ratios], [one[1] for _, one in ratios]
    is_unit = math.isclose(known(group[0].sigma), 1.0)
    unit = "d_k" if is_unit else "d_k sigma^4"
    measured = (
        f"the mean square of q.k is {_range(values)} times {unit}, with standard errors up to {_text(max(errors))}"
    )
    if off:
        return f"Variance of q.k: {measured}; at {_places(off)} it is not {unit}."
    paper = "as stated in footnote 4 of the paper" if is_unit else "the d_k of the paper's footnote 4 for this sigma"
    sentence = f"Variance of q.k: {measured}; it is {unit} within the errors, {paper}."
    scaled = [record for record in group if record.scale_rule == ScaleRule.INVERSE_SQRT.value]
    if scaled:
        variances = [record.measures[MeasureName.BETA].value ** 2 for record in scaled]
        for_all = " for every d_k" if len({record.head_dim for record in scaled}) > 1 else ""
        sentence += f" Divided by sqrt(d_k), logits have variance {_range(variances)}{for_all}."
    return sentence


def _over(variance: MeasuredValue, record: SaturationRecord) -> tuple[float, float]:
    """Return the variance over d_k sigma^4, and its standard error."""
    unit = known(record.head_dim) * known(record.sigma) ** 4
    return variance.value / unit, (variance.standard_error or 0.0) / unit


def _phases(group: Sequence[SaturationRecord]) -> list[str]:
    """Count soft, intermediate and frozen cells by scale rule."""
    sentences = []
    for rule in ScaleRule:
        cells = [record for record in group if record.scale_rule == rule.value]
        if not cells:
            continue
        indices = [record.measures[MeasureName.BETA_OVER_CRITICAL].value for record in cells]
        counts = {
            "soft": sum(index < _SOFT for index in indices),
            "intermediate": sum(_SOFT <= index <= _FROZEN for index in indices),
            "frozen": sum(index > _FROZEN for index in indices),
        }
        listed = ", ".join(f"{number} {phase}" for phase, number in counts.items() if number)
        sentences.append(f"Scale {rule.value}: beta / beta_c is {_range(indices)}; of {_cells(len(cells))}, {listed}.")
    if sentences:
        sentences[-1] += (
            " Frozen (above 1): a few keys get all the weight, independent of the number of keys. Soft: below 0.5."
        )
    return sentences


def _gradients_rms(pairs: Sequence[_Pair]) -> str:
    """Compare rms gradients without and with the scale."""
    parts = []
    for what, name in (("query", _QUERY_RMS), ("logits", _LOGIT_RMS)):
        larger, smaller = (sum(pair.difference(name) == sign for pair in pairs) for sign in (1, -1))
        parts.append(
            f"for the {what} {_range([pair.ratio(name) for pair in pairs])} times, significantly larger in {larger} "
            f"and significantly smaller in {smaller} of {_cells(len(pairs))}"
        )
    smaller = sum(pair.difference(_QUERY_RMS) < 0 for pair in pairs)
    verdict = f"true in {_cells(smaller)} only" if smaller else "not true in any cell"
    return (
        f'In the mean square, "extremely small" (section 3.2.1) is {verdict} for the gradient to the query. '
        f"Ratio of rms gradients without the scale to those with it: {'; '.join(parts)}."
    )


def _gradients_median(pairs: Sequence[_Pair]) -> str:
    """Find for each length from which d_k on the median gradient is smaller without the scale."""
    parts = []
    name = MeasureName.QUERY_GRADIENT_MEDIAN
    for length in sorted({known(pair.plain.kv_seq_len) for pair in pairs}):
        row = [pair for pair in pairs if pair.plain.kv_seq_len == length]
        row.sort(key=lambda pair: known(pair.plain.head_dim))
        smaller = [pair for pair in row if pair.difference(name) < 0]
        larger = [pair for pair in row if pair.difference(name) > 0]
        ranges = [f"larger up to {_width(larger[-1])} ({_times(larger[-1], name)})"] if larger else []
        ranges += [f"smaller from {_width(smaller[0])} on ({_times(smaller[0], name)})"] if smaller else []
        parts.append(f"at length {length}, {', '.join(ranges) or 'no significant difference'}")
    return (
        "In the median row, the query gradient without the scale, compared with the one with it: "
        f'{"; ".join(parts)}. "Extremely small" is true for the typical row only where it is smaller.'
    )


def _dead_rows(pairs: Sequence[_Pair]) -> str:
    name = MeasureName.QUERY_GRADIENT_DEAD
    plain = sorted(pairs, key=lambda pair: pair.plain.measures[name].value)
    scaled = max(pair.scaled.measures[name].value for pair in pairs)
    low, high = plain[0], plain[-1]
    shares = f"{_percent(high.plain.measures[name].value)} ({high.place})"
    if low is not high:
        shares = f"{_percent(low.plain.measures[name].value)} ({low.place}) to {shares}"
    return (
        "Dead rows (query gradient below a tenth of the scaled median): "
        f"{shares} without the scale, at most {_percent(scaled)} with it."
    )


def _costs(pairs: Sequence[_Pair]) -> str:
    """Describe what scaling costs: gradient size."""
    most = max(pairs, key=lambda pair: pair.ratio(_QUERY_RMS))
    if most.ratio(_QUERY_RMS) <= 1.0:
        return "What scaling costs: nothing, the rms query gradient is not smaller with it in any of these cells."
    other = most.ratio(_LOGIT_RMS)
    compared = f"{_text(other)} times smaller" if other >= 1 else f"{_text(1 / other)} times larger"
    return (
        f"What scaling costs: the rms query gradient is up to {_text(most.ratio(_QUERY_RMS))} times smaller "
        f"with it; the rms logit gradient is {compared} there ({most.place})."
    )


def _gains(pairs: Sequence[_Pair]) -> str:
    """Describe what scaling gains: more effective keys, fewer saturated rows and fewer weights that become 0."""
    most = max(pairs, key=lambda pair: 1.0 / pair.ratio(MeasureName.EFFECTIVE_KEYS))
    plain, scaled = most.plain.measures, most.scaled.measures
    keys, rows, zeros = MeasureName.EFFECTIVE_KEYS, MeasureName.SATURATED_ROWS, MeasureName.FLOAT16_ZEROS
    return (
        f"What scaling buys, at most ({most.place}): {_text(scaled[keys].value)} effective keys instead of "
        f"{_text(plain[keys].value)}; {_instead(scaled[rows], plain[rows])} of rows with a weight above 0.99; "
        f"{_instead(scaled[zeros], plain[zeros])} of weights that float16 stores as 0."
    )


def _pairs(group: Sequence[SaturationRecord]) -> list[_Pair]:
    """Pair the cells that were measured both without a scale and with 1/sqrt(d_k)."""
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
    """Format with three significant digits, without an exponent from 1000 to a million."""
    rounded = float(f"{value:.2e}")
    return f"{rounded:.0f}" if 1e3 <= abs(rounded) < 1e6 else f"{rounded:.3g}"


def _instead(scaled: MeasuredValue, plain: MeasuredValue) -> str:
    return f"{_percent(scaled.value)} instead of {_percent(plain.value)}"


def _percent(part: float) -> str:
    return f"{100 * part:.2g} %" if part < 0.995 else f"{100 * part:.1f} %"
