"""The result of `saturation` in words: how many cells match their predictions, then what they show of the paper."""

from collections.abc import Sequence

from sdpa_onnx.core.records.findings import group_findings
from sdpa_onnx.core.records.records import Outcome, SaturationRecord
from sdpa_onnx.core.saturation.claims import claims
from sdpa_onnx.report.saturation.findings import saturation_findings
from sdpa_onnx.report.saturation.tables import prediction_table, saturation_table
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.result_text import ResultText

__all__ = ["saturation_result"]


def saturation_result(records: Sequence[SaturationRecord]) -> ResultText:
    """The result of `saturation`.

    Args:
        records: One for each cell.
    """
    bad = [one for one in records if one.outcome is not Outcome.OK]
    cells = count(len(records), "cell")
    verdict = f"All {cells} match their exact prediction." if records else "Nothing was measured."
    if bad:
        verdict = f"{len(bad)} of {cells} {'does' if len(bad) == 1 else 'do'} not match the prediction or failed."
    found = [one.sentence for one in group_findings(records)]
    return ResultText(
        verdict=verdict,
        details=(*found, saturation_table(records), *saturation_findings(records)),
        tables=(*claims(records), prediction_table(records)),
    )
