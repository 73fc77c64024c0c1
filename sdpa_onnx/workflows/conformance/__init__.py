"""Run a conformance suite of the attention operators on a runtime: one row per feature, opset and element type.

The features are data (`table`). A child process draws, runs and judges the cases. Does not format reports.
"""

from sdpa_onnx.workflows.conformance.feature import Feature
from sdpa_onnx.workflows.conformance.runner import conformance, not_run
from sdpa_onnx.workflows.conformance.table import FeatureRow, features, select

__all__ = ["Feature", "FeatureRow", "conformance", "features", "not_run", "select"]
