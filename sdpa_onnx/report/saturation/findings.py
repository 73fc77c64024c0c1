"""The findings on saturation in a few sentences: the most important claims, and the largest deviation.

`core.saturation.claims` forms the claims; this module selects among them.
"""

from collections.abc import Sequence

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import Outcome, Record, SaturationRecord
from sdpa_onnx.core.saturation.claims import claims
from sdpa_onnx.core.saturation.measures import LIMIT_Z, MeasureName, deviations
from sdpa_onnx.report.saturation.tables import largest_deviation
from sdpa_onnx.report.text.labels import inputs_in_words, join_words
from sdpa_onnx.report.text.number_text import count, figure

__all__ = [
    "SCALING_BUYS",
    "deviation_line",
    "main_inputs",
    "saturation_findings",
    "saturation_records",
    "with_deviation",
]

# The first words of the claims in the first lines, one line each. Twin: core/saturation/claims.py.
SCALING_BUYS = "What scaling buys"
_LINES = (
    (SCALING_BUYS,),
    ("Scale ",),
    ("In the mean square",),
    ("In the median row", "Dead rows"),
)
_LEFT_OUT = "and are not used below."
_BARE_TARGET = "sdpa"


def saturation_records(records: Sequence[Record]) -> list[SaturationRecord]:
    """The saturation cells of a run."""
    return [record for record in records if isinstance(record, SaturationRecord)]


def saturation_findings(records: Sequence[SaturationRecord]) -> list[str]:
    """The effect of the scale: keys and saturated rows, phase, gradients; then modules and the deviation.

    The claims are those of the inputs that most cells have, bare attention first. The other claims are in the section
    on saturation.
    """
    if not records:
        return []
    main = main_inputs(records)
    sentences = claims(main)
    # A sentence on what was left out comes first if there is one, then what was measured.
    opening = [line for line in sentences[:1] if line.endswith(_LEFT_OUT)]
    inputs = sentences[len(opening) : len(opening) + 1]
    chosen = [_starting(sentences, starts) for starts in _LINES]
    lines = [line for line in chosen if line]
    if inputs:
        lines = [f"Saturation: {inputs[0]} {lines[0]}", *lines[1:]] if lines else [f"Saturation: {inputs[0]}"]
    covered = {id(record) for record in main}
    lines += _module_lines([record for record in records if id(record) not in covered])
    return with_deviation(records, [*opening, *lines])


def deviation_line(records: Sequence[SaturationRecord]) -> str:
    """The largest deviation of a measure from its exact prediction; empty if none was compared."""
    found = [(abs(worst[1]), worst, record) for record in records if (worst := largest_deviation(record))]
    if not found:
        return ""
    _, (name, z), record = max(found, key=lambda one: one[0])
    compared = sum(one.z is not None for cell in records for one in cell.measures.values())
    where = f"{name}, {inputs_in_words(record)}, d_k {record.head_dim}, length {record.kv_seq_len}"
    largest = (
        f"Of {count(compared, 'measure')} compared with an exact prediction in {count(len(found), 'cell')}, the "
        f"largest |z| is {abs(z):.1f} ({where})"
    )
    beyond = [cell for cell in records if deviations(cell.measures)]
    if not beyond:
        return f"{largest}: within the limit of {LIMIT_Z:g}."
    wrong = sum(cell.outcome is Outcome.DISAGREES for cell in beyond)
    return f"{largest}: over the limit of {LIMIT_Z:g} in {count(len(beyond), 'cell')} ({wrong} counted as disagreeing)."


def with_deviation(records: Sequence[SaturationRecord], lines: Sequence[str]) -> list[str]:
    """Add the line on the deviation: last, or first if it is over the limit."""
    deviation = deviation_line(records)
    if any(deviations(record.measures) for record in records):
        return [deviation, *lines]
    return [*lines, *([deviation] if deviation else [])]


def main_inputs(records: Sequence[SaturationRecord]) -> list[SaturationRecord]:
    """The cells of one kind of input: bare attention before modules, then the most."""
    groups: dict[tuple[str, float | None, str], list[SaturationRecord]] = {}
    for record in records:
        groups.setdefault((record.target, record.sigma, record.dtype), []).append(record)
    return max(groups.values(), key=lambda group: (group[0].target == _BARE_TARGET, len(group)))


def _starting(sentences: Sequence[str], starts: Sequence[str]) -> str:
    return " ".join(line for line in sentences if line.startswith(tuple(starts)))


def _module_lines(records: Sequence[SaturationRecord]) -> list[str]:
    """One line per module: its sigma and the spread of its logits under each scale rule."""
    cells: dict[tuple[str, int | None, int | None], list[SaturationRecord]] = {}
    for record in records:
        if record.target != _BARE_TARGET and MeasureName.BETA in record.measures:
            cells.setdefault((record.target, record.head_dim, record.kv_seq_len), []).append(record)
    return [
        f"{target} as initialised (sigma^2 {known(members[0].sigma) ** 2:.3g}, d_k {head_dim}, length {length}): "
        f"{join_words([_spread(record) for record in members])}."
        for (target, head_dim, length), members in cells.items()
    ]


def _spread(record: SaturationRecord) -> str:
    beta, index = (record.measures[name] for name in (MeasureName.BETA, MeasureName.BETA_OVER_CRITICAL))
    predicted = "" if beta.predicted is None else f", predicted {figure(beta.predicted)}"
    return (
        f"under scale {record.scale_rule} the logits spread by {figure(beta.value)}{predicted} "
        f"(beta / beta_c {figure(index.value)})"
    )
