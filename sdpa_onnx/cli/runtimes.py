"""`sdpa-onnx runtimes`: which runtimes are installed, which are missing and how to install them."""

from sdpa_onnx.cli.error_boundary import OK, with_exit_codes
from sdpa_onnx.cli.options import Debug, Json

__all__ = ["runtimes"]


@with_exit_codes
def runtimes(*, json: Json = False, debug: Debug = False) -> int:
    """List every runtime with its version, or with the package that is missing."""
    from sdpa_onnx.cli.show import show_records
    from sdpa_onnx.workflows.check.available_runtimes import survey_runtimes

    show_records(list(survey_runtimes()), as_json=json)
    return OK
