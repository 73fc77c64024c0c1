"""`sdpa-onnx verify`: judge a file on runtimes against the float64 oracle."""

from typing import TYPE_CHECKING, Annotated

import typer

from sdpa_onnx.cli.guard import DISAGREES, OK, guarded, pin_threads
from sdpa_onnx.cli.options import Debug, Inputs, Json, ModelFile, Runtimes, Seed, SizeOptions, Threads, parse_sizes
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.show import show_records

if TYPE_CHECKING:
    from sdpa_onnx.core.records import Record

__all__ = ["verify"]

Against = Annotated[str | None, typer.Option("--against", metavar="TARGET", help="Also compare with this module.")]


@guarded
def verify(
    model: ModelFile,
    *,
    runtime: Runtimes = ["ort-cpu"],
    against: Against = None,
    size: SizeOptions = [],
    inputs: Inputs = None,
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Judge every attention of a file on runtimes, and prove that its axes may change."""
    pin_threads(threads)
    from sdpa_onnx.core.records import Outcome
    from sdpa_onnx.workflows.checked import Check
    from sdpa_onnx.workflows.feeds import read_inputs
    from sdpa_onnx.workflows.survey import pick_runtimes
    from sdpa_onnx.workflows.verify_file import load_against, verify_file

    loaded = load_against(model, against)
    names = pick_runtimes(runtime)
    arrays = read_inputs(inputs, loaded) if inputs is not None else None
    check = Check(sizes=parse_sizes(size), seed=seed, threads=threads, inputs=arrays)
    with Progress(3.0 * len(names)) as progress:
        records: list[Record] = []
        for record in verify_file(
            loaded,
            names,
            check,
            target=str(model),
        ):
            records.append(record)
            progress.at(f"verifying on {record.runtime}")
    show_records(records, as_json=json)
    bad = (Outcome.DISAGREES, Outcome.FAILED)
    return DISAGREES if any(record.outcome in bad for record in records) else OK
