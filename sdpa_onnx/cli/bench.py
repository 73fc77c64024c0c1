"""`sdpa-onnx bench`: time files, forms, runtimes, settings, threads and environments in one interleaved run."""

import contextlib
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sdpa_onnx.cli.bench_calibrate import refuse_other_options, run_calibration
from sdpa_onnx.cli.error_boundary import DISAGREES, INTERRUPTED, OK, pin_threads, print_message, with_exit_codes
from sdpa_onnx.cli.expect import exit_code
from sdpa_onnx.cli.help.completion import complete_form
from sdpa_onnx.cli.options import (
    PATIENCE_SECONDS,
    Budget,
    Debug,
    Inputs,
    Json,
    Quiet,
    Runtimes,
    Seed,
    SizeOptions,
    Timeout,
    Verbose,
    parse_settings,
    parse_size_sets,
    parse_sizes,
)
from sdpa_onnx.cli.output_checks import check_output, require_distinct_paths
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.time_limit import command_deadline
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.errors import FolderError, PlanError, SdpaOnnxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sdpa_onnx.core.records.records import Record
    from sdpa_onnx.measure.timing_plan import TimingPlan
    from sdpa_onnx.sweep.bench_run import BenchRun
    from sdpa_onnx.workflows.bench.arms import ArmChoice
    from sdpa_onnx.workflows.bench.bench_files import BenchResult, BenchTask, PreparedBench
    from sdpa_onnx.workflows.check.check_options import CheckOptions

__all__ = ["bench"]

# "as-is" is also `workflows.bench.arms.AS_IS`, which is not imported here so that --help stays fast.
_FORMS = ("as-is", *Form)
# Default of --blocks.
_BLOCKS = 80
CacheName = Literal["auto", "warm", "cold"]

Files = Annotated[
    list[Path], typer.Argument(metavar="F.onnx [G.onnx ...]", help="Models with the same inputs.", show_default=False)
]
Forms = Annotated[
    list[str],
    typer.Option(
        "--form", help="Convert every file to this form, or 'as-is'; repeatable.", autocompletion=complete_form
    ),
]
Settings = Annotated[
    list[str],
    typer.Option("--option", metavar="KEY=VALUE,...", help="Runtime settings, timed as one more arm; repeatable."),
]
ThreadCounts = Annotated[list[int], typer.Option("--threads", min=1, help="Intra-op threads; repeatable. Default: 1.")]
Pythons = Annotated[
    list[Path],
    typer.Option("--python", metavar="PATH", help="Python of an environment with other versions; repeatable."),
]
AtSizes = Annotated[
    list[str],
    typer.Option(
        "--at", metavar="AXIS=N,...", help="Compare at these sizes; repeatable. kv_seq_len follows q_seq_len."
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", help="Arm, or a word of its name, to divide by. Default: torch, else the first."),
]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="Aim for the timing of one comparison.")]
Against = Annotated[
    str | None,
    typer.Option(
        "--against", metavar="TARGET", help="Time this PyTorch module too, in eager mode and with torch.compile."
    ),
]
Nodes = Annotated[bool, typer.Option("--nodes", help="Also print which nodes take the time of a call.")]
Blocks = Annotated[int, typer.Option("--blocks", min=12, help="Maximum number of measurement blocks per launch.")]
Cache = Annotated[CacheName, typer.Option("--cache", help="Whether inputs are in the CPU caches when a call starts.")]
Margin = Annotated[
    float | None,
    typer.Option(
        "--margin",
        min=0.1,
        metavar="PERCENT",
        help="Keep measuring until a slowdown of PERCENT is confirmed or ruled out.",
    ),
]
OutFolder = Annotated[
    Path | None, typer.Option("--out", metavar="RUN", help="Also write a run folder with its report.")
]
Chart = Annotated[Path | None, typer.Option("--chart", metavar="F.svg|F.html", help="Also draw a chart.")]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Measure how much processes differ on this idle machine, and save it.")
]


