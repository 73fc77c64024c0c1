"""Ask a runtime every feature of the attention operators, one row each.

The features are data (`table`); cases are drawn, run and judged in a child process.
"""

from sdpa_onnx.workflows.conformance.feature import Feature
from sdpa_onnx.workflows.conformance.runner import conformance
from sdpa_onnx.workflows.conformance.table import FeatureRow, features, select

__all__ = ["Feature", "FeatureRow", "conformance", "features", "select"]
