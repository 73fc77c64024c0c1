"""Export, verify and time a suite: `run`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sdpa_onnx.api.arguments import listed
from sdpa_onnx.api.record_list import RecordList

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import Record
    from sdpa_onnx.sweep.request import RunRequest

__all__ = ["SkippedKind", "run"]

SkippedKind = Literal["time", "agreement", "saturation"]


def run(
    suite: str | os.PathLike[str] = "quick",
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    runtimes: Sequence[str] = (),
    skip: Sequence[SkippedKind] = (),
    allow_code: Sequence[str] = (),
    budget: float | None = None,
    threads: int | None = None,
    seed: int | None = None,
) -> "RecordList[Record]":
    """Export, verify and time a suite, and write its report into a run folder, as `sdpa-onnx run` does.

    Takes a minute ("smoke") to hours ("full"), prints nothing, and stores a cell at once: `resume=True` continues.

    Args:
        suite: "smoke", "quick", "full", "ci", or the path of your own .toml file.
        out: The run folder; None = reports/SUITE-TIME in the current folder.
        resume: Resume the run in `out`, or the newest run of this suite.
        force: With `resume`: even if the machine or versions changed.
        runtimes: Use only these runtimes of the suite; () = all.
        skip: Kinds of jobs to leave out.
        allow_code: Modules and files that the suite may import, which runs their code.
        budget: Seconds for everything; cells that it does not reach are skipped. None = no limit.
        threads: Threads inside one operator; None = the suite's, as for the next.
        seed: Seed of weights and inputs.

    Returns:
        All records, also those of earlier parts that were resumed. Times are in seconds, sizes in tokens. `outcome` is
        the result of each. `folder` is the run folder, with the report in `index.html` and `summary.md`.

    Raises:
        PlanError: If the suite is wrong, a name is unknown, or the folder has a run that cannot be resumed.
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is unknown, or the one that proves exports is
            not installed.
        FolderError: If the folder cannot be written.

    Example:
        >>> records = run("smoke", skip=["time"])  # doctest: +SKIP
        >>> records.folder  # doctest: +SKIP
        PosixPath('reports/smoke-20261129T134500Z')
    """
    from sdpa_onnx.measure.deadline import Deadline
    from sdpa_onnx.sweep.request import RunRequest

    request = RunRequest(
        suite=os.fspath(suite),
        out=None if out is None else Path(out),
        resume=resume,
        force=force,
        runtimes=listed("runtimes", runtimes),
        skip=listed("skip", skip),
        allow_code=listed("allow_code", allow_code),
        threads=threads,
        seed=seed,
        deadline=Deadline(budget_seconds=budget),
    )
    return _carry_out(request)


def _carry_out(request: "RunRequest") -> "RecordList[Record]":
    from sdpa_onnx.report.page.render_run import render
    from sdpa_onnx.sweep.expected import stored_known_findings
    from sdpa_onnx.sweep.run import RunObserver, run_jobs, usable_workers
    from sdpa_onnx.sweep.store import read_run

    plan = request.load()
    with request.open(plan) as store:
        run_jobs(plan, store, RunObserver(), workers=usable_workers(plan.threads), deadline=request.job_deadline)
    header, records = read_run(store.folder)
    expected = stored_known_findings(store.folder)
    render(records, header, store.folder, known=None if expected is None else expected.sort(records))
    return RecordList(records, folder=store.folder)
