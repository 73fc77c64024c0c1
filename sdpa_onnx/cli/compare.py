"""`sdpa-onnx compare`: compare agreement, graph, memory and time of HEAD with BASE; only proven regressions fail."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpa_onnx.cli.compare_files import (
    STDOUT,
    check_outputs,
    method_sentence,
    write_known_file,
    write_results,
)
from sdpa_onnx.cli.error_boundary import OK, pin_threads, print_message, with_exit_codes
from sdpa_onnx.cli.expect import exit_code, print_known_findings, read_known_findings
from sdpa_onnx.cli.options import (
    PATIENCE_SECONDS,
    Budget,
    Debug,
    Expect,
    Inputs,
    Json,
    Quiet,
    Runtimes,
    Seed,
    SizeOptions,
    Threads,
    Timeout,
    Verbose,
    parse_size_sets,
    parse_sizes,
)
from sdpa_onnx.cli.output_checks import require_distinct_paths
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.show import show_gates
from sdpa_onnx.cli.time_limit import command_deadline
from sdpa_onnx.errors import PlanError
from sdpa_onnx.sweep.comparison_kind import ComparisonKind, kind_of

if TYPE_CHECKING:
    from sdpa_onnx.core.compare.gate_limits import GateLimits
    from sdpa_onnx.core.records.gate_records import Gate, GateRecord
    from sdpa_onnx.report.compare.gate_report import GateReport
    from sdpa_onnx.workflows.compare.models import CompareOptions
    from sdpa_onnx.workflows.expected.known_findings import KnownFindings, SortedFindings

__all__ = ["compare"]

Base = Annotated[Path, typer.Argument(metavar="BASE", help="Before: a run folder, a model or a benchmark JSON file.")]
Head = Annotated[Path, typer.Argument(metavar="HEAD", help="After: the same kind as BASE.")]


def _absolute(path: Path | None) -> Path | None:
    """Make a path absolute but keep links, because the interpreter of an environment is a link."""
    return path and path.absolute()


Python = Annotated[
    Path | None,
    typer.Option(metavar="P", help="Python of the environment that runs this model.", callback=_absolute),
]
At = Annotated[
    list[str], typer.Option("--at", metavar="AXIS=N,...", help="Sizes at which to judge and time models; repeatable.")
]
Seconds = Annotated[float, typer.Option("--seconds", min=1.0, help="Aim for each timing of two models.")]
Margin = Annotated[float, typer.Option("--margin", min=0.1, metavar="PERCENT", help="Allowed slowdown.")]
MoreNodes = Annotated[
    float, typer.Option("--more-nodes", min=0.0, metavar="PERCENT", help="Allowed increase in executed nodes.")
]
LargerFile = Annotated[
    float,
    typer.Option("--larger-file", min=0.0, metavar="PERCENT", help="Allowed increase in file size; 1 MiB always is."),
]
MoreMemory = Annotated[
    float,
    typer.Option("--more-memory", min=0.0, metavar="PERCENT", help="Allowed increase in peak memory; 4 MiB always is."),
]
Gates = Annotated[
    list[str],
    typer.Option(metavar="GATE", help="Report this gate but never fail: agreement, graph, memory or time; repeatable."),
]
Skipped = Annotated[list[str], typer.Option("--skip", metavar="GATE", help="Skip this gate; repeatable.")]
Strict = Annotated[bool, typer.Option("--strict", help="Also fail on rows undecided, not comparable or gone.")]
Pinned = Annotated[
    str | None,
    typer.Option("--pinned", metavar="ARM", help="Unchanged arm of stored runs, the baseline. Default: torch."),
]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", metavar="F.md", help="Write a pull request comment; - is stdout.")
]
Html = Annotated[Path | None, typer.Option("--html", metavar="F.html", help="Write the comparison as an HTML page.")]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="F.xml", help="Write JUnit XML.")]
WriteExpected = Annotated[
    Path | None,
    typer.Option("--write-expected", metavar="F.toml", help="Write the current findings as known ones, then exit 0."),
]


@with_exit_codes
def compare(
    base: Base,
    head: Head,
    *,
    runtime: Runtimes = ["ort-cpu"],
    base_python: Python = None,
    head_python: Python = None,
    size: SizeOptions = [],
    at: At = [],
    inputs: Inputs = None,
    seconds: Seconds = 30.0,
    budget: Budget = None,
    timeout: Timeout = PATIENCE_SECONDS,
    margin: Margin = 5.0,
    more_nodes: MoreNodes = 10.0,
    larger_file: LargerFile = 10.0,
    more_memory: MoreMemory = 10.0,
    allow: Gates = [],
    skip: Skipped = [],
    strict: Strict = False,
    pinned: Pinned = None,
    expect: Expect = None,
    write_expected: WriteExpected = None,
    markdown: Markdown = None,
    html: Html = None,
    junit: Junit = None,
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Compare two runs, models or environments, and fail on regressions."""
    deadline = command_deadline(budget)
    pin_threads(threads)
    kind = kind_of(base, head)
    require_distinct_paths(_outputs(markdown, html, junit, write_expected), [base, head, inputs, expect])
    check_outputs(markdown, (html, junit), write_expected, as_json=json)
    from sdpa_onnx.sweep.stored_comparison import compare_stored_files, require_common

    expected = read_known_findings(expect)
    limits = _limits((margin, more_nodes, larger_file, more_memory), allow, skip, strict=strict)
    if kind is ComparisonKind.MODELS:
        _refuse_options(kind, pinned=pinned)
        options = _compare_options(limits, runtime, (base_python, head_python), timeout)
        options = _with_sizes(options, base, size, at, inputs, seconds, threads=threads, seed=seed)
        rows = _models(base, head, replace(options, plan=replace(options.plan, deadline=deadline)))
    else:
        _refuse_options(kind, base_python=base_python, head_python=head_python, at=at, size=size, inputs=inputs)
        _refuse_options(kind, budget=budget)
        rows = compare_stored_files(kind, base, head, limits, pinned, on_note=print_message)
    require_common(base, head, rows)
    known = expected.sort(rows) if expected is not None else None
    how = method_sentence(kind, _not_applied(limits, rows))
    report = _as_report(rows, known, how, (base, base_python), (head, head_python))
    if markdown != STDOUT:
        show_gates(report, as_json=json)
    write_results(report, markdown, html, junit)
    return _conclude(rows, known, write_expected, expected)


