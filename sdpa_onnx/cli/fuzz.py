"""`sdpa-onnx fuzz`: run random valid attention cases on one runtime and reduce each kind of failure."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpa_onnx.cli.detail import Detail, requested_detail
from sdpa_onnx.cli.error_boundary import (
    DISAGREES,
    INTERRUPTED,
    OK,
    pin_threads,
    print_message,
    print_note,
    with_exit_codes,
)
from sdpa_onnx.cli.expect import conclude, read_known_findings
from sdpa_onnx.cli.help.completion import complete_runtime
from sdpa_onnx.cli.options import (
    Debug,
    Expect,
    Json,
    Quiet,
    Seed,
    Threads,
    Timeout,
    Verbose,
)
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.show import print_plain
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import Record
    from sdpa_onnx.report.run.fuzz_text import FuzzReport
    from sdpa_onnx.workflows.fuzz.run import FuzzRun
    from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime

__all__ = ["fuzz"]

OneRuntime = Annotated[
    str,
    typer.Option(
        "--runtime", help="Runtime that runs the cases. `runtimes` lists them.", autocompletion=complete_runtime
    ),
]
Cases = Annotated[int, typer.Option("--cases", min=1, help="Number of cases.")]
Start = Annotated[int, typer.Option("--start", min=0, help="Number of the first case.")]
Seconds = Annotated[float | None, typer.Option("--seconds", min=0.0, help="Stop after this time.")]
Reduce = Annotated[bool, typer.Option("--reduce/--no-reduce", help="Reduce each kind of finding to its smallest case.")]
Keep = Annotated[
    Path | None, typer.Option("--keep", metavar="FOLDER", help="Write a bug report bundle for each kind of finding.")
]

# Expected seconds of one case, for the remaining time only.
_ESTIMATED_SECONDS = 0.01
# Kinds of findings to reduce; each takes up to 15 s.
_MAX_REDUCED = 24
# Failures of sdpa-onnx itself that are printed one by one.
_MAX_PRINTED = 5


@with_exit_codes
def fuzz(
    *,
    runtime: OneRuntime = "ort-cpu",
    cases: Cases = 10_000,
    seed: Seed = 0,
    start: Start = 0,
    seconds: Seconds = None,
    threads: Threads = 1,
    timeout: Timeout = 20.0,
    reduce: Reduce = True,
    keep: Keep = None,
    expect: Expect = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Run random valid attention cases on a runtime, and reduce each failure to its smallest case."""
    pin_threads(threads)
    name = _pick_runtime(runtime)
    _check_folder(keep, reduces=reduce)
    expected = read_known_findings(expect)

    from sdpa_onnx.workflows.fuzz.records import group_record
    from sdpa_onnx.workflows.fuzz.run import FuzzRun
    from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime

    where = GuardedRuntime(name, patience_seconds=timeout)
    run = FuzzRun(runtime=where, seed=seed, start=start, cases=cases, seconds=seconds, threads=threads)
    is_stopped, core_seconds = _run_cases(run, where)
    if reduce and not is_stopped:
        is_stopped = _reduce_groups(run, where)
    records = [group_record(group, runtime=name, seed=seed) for group in run.groups.ordered()]
    _show(_story(run, where, core_seconds), records, as_json=json)
    if keep is not None:
        _keep(run, keep)
    code = max(conclude(records, expected), _print_own_faults(run))
    return INTERRUPTED if is_stopped else code


def _print_own_faults(run: "FuzzRun") -> int:
    """Print the cases on which sdpa-onnx itself failed; return DISAGREES if there are any."""
    for sentence in run.own_faults[:_MAX_PRINTED]:
        print_message(sentence)
    left = len(run.own_faults) - _MAX_PRINTED
    if left > 0:
        print_message(f"sdpa-onnx itself failed on {left} more {'case' if left == 1 else 'cases'}.")
    return DISAGREES if run.own_faults else OK


