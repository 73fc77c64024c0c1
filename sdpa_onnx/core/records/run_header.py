"""The metadata of a run: when, on which machine, with which versions and settings.

Holds no results and does not inspect the machine: the runner fills it in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["RunHeader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The metadata of a run; `run.json` is its JSON.

    Args:
        suite: Name of the suite or file that was run.
        plan_hash: sha256 of the suite as read, hex.
        started: ISO 8601 time; finished: the same, or None if it was interrupted.
        command: The command line that repeats the run.
        environment: The machine: cpu, cores, os, python.
        versions: Package -> version.
        contents: sha256 of the user's code and weights that the suite names, by file or target; empty in earlier runs.
        threads: Threads inside one operator.
        seed: Of weights and inputs.
        ceilings: Measured ceilings; the names contain the units
            (gemm_flops_per_second, exps_per_second).
        calibration: How much two processes of one model differ on this machine: between_sd, degrees.
        planned_cells: Number of cells in the plan; done_cells: number with a record, without those beyond the budget.
        kind_seconds: Wall time of the jobs by kind (export, agreement, saturation, time), added over the processes
            that ran side by side, and over the parts of a resumed run; empty in earlier runs.
        elapsed_seconds: Wall time of all jobs together; None in earlier runs.
        workers: Processes that carried out jobs side by side; 0 in earlier runs. Timings never share the machine.
        skipped_kinds: Kinds of jobs that the command left out.
        budget_seconds: Time limit of the command, or None.
    """

    suite: str
    started: str
    command: str
    plan_hash: str = ""
    finished: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    seed: int = 0
    ceilings: Mapping[str, float] = field(default_factory=dict)
    calibration: Mapping[str, float] = field(default_factory=dict)
    planned_cells: int = 0
    done_cells: int = 0
    kind_seconds: Mapping[str, float] = field(default_factory=dict)
    elapsed_seconds: float | None = None
    workers: int = 0
    skipped_kinds: tuple[str, ...] = ()
    budget_seconds: float | None = None
    contents: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Whether the run finished with every planned cell."""
        return self.finished is not None and self.done_cells >= self.planned_cells