def _not_applied(limits: "GateLimits", rows: "list[GateRecord]") -> "frozenset[Gate]":
    """The gates that were skipped by request, or because of the time limit."""
    from sdpa_onnx.core.records.records import is_beyond_budget

    return limits.skipped | {row.gate for row in rows if is_beyond_budget(row)}


def _conclude(
    rows: "list[GateRecord]",
    known: "SortedFindings | None",
    write_expected: Path | None,
    expected: "KnownFindings | None",
) -> int:
    """Print how the rows differ from the known findings, write them if requested, and return the exit code."""
    if known is not None:
        print_known_findings(known)
    if write_expected is not None:
        write_known_file(write_expected, rows, expected)
        return OK
    return exit_code(rows, known)


def _outputs(
    markdown: Path | None, html: Path | None, junit: Path | None, write_expected: Path | None
) -> dict[str, Path | None]:
    """Return the files that are written, by option."""
    return {
        "--markdown": None if markdown == STDOUT else markdown,
        "--html": html,
        "--junit": junit,
        "--write-expected": write_expected,
    }


def _as_report(
    rows: "list[GateRecord]", known: "SortedFindings | None", how: str, *sides: tuple[Path, Path | None]
) -> "GateReport":
    """The rows with what is compared, for people: two paths, each with the Python that runs it."""
    from sdpa_onnx.report.compare.gate_report import GateReport

    base, head = [f"{path} with {python}" if python else str(path) for path, python in sides]
    command = f"sdpa-onnx {shlex.join(sys.argv[1:])}"
    return GateReport(rows=rows, base=base, head=head, how=how, command=command, known=known)