def _pick_runtime(runtime: str) -> str:
    """Return the name of the one runtime to use.

    Raises:
        PlanError: If more than one is requested.
    """
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes

    names = pick_runtimes([runtime])
    if len(names) != 1:
        raise PlanError("fuzz runs on one runtime at a time.", hint="Give its name with --runtime.")
    return names[0]


def _check_folder(keep: Path | None, *, reduces: bool) -> None:
    """Check before the work starts that bundles can be written."""
    if keep is None:
        return
    if not reduces:
        raise PlanError("--keep needs reduced cases, which --no-reduce turns off.", hint="Use only one of them.")
    from sdpa_onnx.graph.files.whole_file import check_target

    if keep.exists() and not keep.is_dir():
        raise PlanError(f"{keep} is not a folder.", hint="Choose another path.")
    check_target(keep / "case.zip", failure=PlanError)


def _run_cases(run: "FuzzRun", where: "GuardedRuntime") -> tuple[bool, float]:
    """Run the cases; return whether the user interrupted, and the CPU time of all processes in seconds."""
    before = _core_seconds()
    is_stopped = False
    with Progress(run.seconds if run.seconds is not None else _ESTIMATED_SECONDS * run.cases) as progress:

        def show_case(number: int) -> None:
            progress.advance(_ESTIMATED_SECONDS)
            progress.at(f"{where.name}: case {number}, {len(run.groups.ordered())} kinds of findings")

        try:
            run.go(show_case)
        except KeyboardInterrupt:
            is_stopped = True
        finally:
            where.stop()  # the CPU time of a child is counted only after it has ended
    return is_stopped, _core_seconds() - before


def _core_seconds() -> float:
    """Return the CPU time of this process and of its finished children, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _reduce_groups(run: "FuzzRun", where: "GuardedRuntime") -> bool:
    """Reduce each kind of finding, worst first; return whether the user interrupted."""
    from sdpa_onnx.workflows.fuzz.run import GROUP_SECONDS, reduce_group

    groups = run.groups.ordered()
    with Progress(GROUP_SECONDS * min(len(groups), _MAX_REDUCED)) as progress:
        try:
            for place, group in enumerate(groups):
                if place >= _MAX_REDUCED:
                    group.note = f"Only the first {_MAX_REDUCED} kinds are reduced."
                    continue
                progress.at(f"{where.name}: reducing kind {place + 1} of {len(groups)}")
                reduce_group(group, where, seed=run.seed, threads=run.threads)
                progress.advance(GROUP_SECONDS)
        except KeyboardInterrupt:
            return True
        finally:
            where.stop()
            run.groups.merge()
    return False


def _story(run: "FuzzRun", where: "GuardedRuntime", core_seconds: float) -> "FuzzReport":
    from sdpa_onnx.report.run.fuzz_text import FuzzReport

    return FuzzReport(
        runtime=where.name,
        version=where.version(),
        seed=run.seed,
        start=run.start,
        next_number=run.next_number,
        counts=run.counts,
        groups=run.groups.ordered(),
        wall_seconds=run.elapsed_seconds,
        core_seconds=core_seconds,
        is_finished=run.is_finished,
    )


def _show(story: "FuzzReport", records: "Sequence[Record]", *, as_json: bool) -> None:
    """Print the findings; with --json the summary goes to stderr."""
    from sdpa_onnx.report.run.fuzz_text import fuzz_lines, fuzz_summary, fuzz_verdict

    if as_json:
        from sdpa_onnx.cli.show import show_records

        show_records(records, as_json=True)
        for sentence in fuzz_summary(story):
            print_note(sentence)
        return
    width = shutil.get_terminal_size((120, 24)).columns
    print_plain([fuzz_verdict(story)] if requested_detail() is Detail.QUIET else fuzz_lines(story, width))


def _keep(run: "FuzzRun", folder: Path) -> None:
    from sdpa_onnx.workflows.fuzz.run import keep_bundles

    for path in keep_bundles(run.groups.ordered(), folder, seed=run.seed, threads=run.threads):
        print_note(f"wrote {path}")
