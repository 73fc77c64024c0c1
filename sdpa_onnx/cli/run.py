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
)
from sdpa_onnx.cli.help.completion import complete_runtime, complete_suite
from sdpa_onnx.cli.open_page import Open, show_in_browser
from sdpa_onnx.cli.options import (
    Debug,
    Expect,
    Json,
    Quiet,
    Verbose,
)

if TYPE_CHECKING:
    from sdpa_onnx.sweep.request import RunRequest
    from sdpa_onnx.sweep.store import Store
    from sdpa_onnx.sweep.suite import Suite

__all__ = ["TRUSTED_SECONDS", "run"]

# The expected time of a suite counts as much as the time that was observed over so many seconds.
TRUSTED_SECONDS = 15.0

Out = Annotated[Path | None, typer.Option("--out", help="Run folder. Default: reports/SUITE-TIME.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out, or the newest run of this suite.")]
Force = Annotated[bool, typer.Option("--force", help="With --resume: resume even if machine or versions changed.")]
Skip = Annotated[
    list[str], typer.Option("--skip", help="Leave out a kind of job: time, agreement or saturation; repeatable.")
]
AllowCode = Annotated[
    list[str],
    typer.Option(
        "--allow-code",
        metavar="MODULE",
        help="Module or file that the suite may import, which runs its code; repeatable.",
    ),
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", min=1.0, help="Seconds for the command; cells that it does not reach are skipped."),
]
OnlyRuntimes = Annotated[
    list[str],
    typer.Option("--runtime", help="Use only this runtime of the suite; repeatable.", autocompletion=complete_runtime),
]


@with_exit_codes
def run(
    suite: Annotated[
        str, typer.Argument(help="smoke, quick, full, ci, or your own .toml file.", autocompletion=complete_suite)
    ] = "quick",
    *,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
    runtime: OnlyRuntimes = [],
    skip: Skip = [],
    allow_code: AllowCode = [],
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
    from sdpa_onnx.sweep.request import RunRequest

    deadline = Deadline(budget_seconds=budget)
    read_known_findings(expect)
    request = RunRequest(
        suite=suite,
        out=out,
        resume=resume,
        force=force,
        runtimes=tuple(runtime),
        skip=tuple(skip),
        allow_code=tuple(allow_code),
        threads=threads,
        seed=seed,
        deadline=deadline,
    )
    plan = request.load()
    pin_threads(plan.threads)
    with request.open(plan) as store:
        print_message(f"{'resuming' if resume else 'writing'} {store.folder}")
        if store.reruns:
            print_message(store.reruns)
        if expect is not None:
            from sdpa_onnx.sweep.expected import store_known_findings

            store_known_findings(expect, store.folder)
        interrupted = not _run_suite(plan, store, request)
    code = _report(store.folder, request.command, as_json=json, interrupted=interrupted)
    if open_page:
        from sdpa_onnx.report.page.render_run import PAGE_FILE

        show_in_browser(store.folder / PAGE_FILE)
    return code


def _run_suite(plan: "Suite", store: "Store", request: "RunRequest") -> bool:
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
            run_jobs(plan, store, watcher, workers=workers, deadline=request.job_deadline)
        except KeyboardInterrupt:
            return False
    return True


def _report(folder: Path, command: list[str], *, as_json: bool, interrupted: bool) -> int:
    from sdpa_onnx.cli.show import show_report
    from sdpa_onnx.report.page.render_run import render
    from sdpa_onnx.sweep.expected import stored_known_findings
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
