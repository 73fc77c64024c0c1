"""Comparisons of `bench` as a run folder: each is written when it finishes, so that a kill loses only the current one.

Renders nothing; `report` and `compare` read the folder like any other run.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from sdpa_onnx.core.records.records import AgreementRecord, Record, TimingRecord, require_finite
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.measure.environment import environment, versions
from sdpa_onnx.sweep.plan import cell_id
from sdpa_onnx.sweep.store import Store, utc_timestamp
from sdpa_onnx.workflows.bench.bench_files import BenchResult, PreparedBench
from sdpa_onnx.workflows.timing.job_folder import Arm

__all__ = ["BenchRun"]

_SUITE = "bench"


class BenchRun:
    """The run folder of one `bench`; a context manager that holds its lock.

    Args:
        folder: A new folder, or an empty one.
        prepared: What will be timed.
        command: The command line that repeats it.

    Raises:
        PlanError: If the folder already contains a run.
        FolderError: If it cannot be written.
    """

    def __init__(self, folder: Path, prepared: PreparedBench, *, command: str) -> None:
        refused = prepared.contest.refused
        self._seed = prepared.task.check.seed
        self._arms = [_arm_parts(arm) for arm in prepared.contest.arms]
        header = RunHeader(
            suite=_SUITE,
            plan_hash=cell_id([self._job(check.sizes) for check in prepared.checks]),
            started=utc_timestamp(),
            command=command,
            environment=environment(),
            versions=versions(),
            threads=prepared.task.choice.threads[0],
            seed=self._seed,
            calibration=prepared.task.plan.calibration.figures,
            planned_cells=len(prepared.checks) + bool(refused),
        )
        self._done = 0
        self._store = Store.create(folder, header)
        if refused:
            self._append(self._job({}), list(refused))

    @property
    def folder(self) -> Path:
        return self._store.folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()

    def add(self, benched: BenchResult) -> None:
        """Write one comparison: records, agreement records of its numbers, raw samples.

        Raises:
            FolderError: If the disk is full.
        """
        job = self._job(benched.sizes)
        paths = {
            name: self._store.write_samples(cell_id({"job": job, "arm": name}), sample.arrays)
            for name, sample in benched.samples.items()
        }
        timings = [msgspec.structs.replace(one, samples=paths.get(one.arm, "")) for one in benched.records]
        self._append(job, [*benched.numbers.records, *timings])

    def finish(self) -> None:
        """Mark the run as finished."""
        self._store.write_header(
            dataclasses.replace(self._store.header, finished=utc_timestamp(), done_cells=self._done)
        )

    def _job(self, sizes: Mapping[str, int]) -> str:
        return cell_id({"kind": _SUITE, "sizes": dict(sizes), "arms": self._arms, "seed": self._seed})

    def _append(self, job: str, records: Sequence[AgreementRecord | TimingRecord]) -> None:
        marked: list[Record] = [
            msgspec.structs.replace(record, job=job, parts=len(records), cell=_cell(job, number, record))
            for number, record in enumerate(records)
        ]
        for record in marked:
            require_finite(record)
        self._store.append(marked)
        self._done += 1


def _arm_parts(arm: Arm) -> dict[str, object]:
    """Everything that determines the result of an arm."""
    return {
        "model": arm.model.content_hash(),
        "runtime": arm.runtime.name,
        "threads": arm.threads,
        "options": dict(arm.options),
        "environment": arm.environment,
    }


def _cell(job: str, number: int, record: Record) -> str:
    """The cell id: from the name of an arm, which also names its samples; from a number for agreement records."""
    return cell_id({"job": job, "arm": record.arm} if isinstance(record, TimingRecord) else {"job": job, "n": number})
