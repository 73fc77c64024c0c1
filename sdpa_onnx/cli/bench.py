"""`sdpa-onnx bench`: time files on runtimes, interleaved, as ratios to a baseline."""

from pathlib import Path
from typing import Annotated

import typer

from sdpa_onnx.cli.guard import OK, guarded, pin_threads
from sdpa_onnx.cli.options import Debug, Inputs, Json, Runtimes, Seed, SizeOptions, Threads, parse_sizes
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.show import show_records

__all__ = ["bench"]

Files = Annotated[list[Path], typer.Argument(metavar="F.onnx [G.onnx ...]", help="Models.", show_default=False)]
Baseline = Annotated[
    str | None, typer.Option("--baseline", help="Arm that ratios refer to; default torch, else the first.")
]


@guarded
def bench(
    models: Files,
    *,
    runtime: Runtimes = [],
    baseline: Baseline = None,
    size: SizeOptions = [],
    inputs: Inputs = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for the measurement.")] = 10.0,
    blocks: Annotated[int, typer.Option("--blocks", min=12, help="At most so many blocks of visits.")] = 80,
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Time models on runtimes in one interleaved run."""
    pin_threads(threads)
    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.measure.visits import Plan
    from sdpa_onnx.workflows.bench_files import bench_files
    from sdpa_onnx.workflows.checked import Check
    from sdpa_onnx.workflows.feeds import read_inputs
    from sdpa_onnx.workflows.survey import pick_runtimes

    plan = Plan(blocks=blocks, budget_seconds=seconds, seed=seed)
    with Progress(seconds) as progress:
        comparison = bench_files(
            models,
            pick_runtimes(runtime) if runtime else None,
            Check(
                sizes=parse_sizes(size),
                seed=seed,
                threads=threads,
                inputs=read_inputs(inputs, load_model(models[0])) if inputs is not None else None,
            ),
            baseline=baseline,
            plan=plan,
            on_block=lambda done: progress.at(f"block {done} of at most {blocks}"),
        )
    show_records(comparison, as_json=json)
    return OK
