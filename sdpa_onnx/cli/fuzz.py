"""`sdpa-onnx fuzz`: random legal attentions on one runtime, what is not right, and the smallest case of each kind."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpa_onnx.cli.error_boundary import (
    DISAGREES,
    INTERRUPTED,
    OK,
    drop_results,
    flush_results,
    guarded,
    pin_threads,
    tell,
)
from sdpa_onnx.cli.expect import conclude, read_known
from sdpa_onnx.cli.options import Debug, Expect, Json, Seed, Threads, Timeout
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import Record
    from sdpa_onnx.report.run.fuzz_text import FuzzStory
    from sdpa_onnx.workflows.fuzz.run import FuzzRun
    from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime

__all__ = ["fuzz"]

OneRuntime = Annotated[str, typer.Option("--runtime", help="Where the cases run. See `runtimes`.")]
Cases = Annotated[int, typer.Option("--cases", min=1, help="How many cases.")]
Start = Annotated[int, typer.Option("--start", min=0, help="Number of the first case.")]
Seconds = Annotated[float | None, typer.Option("--seconds", min=0.0, help="Stop once so much time has gone.")]
Reduce = Annotated[bool, typer.Option("--reduce/--no-reduce", help="Look for the smallest case of each kind.")]
Keep = Annotated[
    Path | None, typer.Option("--keep", metavar="FOLDER", help="Write a bundle for a bug report of each kind.")
]

# Of one case, for the time left; corrected by what cases take.
_GUESSED_SECONDS = 0.01
# Kinds that are made smaller: each takes up to 15 s.
_MOST_REDUCED = 24
# Faults of our own that are told one by one.
_MOST_TOLD = 5


@guarded
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
    debug: Debug = False,
) -> int:
    """Run random legal attention cases on a runtime, and show what it gets wrong as small as it goes."""
    pin_threads(threads)
    name = _picked(runtime)
    _check_folder(keep, reduces=reduce)
    expected = read_known(expect)

    from sdpa_onnx.workflows.fuzz.records import group_record
    from sdpa_onnx.workflows.fuzz.run import FuzzRun
    from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime

    where = GuardedRuntime(name, patience_seconds=timeout)
    run = FuzzRun(runtime=where, seed=seed, start=start, cases=cases, seconds=seconds, threads=threads)
    is_stopped, core_seconds = _go(run, where)
    if reduce and not is_stopped:
        is_stopped = _make_smaller(run, where)
    records = [group_record(group, runtime=name, seed=seed) for group in run.groups.ordered()]
    _show(_story(run, where, core_seconds), records, as_json=json)
    if keep is not None:
        _keep(run, keep)
    code = max(conclude(records, expected), _own_faults(run))
    return INTERRUPTED if is_stopped else code


def _own_faults(run: "FuzzRun") -> int:
    """Tell on which cases this package itself failed; that is never well."""
    for sentence in run.own_faults[:_MOST_TOLD]:
        tell(sentence)
    left = len(run.own_faults) - _MOST_TOLD
    if left > 0:
        tell(f"{left} more {'case' if left == 1 else 'cases'} made sdpa-onnx itself fail.")
    return DISAGREES if run.own_faults else OK


def _picked(runtime: str) -> str:
    """The name of one runtime that is there.

    Raises:
        PlanError: If more than one is asked for.
    """
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes

    names = pick_runtimes([runtime])
    if len(names) != 1:
        raise PlanError("fuzz runs on one runtime at a time.", hint="Give its name with --runtime.")
    return names[0]


def _check_folder(keep: Path | None, *, reduces: bool) -> None:
    """Find out before minutes of work that nothing could be kept."""
    if keep is None:
        return
    if not reduces:
        raise PlanError("--keep writes the smallest cases, and --no-reduce looks for none.", hint="Give one of them.")
    from sdpa_onnx.graph.files.whole_file import check_target

    if keep.exists() and not keep.is_dir():
        raise PlanError(f"{keep} is no folder.", hint="Give another name.")
    check_target(keep / "case.zip", failure=PlanError)


def _go(run: "FuzzRun", where: "GuardedRuntime") -> tuple[bool, float]:
    """Run the cases: whether the user stopped them, and the processor time of all processes, seconds."""
    before = _core_seconds()
    is_stopped = False
    with Progress(run.seconds if run.seconds is not None else _GUESSED_SECONDS * run.cases) as progress:

        def tell_case(number: int) -> None:
            progress.advance(_GUESSED_SECONDS)
            progress.at(f"{where.name}: case {number}, {len(run.groups.ordered())} kinds of findings")

        try:
            run.go(tell_case)
        except KeyboardInterrupt:
            is_stopped = True
        finally:
            where.stop()  # a child's time counts once it has ended
    return is_stopped, _core_seconds() - before


def _core_seconds() -> float:
    """Processor time of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _make_smaller(run: "FuzzRun", where: "GuardedRuntime") -> bool:
    """Look for the smallest case of each kind, worst first; whether the user stopped it."""
    from sdpa_onnx.workflows.fuzz.run import GROUP_SECONDS, reduce_group

    groups = run.groups.ordered()
    with Progress(GROUP_SECONDS * min(len(groups), _MOST_REDUCED)) as progress:
        try:
            for place, group in enumerate(groups):
                if place >= _MOST_REDUCED:
                    group.note = f"Only the first {_MOST_REDUCED} kinds are made smaller."
                    continue
                progress.at(f"{where.name}: the smallest case of kind {place + 1} of {len(groups)}")
                reduce_group(group, where, seed=run.seed, threads=run.threads)
                progress.advance(GROUP_SECONDS)
        except KeyboardInterrupt:
            return True
        finally:
            where.stop()
            run.groups.merge()
    return False


def _story(run: "FuzzRun", where: "GuardedRuntime", core_seconds: float) -> "FuzzStory":
    from sdpa_onnx.report.run.fuzz_text import FuzzStory

    return FuzzStory(
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


def _show(story: "FuzzStory", records: "Sequence[Record]", *, as_json: bool) -> None:
    """Print what was found; with --json the summary goes to the person."""
    from sdpa_onnx.report.run.fuzz_text import fuzz_lines, fuzz_summary

    if as_json:
        from sdpa_onnx.cli.show import show_records

        show_records(records, as_json=True)
        for sentence in fuzz_summary(story):
            tell(sentence)
        return
    try:
        for line in fuzz_lines(story, shutil.get_terminal_size((120, 24)).columns):
            print(line)
        flush_results()
    except BrokenPipeError:  # the reader has gone; the exit code is the command's all the same
        drop_results()


def _keep(run: "FuzzRun", folder: Path) -> None:
    from sdpa_onnx.workflows.fuzz.run import keep_bundles

    for path in keep_bundles(run.groups.ordered(), folder, seed=run.seed, threads=run.threads):
        tell(f"wrote {path}")
