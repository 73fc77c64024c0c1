"""The table with one row per check, for `--verbose`; the tables of a report count them."""

from collections.abc import Sequence

from sdpa_onnx.core.records.records import AgreementRecord
from sdpa_onnx.report.text.labels import series_name, site_in_words
from sdpa_onnx.report.text.number_text import NOT_KNOWN, figure
from sdpa_onnx.report.text.table import Table, text_table
from sdpa_onnx.report.text.tally import bound_ratio, has_bound_ratio

__all__ = ["check_table"]


def check_table(checks: Sequence[AgreementRecord]) -> Table:
    """Every check with its inputs, sizes, verdict and largest error over its bound."""
    rows = (
        {
            "runtime, form, opset": series_name(check),
            "judged": site_in_words(check),
            "inputs": check.inputs,
            "sizes": " ".join(f"{axis}={size}" for axis, size in check.axes.items()),
            "verdict": str(check.verdict or check.outcome),
            "error / bound": figure(bound_ratio(check)) if has_bound_ratio(check) else NOT_KNOWN,
        }
        for check in checks
    )
    return text_table("Checks", rows, heading="runtime, form, opset", numbers=("error / bound",))
