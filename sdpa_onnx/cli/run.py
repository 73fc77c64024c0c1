"""`sdpa-onnx run`: export, verify and time a suite, and write its report."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpa_onnx.cli.error_boundary import INTERRUPTED, pin_threads, print_message, with_exit_codes
from sdpa_onnx.cli.expect import (
    exit_code,
    print_known_findings,
    read_known_findings,
    store_known_findings,
    stored_known_findings,
)
from sdpa_onnx.cli.open_page import Open, show_in_browser
from sdpa_onnx.cli.options import (
    Debug,
    Expect,
    Json,
    Quiet,
    Verbose,
)
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.measure.deadline import Deadline
    from sdpa_onnx.sweep.store import Store
    from sdpa_onnx.sweep.suite import Suite

__all__ = ["TRUSTED_SECONDS", "run"]

# The expected time of a suite counts as much as the time that was observed over so many seconds.
TRUSTED_SECONDS = 30.0
# Reading the records of `quick` and drawing its charts: 5 s of CPU time on an Intel Xeon, more on a slower machine.
_REPORT_SECONDS = 8.0

Out = Annotated[Path | None, typer.Option("--out", help="Run folder. Default: reports/SUITE-TIME.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out, or the newest run of this suite.")]
Force = Annotated[bool, typer.Option("--force", help="With --resume: resume even if machine or versions changed.")]
Skip = Annotated[
    list[str], typer.Option("--skip", help="Leave out a kind of job: time, agreement or saturation; repeatable.")
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", min=1.0, help="Seconds for the command; cells that it does not reach are skipped."),
]
OnlyRuntimes = Annotated[list[str], typer.Option("--runtime", help="Use only this runtime of the suite; repeatable.")]


@with_exit_codes
def run(
    suite: Annotated[str, typer.Argument(help="smoke, quick, full, ci, or your own .toml file.")] = "quick",
    *,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
    runtime: OnlyRuntimes = [],
    skip: Skip = [],
    budget: Budget = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads, instead of the suite's.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed, instead of the suite's.")] = None,
    expect: Expect = None,
    open_page: Open = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Export, verify and time a suite; write and print its report."""
    from sdpa_onnx.measure.deadline import Deadline
    from sdpa_onnx.sweep.suite import load_suite

    deadline = Deadline(budget_seconds=budget)
    read_known_findings(expect)
    plan = _without_kinds(_with_overrides(load_suite(suite), runtime, threads, seed), skip)
    pin_threads(plan.threads)
    command = _command(suite, runtime, skip, threads, seed)
    store = _open(plan, suite, out, command, resume=resume, force=force, skip=skip, budget=budget)
    with store:
        if expect is not None:
            store_known_findings(expect, store.folder)
        interrupted = not _run_suite(plan, store, deadline)
    code = _report(store.folder, command, as_json=json, interrupted=interrupted)
    if open_page:
        from sdpa_onnx.report.page.render_run import PAGE_FILE

        show_in_browser(store.folder / PAGE_FILE)
    return code


def _command(suite: str, runtimes: list[str], skipped: list[str], threads: int | None, seed: int | None) -> list[str]:
    """Return the command line that runs the same plan again; without a time limit, so that it reaches every cell."""
    arguments = ["sdpa-onnx", "run", suite]
    for option, names in (("--runtime", runtimes), ("--skip", skipped)):
        for name in names:
            arguments += [option, name]
    for option, value in (("--threads", threads), ("--seed", seed)):
        arguments += [] if value is None else [option, str(value)]
    return arguments


def _with_overrides(suite: "Suite", runtimes: list[str], threads: int | None, seed: int | None) -> "Suite":
    """Return the suite with the values of the command line in it."""
    import msgspec

    from sdpa_onnx.runtimes.base import get_runtime

    for name in runtimes:
        get_runtime(name)
        if name not in (*suite.agreement, *suite.timing):
            raise PlanError(f"The suite does not use runtime '{name}'.", hint=f"It uses {', '.join(suite.agreement)}.")
    timing = tuple(name for name in suite.timing if not runtimes or name in runtimes)
    return msgspec.structs.replace(
        suite,
        agreement=tuple(name for name in suite.agreement if not runtimes or name in runtimes),
        timing=timing,
        baseline=suite.baseline if suite.baseline in timing or not timing else timing[0],
        threads=threads or suite.threads,
        seed=suite.seed if seed is None else seed,
    )