@with_exit_codes
def bench(
    models: Files = [],
    *,
    form: Forms = [],
    runtime: Runtimes = [],
    option: Settings = [],
    threads: ThreadCounts = [],
    python: Pythons = [],
    at: AtSizes = [],
    size: SizeOptions = [],
    inputs: Inputs = None,
    against: Against = None,
    baseline: Baseline = None,
    seconds: Seconds = 30.0,
    budget: Budget = None,
    nodes: Nodes = False,
    blocks: Blocks = _BLOCKS,
    cache: Cache = "auto",
    margin: Margin = None,
    timeout: Timeout = PATIENCE_SECONDS,
    out: OutFolder = None,
    chart: Chart = None,
    calibrate: Calibrate = False,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Time models, forms, runtimes, settings and versions against each other, interleaved."""
    deadline = command_deadline(budget)
    counts = tuple(dict.fromkeys(threads)) or (1,)
    pin_threads(max(counts))
    if calibrate:
        arms = {"form": form, "runtime": runtime, "option": option, "python": python, "at": at, "size": size}
        more = {"inputs": inputs, "against": against, "baseline": baseline, "budget": budget, "nodes": nodes}
        other = {"margin": margin, "out": out, "chart": chart, "blocks": blocks != _BLOCKS, "cache": cache != "auto"}
        refuse_other_options(models, {**arms, **more, **other})
        return run_calibration(counts[0], seconds, timeout, seed, as_json=json)
    _check_files(models, inputs, [*at, *size], out, chart)
    fixed, options = parse_sizes(size), parse_settings(option)
    from sdpa_onnx.workflows.bench.bench_files import BenchTask

    task = BenchTask(
        paths=models,
        choice=_choice(form, runtime, options, counts, python, timeout),
        check=_check(inputs, models, seed),
        sizes=tuple({**fixed, **one} for one in parse_size_sets(at)) or (fixed,),
        baseline=baseline,
        plan=replace(_plan(seconds, blocks, margin, cache, seed), deadline=deadline, nodes=nodes),
        patience_seconds=timeout,
        against=against or "",
    )
    return _run_bench(task, out, chart, as_json=json)


def _check_files(
    models: list[Path], inputs: Path | None, sizes: list[str], out: Path | None, chart: Path | None
) -> None:
    """Reject misuse before any file is read."""
    require_distinct_paths({"--out": out, "--chart": chart}, [*models, inputs])
    if not models:
        raise PlanError("There is no model to time.", hint="Give .onnx files; only --calibrate needs none.")
    if inputs is not None and sizes:
        raise PlanError("--inputs already fixes the sizes.", hint="Leave out --at and --size.")
    if chart is not None:
        if chart.suffix not in (".svg", ".html"):
            raise PlanError(f"--chart {chart} has an unsupported file type.", hint="Use .svg or .html.")
        check_output(chart)


def _choice(
    forms: list[str],
    runtimes: list[str],
    options: "tuple[dict[str, str], ...]",
    threads: tuple[int, ...],
    pythons: list[Path],
    timeout: float,
) -> "ArmChoice":
    unknown = next((form for form in forms if form not in _FORMS), None)
    if unknown is not None:
        raise PlanError(f"There is no form '{unknown}'.", hint=f"Known: {', '.join(_FORMS)}.")
    from sdpa_onnx.workflows.bench.arms import ArmChoice
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes

    return ArmChoice(
        runtimes=pick_runtimes(runtimes) if runtimes else (),
        forms=tuple(dict.fromkeys(forms)),
        options=options,
        threads=threads,
        pythons=tuple(dict.fromkeys(path.absolute() for path in pythons)),
        patience_seconds=timeout,
    )


def _check(inputs: Path | None, models: list[Path], seed: int) -> "CheckOptions":
    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.check.given_arrays import read_inputs

    arrays = read_inputs(inputs, load_model(models[0])) if inputs is not None else None
    return CheckOptions(sizes={}, seed=seed, inputs=arrays)


def _plan(seconds: float, blocks: int, margin: float | None, cache: CacheName, seed: int) -> "TimingPlan":
    from sdpa_onnx.measure.calibration import load_calibration
    from sdpa_onnx.measure.timing_plan import Cache, TimingPlan

    return TimingPlan(
        blocks=blocks,
        least_blocks=min(blocks, TimingPlan().least_blocks),
        budget_seconds=seconds,
        margin=None if margin is None else margin / 100,
        cache=Cache(cache),
        calibration=load_calibration(),
        seed=seed,
    )


def _run_bench(task: "BenchTask", out: Path | None, chart: Path | None, *, as_json: bool) -> int:
    """Time, write and show; what has ended when the user stops, or something breaks, is kept."""
    from sdpa_onnx.measure.time_limit import interrupted_at
    from sdpa_onnx.workflows.bench.bench_files import prepare, skipped_result

    seconds, deadline = task.plan.budget_seconds, task.plan.deadline
    results: list[BenchResult] = []
    prepared, stopped, run = None, None, None
    with (
        interrupted_at(deadline),
        Progress(min(seconds * len(task.sizes), deadline.seconds_left)) as progress,
        contextlib.ExitStack() as stack,
    ):
        try:
            prepared = prepare(task, on_step=progress.at)
        except KeyboardInterrupt:
            if not deadline.is_past:  # by the time limit, see `interrupted_at`
                raise
        else:
            run = None if out is None else stack.enter_context(_open_run(out, prepared))
            stopped = _time(prepared, run, results, progress)
    if prepared is None:
        return _nothing_in_time(as_json=as_json)
    if isinstance(stopped, KeyboardInterrupt) and deadline.is_past:
        results += [skipped_result(prepared, check) for check in prepared.checks[len(results) :]]
        stopped = None
    if results or not isinstance(stopped, Exception):
        _show(prepared, results, as_json=as_json)
    if isinstance(stopped, Exception):
        raise stopped
    with _with_results_hint():
        if chart is not None:
            _draw(prepared, results, chart)
        if run is not None:
            _render(run.folder)
    if stopped is not None:
        print_message(f"interrupted after {len(results)} of {len(prepared.checks)} comparisons")
        return INTERRUPTED
    if not _any_timed(results) and not _is_beyond_budget(results):
        print_message("nothing was timed; see the reason of each arm")
        return DISAGREES
    return exit_code(_records(prepared, results), None)


def _any_timed(results: "Sequence[BenchResult]") -> bool:
    from sdpa_onnx.core.records.records import Outcome

    return any(record.outcome is Outcome.OK for one in results for record in one.records)


def _is_beyond_budget(results: "Sequence[BenchResult]") -> bool:
    from sdpa_onnx.core.records.records import is_beyond_budget

    return any(is_beyond_budget(record) for one in results for record in one.records)


def _nothing_in_time(*, as_json: bool) -> int:
    """End a command whose time was over before its arms were known."""
    from sdpa_onnx.cli.show import show_records

    print_message("skipped: the time limit was reached before anything was timed; use a larger --budget")
    if as_json:
        show_records([], as_json=True)
    return OK


@contextlib.contextmanager
def _with_results_hint() -> "Iterator[None]":
    """Add to the error of a file that cannot be written that the results are on stdout."""
    try:
        yield
    except FolderError as error:
        raise FolderError(
            error.args[0], hint="Finished comparisons are on stdout. Choose another path and run again."
        ) from error


def _time(
    prepared: "PreparedBench", run: "BenchRun | None", results: "list[BenchResult]", progress: Progress
) -> BaseException | None:
    """Append each finished comparison to `results`; return the exception that stopped them, or None."""
    from sdpa_onnx.workflows.bench.bench_files import time_all

    try:
        for benched in time_all(prepared, on_step=progress.at, on_note=progress.note):
            results.append(benched)
            with _with_results_hint():
                if run is not None:
                    run.add(benched)
            progress.advance(prepared.task.plan.budget_seconds)
        with _with_results_hint():
            if run is not None:
                run.finish()
    except (KeyboardInterrupt, MemoryError, OSError, SdpaOnnxError) as stopped:
        return stopped
    return None


def _open_run(folder: Path, prepared: "PreparedBench") -> "BenchRun":
    from sdpa_onnx.sweep.bench_run import BenchRun

    try:
        run = BenchRun(folder, prepared, command=shlex.join(["sdpa-onnx", *sys.argv[1:]]))
    except (FolderError, PlanError) as error:  # their hint may suggest --resume, which only `run` has
        raise type(error)(error.args[0], hint="Choose another --out.") from error
    print_message(f"writing {folder}")
    return run


def _records(prepared: "PreparedBench", results: "Sequence[BenchResult]") -> "list[Record]":
    from sdpa_onnx.workflows.bench.within_limit import TimedBench

    return TimedBench(prepared=prepared, results=tuple(results)).records


def _show(prepared: "PreparedBench", results: "Sequence[BenchResult]", *, as_json: bool) -> None:
    from sdpa_onnx.cli.show import show_bench

    show_bench(
        results, prepared.contest.refused, _records(prepared, results), as_json=as_json, against=prepared.task.against
    )


def _draw(prepared: "PreparedBench", results: "Sequence[BenchResult]", chart: Path) -> None:
    from sdpa_onnx.report.page.bench_page import write_chart

    if not write_chart(results, chart, refused=prepared.contest.refused, against=prepared.task.against):
        print_message(f"{chart} was not written: nothing was timed")


def _render(folder: Path) -> None:
    """Render the report of the run folder from the folder alone."""
    from sdpa_onnx.report.page.render_run import render
    from sdpa_onnx.sweep.store import read_run

    header, records = read_run(folder)
    print_message(f"report: {render(records, header, folder)[0]}")
