"""A run as the user requests it: a suite, what is changed in it or left out, and the folder. Runs nothing.

The command and the Python function `run` share it.
"""

import difflib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sdpa_onnx.errors import PlanError
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.time_limit import checked_seconds
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.sweep.allowed_code import check_code_is_allowed
from sdpa_onnx.sweep.plan import JobKind
from sdpa_onnx.sweep.suite import Suite, load_suite
from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes

if TYPE_CHECKING:
    from sdpa_onnx.sweep.store import Store

__all__ = ["RunRequest"]

_REPORTS = Path("reports")
# Reading the records of `quick` and drawing its charts: 5 s of CPU time on an Intel Xeon, more on a slower machine.
_REPORT_SECONDS = 8.0
# The shortest time limit of a run: it includes the report.
_LEAST_BUDGET_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a user chose.

    Args:
        suite: Name of a suite, or path of a .toml file.
        out: The run folder; None = a new one in `reports`, or with `resume` the newest of this suite.
        resume: Resume the run in the folder.
        force: Resume even if the machine or versions changed.
        runtimes: Use only these runtimes of the suite; () = all.
        skip: Kinds of jobs to leave out.
        allow_code: Modules and files whose code the suite may run.
        threads, seed: Instead of the suite's.
        deadline: The time limit of everything, from now on.
    """

    suite: str
    out: Path | None = None
    resume: bool = False
    force: bool = False
    runtimes: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    allow_code: tuple[str, ...] = ()
    threads: int | None = None
    seed: int | None = None
    deadline: Deadline = field(default_factory=Deadline)

    @property
    def command(self) -> list[str]:
        """The command line that runs the same plan again; without a time limit, so that it reaches every cell."""
        arguments = ["sdpa-onnx", "run", self.suite]
        repeated = (("--runtime", self.runtimes), ("--skip", self.skip), ("--allow-code", self.allow_code))
        for option, names in repeated:
            for name in names:
                arguments += [option, name]
        for option, value in (("--threads", self.threads), ("--seed", self.seed)):
            arguments += [] if value is None else [option, str(value)]
        return arguments

    @property
    def job_deadline(self) -> Deadline:
        """The time limit of the jobs: the report is written after them, within the limit of everything."""
        budget = self.deadline.budget_seconds
        return replace(self.deadline, budget_seconds=None if budget is None else max(budget - _REPORT_SECONDS, 0.0))

    def load(self) -> Suite:
        """The suite with what was chosen.

        Raises:
            PlanError: If there is no such suite, runtime or kind of job, a number is too small, or the suite names
                code that is not allowed.
            RuntimeNotFoundError: If there is no such runtime.
        """
        if self.deadline.budget_seconds is not None:
            checked_seconds("budget", self.deadline.budget_seconds, least=_LEAST_BUDGET_SECONDS)
        suite = load_suite(self.suite)
        check_code_is_allowed(suite, self.allow_code, source=self.suite)
        return _without_kinds(self._with_overrides(_present(suite)), self.skip)

    def open(self, plan: Suite) -> "Store":
        """The folder of the run, new or resumed.

        Args:
            plan: The suite that `load` returned.

        Raises:
            PlanError, RuntimeUnavailableError, FolderError: See `open_run`.
        """
        # Imports torch, whose threads the command sets after it has read the suite.
        from sdpa_onnx.sweep.run import latest_folder, new_folder, open_run

        newest = latest_folder if self.resume else new_folder
        return open_run(
            plan,
            self.out or newest(self.suite, _REPORTS),
            command=shlex.join(self.command),
            resume=self.resume,
            force=self.force,
            skipped_kinds=tuple(map(JobKind, dict.fromkeys(self.skip))),
            budget_seconds=self.deadline.budget_seconds,
        )

    def _with_overrides(self, suite: Suite) -> Suite:
        for name, value, least in (("threads", self.threads, 1), ("seed", self.seed, 0)):
            if value is not None and value < least:
                raise PlanError(f"{name} is {value}.", hint=f"Give at least {least}.")
        for name in self.runtimes:
            get_runtime(name)
            if name not in (*suite.agreement, *suite.timing):
                used = ", ".join(suite.agreement)
                raise PlanError(f"The suite does not use runtime '{name}'.", hint=f"It uses {used}.")
        timing = tuple(name for name in suite.timing if not self.runtimes or name in self.runtimes)
        return msgspec.structs.replace(
            suite,
            agreement=tuple(name for name in suite.agreement if not self.runtimes or name in self.runtimes),
            timing=timing,
            baseline=suite.baseline if suite.baseline in timing or not timing else timing[0],
            threads=self.threads or suite.threads,
            seed=suite.seed if self.seed is None else self.seed,
        )


def _present(suite: Suite) -> Suite:
    """Return the suite with the runtimes that are there in place of "all"."""
    if "all" not in (*suite.agreement, *suite.timing):
        return suite
    there = pick_runtimes(["all"])
    timed = tuple(name for name in there if get_runtime(name).measures_time)
    return msgspec.structs.replace(
        suite,
        agreement=tuple(there) if "all" in suite.agreement else suite.agreement,
        timing=timed if "all" in suite.timing else suite.timing,
    )


def _without_kinds(suite: Suite, skipped: tuple[str, ...]) -> Suite:
    """Return the suite without some kinds of jobs.

    Raises:
        PlanError: If there is no such kind, or it cannot be left out.
    """
    allowed: dict[str, Callable[[Suite], Suite]] = {
        "time": lambda suite: msgspec.structs.replace(suite, timing=()),
        "agreement": lambda suite: msgspec.structs.replace(suite, agreement=()),
        "saturation": lambda suite: msgspec.structs.replace(suite, saturation=None),
    }
    for name in skipped:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(allowed)}."
            raise PlanError(f"There is no kind of job '{name}' that can be skipped.", hint=hint)
        suite = allowed[name](suite)
    return suite
