"""`sdpa-onnx run`: export, verify and time a suite, and write its report."""

import shlex
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
from sdpa_onnx.cli.options import Debug, Expect, Json
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.sweep.store import Store
    from sdpa_onnx.sweep.suite import Suite

__all__ = ["run"]

Out = Annotated[Path | None, typer.Option("--out", help="Run folder. Default: reports/SUITE-TIME.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out, or the newest run of this suite.")]
Force = Annotated[bool, typer.Option("--force", help="With --resume: resume even if machine or versions changed.")]
OnlyRuntimes = Annotated[list[str], typer.Option("--runtime", help="Use only this runtime of the suite; repeatable.")]


@with_exit_codes
def run(
    suite: Annotated[str, typer.Argument(help="quick, full, ci, or your own .toml file.")] = "quick",
    *,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
    runtime: OnlyRuntimes = [],
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads, instead of the suite's.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed, instead of the suite's.")] = None,
    expect: Expect = None,
    open_page: Open = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Export, verify and time a suite; write and print its report."""
    from sdpa_onnx.sweep.suite import load_suite

    read_known_findings(expect)
    plan = _with_overrides(load_suite(suite), runtime, threads, seed)
    pin_threads(plan.threads)
    command = _command(suite, runtime, threads, seed)
    store = _open(plan, suite, out, command, resume=resume, force=force)
    with store:
        if expect is not None:
            store_known_findings(expect, store.folder)
        interrupted = not _run_suite(plan, store)
    code = _report(store.folder, command, as_json=json, interrupted=interrupted)
    if open_page:
        from sdpa_onnx.report.page.render_run import PAGE_FILE

        show_in_browser(store.folder / PAGE_FILE)
    return code


def _command(suite: str, runtimes: list[str], threads: int | None, seed: int | None) -> list[str]:
    """Return the command line that runs the same plan again."""
    arguments = ["sdpa-onnx", "run", suite]
    for name in runtimes:
        arguments += ["--runtime", name]
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


def _open(plan: "Suite", name: str, out: Path | None, command: list[str], *, resume: bool, force: bool) -> "Store":
    from sdpa_onnx.sweep.run import latest_folder, new_folder, open_run

    reports = Path("reports")
    folder = out or (latest_folder(name, reports) if resume else new_folder(name, reports))
    store = open_run(plan, folder, command=shlex.join(command), resume=resume, force=force)
    print_message(f"{'resuming' if resume else 'writing'} {folder}")
    return store


def _run_suite(plan: "Suite", store: "Store") -> bool:
    """Run the jobs that are left; return False if the user interrupts."""
    from sdpa_onnx.cli.progress import Progress
    from sdpa_onnx.sweep.job_text import job_seconds, job_words
    from sdpa_onnx.sweep.plan import Job
    from sdpa_onnx.sweep.plan import plan as plan_jobs
    from sdpa_onnx.sweep.run import RunObserver, run_jobs

    with Progress(sum(map(job_seconds, plan_jobs(plan)))) as progress:

        def start(left: list[Job]) -> None:
            progress.restart(sum(map(job_seconds, left)))

        def done(job: Job, is_ok: bool) -> None:
            progress.advance(job_seconds(job))
            if not is_ok:
                progress.note(f"failed: {job_words(job)}")

        try:
            run_jobs(
                plan, store, RunObserver(on_start=start, on_job=lambda job: progress.at(job_words(job)), on_done=done)
            )
        except KeyboardInterrupt:
            return False
    return True


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
