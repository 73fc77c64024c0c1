"""`sdpa-onnx reduce`: find the smallest failing case; write it as a model and as a bug report bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpa_onnx.cli.detail import Detail, requested_detail
from sdpa_onnx.cli.error_boundary import DISAGREES, OK, pin_threads, with_exit_codes
from sdpa_onnx.cli.help.completion import complete_runtime
from sdpa_onnx.cli.options import (
    Debug,
    Inputs,
    Json,
    ModelFile,
    Quiet,
    Seed,
    SizeOptions,
    Threads,
    Verbose,
    parse_sizes,
)
from sdpa_onnx.cli.show import print_plain, show_records
from sdpa_onnx.cli.step_progress import StepProgress

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import Record
    from sdpa_onnx.runtimes.base import Runtime
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.reduce.search import ReducedCase

__all__ = ["reduce"]

OneRuntime = Annotated[
    str, typer.Option("--runtime", help="Runtime that fails. `runtimes` lists them.", autocompletion=complete_runtime)
]
Small = Annotated[Path | None, typer.Option("-o", "--output", help="Write the reduced model.", show_default=False)]
Bundle = Annotated[
    Path | None,
    typer.Option(
        "--bundle", metavar="F.zip", help="Write model, inputs, expected outputs and a script that runs them."
    ),
]
Anonymous = Annotated[
    bool, typer.Option("--anonymous", help="Write random numbers and generic names, not the original ones.")
]
Force = Annotated[bool, typer.Option("--force-anonymous", help="Like --anonymous, even if the case no longer fails.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.0, help="Time budget to find and reduce the failure.")]


@with_exit_codes
def reduce(
    model: ModelFile,
    *,
    runtime: OneRuntime = "ort-cpu",
    inputs: Inputs = None,
    size: SizeOptions = [],
    output: Small = None,
    bundle: Bundle = None,
    anonymous: Anonymous = False,
    force_anonymous: Force = False,
    seconds: Seconds = 60.0,
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Find a failure of a runtime on a file, and reduce it to the smallest case that still fails."""
    pin_threads(threads)
    from sdpa_onnx.errors import PlanError
    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.check.given_arrays import read_inputs
    from sdpa_onnx.workflows.isolate.isolated_runtime import guarded_runtime
    from sdpa_onnx.workflows.reduce.bundle import require_writable
    from sdpa_onnx.workflows.reduce.search import NothingFails, reduce_model
    from sdpa_onnx.workflows.reduce.text import nothing_record, nothing_sentence, reduced_record, sentences

    for path in (output, bundle):
        if path is not None:
            require_writable(path)
    loaded = load_model(model)
    if runtime == "all":
        raise PlanError("reduce runs on one runtime at a time.", hint="Name the runtime that fails with --runtime.")
    name = pick_runtimes([runtime])[0]
    arrays = read_inputs(inputs, loaded) if inputs is not None else None
    check = CheckOptions(sizes=parse_sizes(size, smallest=0), seed=seed, threads=threads, inputs=arrays)
    with guarded_runtime(name) as where, StepProgress(f"searching for a failure on {name}"):
        found = reduce_model(loaded, where, check, seconds=seconds)
        if isinstance(found, NothingFails):
            _show(
                [nothing_record(found, target=str(model), runtime=name)], [nothing_sentence(found, name)], as_json=json
            )
            return OK
        if anonymous or force_anonymous:
            found = _anonymous(found, where, check, force=force_anonymous)
    written = _write(found, output, bundle, threads)
    lines = [*sentences(found), *(f"Written: {path}" for path in written)]
    _show([reduced_record(found, target=str(model))], lines, as_json=json)
    return DISAGREES


def _anonymous(found: "ReducedCase", runtime: "Runtime", check: "CheckOptions", *, force: bool) -> "ReducedCase":
    from sdpa_onnx.errors import PlanError
    from sdpa_onnx.workflows.reduce.anonymous import anonymise

    if found.before:
        raise PlanError(
            "A failure that needs several runs cannot be anonymised.",
            hint="Leave out --anonymous, and read the bundle.",
        )
    made = anonymise(found, runtime, seed=check.seed, threads=check.threads)
    if not made.still_fails and not force:
        raise PlanError(
            "Nothing was written: with random numbers the case no longer fails.",
            hint="Use --force-anonymous to write it anyway, or leave out --anonymous.",
        )
    return made.reduced


def _write(found: "ReducedCase", output: Path | None, bundle: Path | None, threads: int) -> list[Path]:
    """Write the requested files; return their paths."""
    from sdpa_onnx.workflows.reduce.bundle import write_bundle

    written = []
    if output is not None:
        found.model.save(output)
        written.append(output)
    if bundle is not None:
        write_bundle(bundle, found, threads=threads)
        written.append(bundle)
    return written


def _show(records: "list[Record]", lines: list[str], *, as_json: bool) -> None:
    if as_json:
        show_records(records, as_json=True)
    else:
        print_plain(lines[:1] if requested_detail() is Detail.QUIET else lines)
