"""`sdpa-onnx runtimes`: what is installed, what is missing and how to get it."""

from sdpa_onnx.cli.error_boundary import OK, guarded
from sdpa_onnx.cli.options import Debug, Json

__all__ = ["runtimes"]


@guarded
def runtimes(*, json: Json = False, debug: Debug = False) -> int:
    """List every runtime, with its version, or what is missing."""
    from sdpa_onnx.cli.show import show_records
    from sdpa_onnx.workflows.check.available_runtimes import survey_runtimes

    show_records(list(survey_runtimes()), as_json=json)
    return OK
