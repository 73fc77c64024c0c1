"""`sdpa-onnx verify`: verify a file on runtimes against the float64 oracle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpa_onnx.cli.error_boundary import pin_threads, with_exit_codes
from sdpa_onnx.cli.expect import conclude, read_known_findings
from sdpa_onnx.cli.options import (
    PATIENCE_SECONDS,
    Debug,
    Expect,
    Inputs,
    Json,
    ModelFile,
    Quiet,
    Runtimes,
    Seed,
    SizeOptions,
    Threads,
    Timeout,
    Verbose,
    parse_sizes,
)
from sdpa_onnx.cli.process.limited_steps import with_limited_steps
from sdpa_onnx.cli.process.shared_processes import with_shared_processes
from sdpa_onnx.cli.show import print_json, show_result
from sdpa_onnx.cli.step_progress import StepProgress
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import Record
    from sdpa_onnx.graph.model import OnnxModel
    from sdpa_onnx.workflows.check.feeds import Feeds

__all__ = ["verify"]

Outputs = Annotated[
    Path | None,
    typer.Option("--outputs", metavar="F.npz", help="Verify these stored outputs of --inputs; run nothing."),
]
PrecisionName = Annotated[
    str | None,
    typer.Option("--precision", help="Precision that --outputs were computed in, e.g. tf32. Default: the model's."),
]
KeepFolder = Annotated[
    Path | None,
    typer.Option(
        "--keep", metavar="FOLDER", help="Save inputs and outputs of every run of the whole model, one .npz per run."
    ),
]
Prove = Annotated[
    bool, typer.Option("--prove", help="Also plant every kind of fault, to prove that these inputs detect it.")
]
Against = Annotated[
    str | None, typer.Option("--against", metavar="TARGET", help="Also compare with this PyTorch module.")
]


@with_exit_codes
@with_shared_processes
@with_limited_steps
def verify(
    model: ModelFile,
    *,
    runtime: Runtimes = ["ort-cpu"],
    against: Against = None,
    size: SizeOptions = [],
    inputs: Inputs = None,
    outputs: Outputs = None,
    precision: PrecisionName = None,
    keep: KeepFolder = None,
    prove: Prove = False,
    timeout: Timeout = PATIENCE_SECONDS,
    expect: Expect = None,
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Verify every attention of a file on runtimes, and prove that its axes are dynamic."""
    pin_threads(threads)
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.check.given_arrays import read_inputs
    from sdpa_onnx.workflows.verify.load_against import load_against
    from sdpa_onnx.workflows.verify.stored_outputs import OutputKeeper
    from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file

    expected = read_known_findings(expect)
    loaded = load_against(model, against)
    arrays = read_inputs(inputs, loaded) if inputs is not None else None
    if outputs is not None and (keep is not None or prove):
        unused = "--prove" if prove else "--keep"
        raise PlanError(f"{unused} needs a run, and --outputs runs nothing.", hint=f"Leave out {unused}.")
    if outputs is not None or precision is not None:
        records = _judge_stored(loaded, arrays, outputs, precision, str(model))
    else:
        names = pick_runtimes(runtime)
        check = CheckOptions(sizes=parse_sizes(size, smallest=0), seed=seed, threads=threads, inputs=arrays)
        with StepProgress("reading sizes") as progress:
            extras = VerifyExtras(
                keep=None if keep is None else OutputKeeper(folder=keep),
                prove=prove,
                patience_seconds=timeout,
                on_step=progress.at,
                on_share=progress.done,
            )
            records = list(verify_file(loaded, names, check, target=str(model), extras=extras))
    _show(records, as_json=json)
    return conclude(records, expected)


def _show(records: "list[Record]", *, as_json: bool) -> None:
    if as_json:
        print_json(records)
        return
    from sdpa_onnx.report.run.verify_text import verify_result

    show_result(verify_result(records))


def _judge_stored(
    model: "OnnxModel", inputs: "Feeds | None", outputs: Path | None, precision: str | None, target: str
) -> "list[Record]":
    """Verify stored outputs; nothing runs."""
    from sdpa_onnx.workflows.verify.stored_outputs import judge_stored

    if outputs is None:
        raise PlanError("--precision requires --outputs.", hint="Without it, each runtime declares its own precision.")
    if inputs is None:
        raise PlanError(
            "--outputs requires --inputs, the arrays that they were computed from.",
            hint="--keep writes both into one file.",
        )
    return list(judge_stored(model, inputs, outputs, precision=precision, target=target))