def _refuse_options(kind: ComparisonKind, **options: object) -> None:
    """Reject options that do not apply to this kind of comparison.

    Raises:
        PlanError: If one is given.
    """
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        option = f"--{given.replace('_', '-')}"
        other = "stored runs" if kind is ComparisonKind.MODELS else "models"
        raise PlanError(f"{option} applies only to {other}.", hint=f"Leave out {option}.")


def _limits(percents: tuple[float, ...], allow: list[str], skip: list[str], *, strict: bool) -> "GateLimits":
    from sdpa_onnx.core.compare.gate_limits import GateLimits

    margin, more_nodes, larger_file, more_memory = (percent / 100 for percent in percents)
    return GateLimits(
        margin=margin,
        more_nodes=more_nodes,
        larger_file=larger_file,
        more_memory=more_memory,
        allowed=_gates("--allow", allow),
        skipped=_gates("--skip", skip),
        strict=strict,
    )


def _gates(option: str, names: list[str]) -> "frozenset[Gate]":
    from sdpa_onnx.core.records.gate_records import Gate

    unknown = next((name for name in names if name not in {*Gate}), None)
    if unknown is not None:
        raise PlanError(f"{option} {unknown}: unknown gate.", hint=f"Known: {', '.join(Gate)}.")
    gates = frozenset(map(Gate, names))
    if option == "--skip" and len(gates) == len(Gate):
        raise PlanError("--skip names every gate, so nothing is left to compare.", hint="Leave one out.")
    return gates


def _compare_options(
    limits: "GateLimits", runtime: list[str], pythons: tuple[Path | None, Path | None], timeout: float
) -> "CompareOptions":
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME
    from sdpa_onnx.workflows.compare.models import CompareOptions

    names = pick_runtimes(runtime)
    if MODULE_RUNTIME in runtime:
        raise PlanError(
            f"Runtime '{MODULE_RUNTIME}' runs a PyTorch module and not the file.", hint="Choose another runtime."
        )
    return CompareOptions(
        runtimes=[name for name in names if name != MODULE_RUNTIME],
        limits=limits,
        pythons=pythons,
        patience_seconds=timeout,
    )


def _with_sizes(
    options: "CompareOptions",
    base: Path,
    size: list[str],
    at: list[str],
    inputs: Path | None,
    seconds: float,
    *,
    threads: int,
    seed: int,
) -> "CompareOptions":
    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.measure.calibration import load_calibration
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.check.given_arrays import read_inputs

    if inputs is not None and (size or at):
        raise PlanError("--inputs already fixes the sizes.", hint="Leave out --at and --size.")
    arrays = read_inputs(inputs, load_model(base)) if inputs is not None else None
    return replace(
        options,
        sizes=parse_size_sets(at),
        check=CheckOptions(sizes=parse_sizes(size), seed=seed, threads=threads, inputs=arrays),
        plan=replace(options.plan, budget_seconds=seconds, seed=seed, extras=False, calibration=load_calibration()),
    )


def _models(base: Path, head: Path, options: "CompareOptions") -> "list[GateRecord]":
    from sdpa_onnx.measure.time_limit import interrupted_at
    from sdpa_onnx.workflows.compare.models import compare_models

    parts = len(options.runtimes) * (1 + max(1, len(options.sizes)))
    left = iter([0.0, *([1.0] * parts)])  # judging takes about as long as one timing
    with Progress(parts) as progress, interrupted_at(options.plan.deadline):

        def show_step(text: str) -> None:
            progress.advance(next(left, 0.0))
            progress.at(text)

        return compare_models(base, head, replace(options, on_progress=show_step))
