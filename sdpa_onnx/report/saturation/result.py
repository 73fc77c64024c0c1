"""The result of `saturation` in words: whether its cells match their predictions, and what the scale changes."""

from collections.abc import Sequence

from sdpa_onnx.core.records.findings import group_findings
from sdpa_onnx.core.records.records import Outcome, SaturationRecord
from sdpa_onnx.core.saturation.claims import claims
from sdpa_onnx.core.saturation.measures import LIMIT_Z
from sdpa_onnx.report.saturation.findings import main_inputs, saturation_findings
from sdpa_onnx.report.saturation.tables import largest_deviation, prediction_table, saturation_table, scale_table
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.result_text import ResultText

__all__ = ["saturation_result"]


def saturation_result(records: Sequence[SaturationRecord]) -> ResultText:
    """The result of `saturation`: a screen with the greatest length, and all else with --verbose.

    Args:
        records: One for each cell.
    """
    if not records:
        return ResultText(verdict="Nothing was measured.")
    bad = [one for one in records if one.outcome is not Outcome.OK]
    cells = count(len(records), "cell")
    verdict = f"All {cells} match their exact prediction{_largest(records)}."
    if bad:
        verdict = f"{len(bad)} of {cells} {'does' if len(bad) == 1 else 'do'} not match the prediction or failed."
    main = main_inputs(records)
    measured = [one for one in main if one.kv_seq_len is not None]
    bought = next((line for line in claims(main) if line.startswith("What scaling buys")), "")
    return ResultText(
        verdict=verdict,
        details=(
            *(one.sentence for one in group_findings(records)),
            *([bought] if bought else []),
            *([scale_table(measured)] if measured else []),
            "--verbose prints every length, all measures, and the claims of the paper.",
        ),
        tables=(*saturation_findings(records), *claims(records), saturation_table(records), prediction_table(records)),
    )


def _largest(records: Sequence[SaturationRecord]) -> str:
    """The largest deviation of all measures, in standard errors, with its limit."""
    found = [abs(worst[1]) for record in records if (worst := largest_deviation(record))]
    return f" (largest |z| {max(found):.1f}; limit {LIMIT_Z:g})" if found else ""
