"""Carry out one job that may share the machine: an export, an agreement, a saturation. A failure is a record.

With a broad except, like `runner`: whatever a runtime raises, the other jobs run. Writes no run folder.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Outcome, Record, require_finite
from sdpa_onnx.errors import FolderError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Unsupported, get_runtime
from sdpa_onnx.sweep.job_text import failed_agreement, failed_record, model_words
from sdpa_onnx.sweep.models import ModelCache, sizes_of
from sdpa_onnx.sweep.plan import AgreementJob, ExportJob, SaturationJob, SharedJob
from sdpa_onnx.sweep.suite import CaseKey
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.export.export_target import export_and_prove
from sdpa_onnx.workflows.saturation.measure import SaturationPlan, module_check, saturation
from sdpa_onnx.workflows.verify.site_probes import check_whole
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

__all__ = ["PROVING_RUNTIME", "JobCarrier", "JobResult", "check_options"]

# Graphs up to this size are kept in the run folder; larger ones can be exported again from recipe and seed.
_KEPT_MODEL_BYTES = 2**20
# Oracles of one case: three spreads and about ten probes, the same again for a reference runtime at its own size.
_KEPT_ORACLES = 32
# The runtime that proves dynamic axes: the only one that every installation has.
PROVING_RUNTIME = "ort-cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of a job.

    Args:
        records: Without ids of cells and jobs.
        graph: The exported graph if the run folder keeps it; its record names it by "sha256:" and its hash.
        seconds: Wall time.
    """

    records: tuple[Record, ...]
    graph: bytes = b""
    seconds: float = 0.0


@dataclass(slots=True)
class JobCarrier:
    """Carries out jobs in this process; keeps graphs and oracles for the jobs that follow."""

    models: ModelCache = field(default_factory=ModelCache)
    expectations: ExpectationCache = field(default_factory=lambda: ExpectationCache(keep=_KEPT_ORACLES))

    def result(self, job: SharedJob) -> JobResult:
        """Carry out a job; one that fails gives one failed record.

        Raises:
            FolderError: If the disk is full.
        """
        start = time.monotonic()
        try:
            found = self._carry_out(job)
            for record in found.records:
                require_finite(record)
        except FolderError:
            raise  # nothing can be written
        except Exception as error:  # noqa: BLE001 - a runtime may raise anything; the other jobs must run
            found = JobResult(records=(failed_record(job, error),))
        return JobResult(records=found.records, graph=found.graph, seconds=time.monotonic() - start)

    def _carry_out(self, job: SharedJob) -> JobResult:
        match job:
            case ExportJob():
                return self._export(job)
            case AgreementJob():
                return JobResult(records=tuple(self._agreement(job)))
            case SaturationJob():
                return JobResult(records=tuple(_saturation(job)))

    def _export(self, job: ExportJob) -> JobResult:
        exported = export_and_prove(
            lambda: self.models.get(job.model), target=job.model.target, runtime=PROVING_RUNTIME, seed=job.model.seed
        )
        self.models.share(job.model)
        data = exported.model.to_bytes()
        record: ExportRecord = msgspec.structs.replace(
            exported.record, case=model_words(job.model), model=f"sha256:{hashlib.sha256(data).hexdigest()}"
        )
        return JobResult(records=(record,), graph=data if len(data) <= _KEPT_MODEL_BYTES else b"")

    def _agreement(self, job: AgreementJob) -> list[AgreementRecord]:
        runtime = get_runtime(job.runtime)
        available = runtime.available()
        if isinstance(available, Unsupported):
            return [failed_agreement(job, Outcome.SKIPPED, available.reason)]
        model = self.models.get(job.model)
        check = check_options(model, job.case, job.spreads, job.seed, job.threads)
        run = check_whole if job.probes else check_model
        return run(model, runtime, check, target=job.case.target, expectations=self.expectations)


def _saturation(job: SaturationJob) -> Sequence[Record]:
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


def check_options(model: OnnxModel, case: CaseKey, spreads: Sequence[float], seed: int, threads: int) -> CheckOptions:
    """The check of a case of a suite."""
    return CheckOptions(sizes=sizes_of(model, case), spreads=tuple(spreads), seed=seed, threads=threads)
