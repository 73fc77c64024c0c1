"""Run a plan job by job; a failing job becomes a record, and a kill loses at most the current job.

The only module with a broad except: whatever a runtime raises, the other jobs run.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ExportRecord,
    Outcome,
    Record,
    SaturationRecord,
    TimingRecord,
    require_finite,
)
from sdpa_onnx.core.timing.paired import Calibration, StoppingLook
from sdpa_onnx.errors import FolderError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.pool import WorkerPool
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.runtimes.base import Supported, Unsupported, get_runtime
from sdpa_onnx.sweep.job_text import failed_agreement, failed_record, model_words, skipped_arm
from sdpa_onnx.sweep.models import ModelCache, sizes_of
from sdpa_onnx.sweep.plan import AgreementJob, ExportJob, Job, SaturationJob, TimingJob, cell_id, job_id
from sdpa_onnx.sweep.store import Store
from sdpa_onnx.sweep.suite import CaseKey
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME
from sdpa_onnx.workflows.export.export_target import export_and_prove
from sdpa_onnx.workflows.saturation.measure import SaturationPlan, module_check, saturation
from sdpa_onnx.workflows.timing.comparison import Arm, TimedComparison, bench
from sdpa_onnx.workflows.verify.site_probes import check_whole
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

__all__ = ["PROVING_RUNTIME", "Runner"]

# Graphs up to this size are kept in the run folder; larger ones can be exported again from recipe and seed.
_KEPT_MODEL_BYTES = 2**20
# Significance level of the single look of a comparison in a sweep. Source: METHOD B.4.
_ALPHA = 0.01
# The runtime that proves dynamic axes: the only one that every installation has.
PROVING_RUNTIME = "ort-cpu"


@dataclass(slots=True)
class Runner:
    """Carries out jobs and writes their records into a store.

    Args:
        store: The store for records.
        ceilings: Ceilings measured in this run.
        pool: Workers for timings, kept for the whole run.
        calibration: Difference between processes on this machine.
    """

    store: Store
    ceilings: Ceilings | None
    pool: WorkerPool
    calibration: Calibration = field(default_factory=Calibration)
    models: ModelCache = field(default_factory=ModelCache)
    expectations: ExpectationCache = field(default_factory=ExpectationCache)

    def run(self, jobs: Sequence[Job], *, on_job: Callable[[Job], None], on_done: Callable[[Job, bool], None]) -> None:
        """Carry out jobs in order.

        Args:
            jobs: The remaining jobs.
            on_job: Called before each job.
            on_done: Called after each job; True if all its records are ok or skipped.

        Raises:
            FolderError: If a record cannot be written; no partial record is left.
        """
        for job in jobs:
            on_job(job)
            records = self._records(job)
            self.store.append(records)
            on_done(job, all(record.outcome in (Outcome.OK, Outcome.SKIPPED) for record in records))

    def _records(self, job: Job) -> list[Record]:
        """Records of one job with cell and job ids; a failed job gives one failed record."""
        name = job_id(job)
        try:
            records = self._carry_out(job)
            for record in records:
                require_finite(record)
        except FolderError:
            raise  # nothing can be written
        except Exception as error:  # noqa: BLE001 - a runtime may raise anything; the other jobs must run
            records = [failed_record(job, error)]
        return [
            msgspec.structs.replace(record, cell=record.cell or _cell(name, number), job=name, parts=len(records))
            for number, record in enumerate(records)
        ]

    def _carry_out(self, job: Job) -> list[Record]:
        match job:
            case ExportJob():
                return [self._export(job)]
            case AgreementJob():
                return list(self._agreement(job))
            case TimingJob():
                return self._timing(job)
            case SaturationJob():
                return list(_saturation(job))

    def _export(self, job: ExportJob) -> ExportRecord:
        exported = export_and_prove(
            lambda: self.models.get(job.model), target=job.model.target, runtime=PROVING_RUNTIME, seed=job.model.seed
        )
        data = exported.model.to_bytes()
        digest = hashlib.sha256(data).hexdigest()
        kept = self.store.write_model(digest, data) if len(data) <= _KEPT_MODEL_BYTES else f"sha256:{digest}"
        return msgspec.structs.replace(exported.record, case=model_words(job.model), model=kept)

    def _agreement(self, job: AgreementJob) -> list[AgreementRecord]:
        runtime = get_runtime(job.runtime)
        available = runtime.available()
        if isinstance(available, Unsupported):
            return [failed_agreement(job, Outcome.SKIPPED, available.reason)]
        model = self.models.get(job.model)
        check = _check(model, job.case, job.spreads, job.seed, job.threads)
        if not job.probes:
            return check_model(model, runtime, check, target=job.case.target, expectations=self.expectations)
        return check_whole(model, runtime, check, target=job.case.target, expectations=self.expectations)

    def _timing(self, job: TimingJob) -> list[Record]:
        arms, skipped = self._arms(job)
        if not arms:
            return list(skipped)
        comparison = self._bench(job, arms)
        timed = []
        for number, (name, record) in enumerate(comparison.records.items()):
            cell = _cell(job_id(job), number)
            sample = comparison.samples.get(name)
            path = self.store.write_samples(cell, sample.arrays) if sample is not None else ""
            timed.append(msgspec.structs.replace(record, cell=cell, samples=path))
        return [*timed, *skipped]

    def _bench(self, job: TimingJob, arms: Sequence[Arm]) -> TimedComparison:
        names = [arm.name for arm in arms]
        return bench(
            arms,
            _check(arms[0].model, job.case, (1.0,), job.seed, job.threads),
            target=job.case.target,
            baseline=job.baseline if job.baseline in names else names[0],
            plan=_plan(job, self.calibration),
            ceilings=self.ceilings,
            pool=self.pool,
        )

    def _arms(self, job: TimingJob) -> tuple[list[Arm], list[TimingRecord]]:
        """Arms that can run, and records of those that cannot."""
        arms: list[Arm] = []
        skipped: list[TimingRecord] = []
        for name in job.runtimes:
            runtime = get_runtime(name)
            available = runtime.available()
            # torch runs the module, so that all opsets are one arm.
            plain = [key for key in job.models if key.form is None]
            for key in plain[-1:] if name == MODULE_RUNTIME else job.models:
                if isinstance(available, Unsupported):
                    skipped.append(skipped_arm(job, name, Outcome.SKIPPED, available.reason))
                    break
                model = self.models.get(key)
                support = runtime.supports(model)
                arm = Arm(
                    name=name if name == MODULE_RUNTIME else f"{name} {model.facts.form} {key.opset}",
                    model=model,
                    runtime=runtime,
                )
                if isinstance(support, Supported):
                    arms.append(arm)
                else:
                    skipped.append(skipped_arm(job, arm.name, Outcome.UNSUPPORTED, support.reason))
        return arms, skipped


def _saturation(job: SaturationJob) -> list[SaturationRecord]:
    if job.head_dim is None:
        return module_check(seed=job.seed, threads=job.threads)
    found = SaturationPlan(
        head_dims=(job.head_dim,),
        kv_seq_lens=job.kv_seq_lens,
        scale_rules=job.scale_rules,
        sigma=job.sigma,
        rows=job.rows,
        draws=job.draws,
        seed=job.seed,
        threads=job.threads,
    )
    return list(saturation(found))


def _cell(job: str, number: int) -> str:
    return cell_id({"job": job, "record": number})


def _check(model: OnnxModel, case: CaseKey, spreads: Sequence[float], seed: int, threads: int) -> CheckOptions:
    return CheckOptions(sizes=sizes_of(model, case), spreads=tuple(spreads), seed=seed, threads=threads)


def _plan(job: TimingJob, calibration: Calibration) -> TimingPlan:
    measure = job.measure
    return TimingPlan(
        looks=(StoppingLook(launches=measure.launches, alpha=_ALPHA),),
        blocks=max(measure.blocks, measure.least_blocks),
        least_blocks=measure.least_blocks,
        visit_seconds=measure.visit_seconds,
        warm_up_seconds=measure.warm_up_seconds,
        budget_seconds=measure.budget_seconds,
        extras=False,
        calibration=calibration,
        seed=job.seed,
    )
