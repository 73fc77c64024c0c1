"""`sdpa-onnx inspect`: which attention a file contains, and how runtimes execute it."""

from typing import Annotated

import msgspec
import typer

from sdpa_onnx.cli.error_boundary import OK, with_exit_codes
from sdpa_onnx.cli.options import (
    PATIENCE_SECONDS,
    Debug,
    Json,
    ModelFile,
    Quiet,
    Runtimes,
    Timeout,
    Verbose,
)
from sdpa_onnx.cli.process.limited_steps import with_limited_steps
from sdpa_onnx.cli.process.shared_processes import with_shared_processes
from sdpa_onnx.cli.show import print_json, show_result

__all__ = ["inspect"]

Run = Annotated[bool, typer.Option("--run/--no-run", help="Run the model at a few sizes to find axes that are fixed.")]


@with_exit_codes
@with_shared_processes
@with_limited_steps
def inspect(
    model: ModelFile,
    *,
    runtime: Runtimes = ["ort-cpu"],
    run: Run = True,
    timeout: Timeout = PATIENCE_SECONDS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """List each attention in a file: form, heads, sizes, mask, scale, dynamic or fixed axes, and executed nodes."""
    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.verify.inspect_axes import try_axes
    from sdpa_onnx.workflows.verify.inspect_file import inspect_judgeable, inspect_model, what_runs

    names = pick_runtimes(runtime)
    loaded = load_model(model)
    says = ""
    if run:
        records, able = inspect_judgeable(loaded, target=str(model))
        trial = try_axes(able, records, names[0], target=str(model), patience_seconds=timeout)
        # The sentence already has the doubts that the trial adds to the warnings.
        shown = [
            msgspec.structs.replace(new, warnings=old.warnings) for new, old in zip(trial.records, records, strict=True)
        ]
        records, says = trial.records, trial.says
    else:
        shown = records = inspect_model(loaded, target=str(model))
    if json:
        print_json(records)
        return OK
    from sdpa_onnx.report.run.inspect_text import inspect_result

    ran = {name: what_runs(loaded, name, patience_seconds=timeout) for name in names}
    show_result(inspect_result(str(model), loaded.opset, shown, says=says, ran=ran))
    return OK