def _without_kinds(suite: "Suite", skipped: list[str]) -> "Suite":
    """Return the suite without some kinds of jobs.

    Raises:
        PlanError: If there is no such kind, or it cannot be left out.
    """
    import difflib

    import msgspec

    allowed: dict[str, Callable[[], Suite]] = {
        "time": lambda: msgspec.structs.replace(suite, timing=()),
        "agreement": lambda: msgspec.structs.replace(suite, agreement=()),
        "saturation": lambda: msgspec.structs.replace(suite, saturation=None),
    }
    for name in skipped:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"It can skip {', '.join(allowed)}."
            raise PlanError(f"--skip does not know '{name}'.", hint=hint)
        suite = allowed[name]()
    return suite


def _open(  # one argument per option
    plan: "Suite",
    name: str,
    out: Path | None,
    command: list[str],
    *,
    resume: bool,
    force: bool,
    skip: list[str],
    budget: float | None,
) -> "Store":
    from sdpa_onnx.sweep.plan import JobKind
    from sdpa_onnx.sweep.run import latest_folder, new_folder, open_run

    reports = Path("reports")
    folder = out or (latest_folder(name, reports) if resume else new_folder(name, reports))
    store = open_run(
        plan,
        folder,
        command=shlex.join(command),
        resume=resume,
        force=force,
        skipped_kinds=tuple(map(JobKind, dict.fromkeys(skip))),
        budget_seconds=budget,
    )
    print_message(f"{'resuming' if resume else 'writing'} {folder}")
    return store


def _run_suite(plan: "Suite", store: "Store", deadline: "Deadline") -> bool:
    """Run the jobs that are left; return False if the user interrupts."""
    from sdpa_onnx.cli.progress import Progress
    from sdpa_onnx.sweep.job_text import elapsed_share, job_words
    from sdpa_onnx.sweep.plan import Job
    from sdpa_onnx.sweep.run import RunObserver, run_jobs, usable_workers

    workers = usable_workers(plan.threads)
    with Progress(1.0, trusted_seconds=TRUSTED_SECONDS) as progress:

        def start(left: list[Job]) -> None:
            progress.restart(sum(elapsed_share(job, workers) for job in left))

        def done(job: Job, is_ok: bool) -> None:
            progress.advance(elapsed_share(job, workers))
            if not is_ok:
                progress.note(f"failed: {job_words(job)}")

        watcher = RunObserver(on_start=start, on_job=lambda job: progress.at(job_words(job)), on_done=done)
        try:
            run_jobs(
                plan,
                store,
                watcher,
                workers=workers,
                deadline=replace(deadline, budget_seconds=_without_report(deadline.budget_seconds)),
            )
        except KeyboardInterrupt:
            return False
    return True


def _without_report(budget: float | None) -> float | None:
    """The time limit of the jobs: the report is written after them, within the limit of the command."""
    return None if budget is None else max(budget - _REPORT_SECONDS, 0.0)


def _report(folder: Path, command: list[str], *, as_json: bool, interrupted: bool) -> int:
    from sdpa_onnx.cli.show import show_report
    from sdpa_onnx.report.page.render_run import render
    from sdpa_onnx.sweep.store import read_run

    header, records = read_run(folder)
    expected = stored_known_findings(folder)
    known = expected.sort(records) if expected is not None else None
    written = render(records, header, folder, known=known)
    show_report(records, header, written[0], as_json=as_json, known=known)
    if known is not None:
        print_known_findings(known, with_summary=as_json)
    if interrupted:
        resume = shlex.join([*command, "--out", str(folder), "--resume"])
        print_message(f"interrupted after {header.done_cells} of {header.planned_cells} cells; resume with: {resume}")
        return INTERRUPTED
    return exit_code(records, known)
