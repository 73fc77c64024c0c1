"""Descriptions of jobs for progress, and records of jobs that failed or were skipped."""

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ExportRecord,
    Outcome,
    Record,
    SaturationRecord,
    TimingRecord,
    outcome_of_error,
)
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.graph.attention_node import default_form
from sdpa_onnx.sweep.plan import AgreementJob, ExportJob, Job, JobKind, ModelKey, SaturationJob, TimingJob
from sdpa_onnx.sweep.suite import CaseKey
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME

__all__ = [
    "case_words",
    "elapsed_share",
    "error_words",
    "failed_agreement",
    "failed_record",
    "job_kind",
    "job_seconds",
    "job_words",
    "model_words",
    "skipped_arm",
    "skipped_record",
]


def job_words(job: Job) -> str:
    """Describe a job, for progress."""
    match job:
        case ExportJob():
            return f"export {model_words(job.model)} opset {job.model.opset}"
        case AgreementJob():
            return f"verify {case_words(job.case)} opset {job.model.opset} on {job.runtime}"
        case TimingJob():
            return f"time {case_words(job.case)}"
        case SaturationJob(head_dim=None):
            return "saturation of nn.MultiheadAttention"
        case SaturationJob():
            return f"saturation at d_k {job.head_dim}"


def job_kind(job: Job) -> JobKind:
    """The kind of a job."""
    match job:
        case ExportJob():
            return JobKind.EXPORT
        case AgreementJob():
            return JobKind.AGREEMENT
        case SaturationJob():
            return JobKind.SATURATION
        case TimingJob():
            return JobKind.TIME


# Estimates on two cores of an Intel Xeon (model 167) with nothing else at work; see tests/sweep/test_progress.py.
# An export with its proof; of a module; in a form with blocks, whose proof has long sizes.
_EXPORT_SECONDS, _MODULE_EXPORT_SECONDS, _BLOCKED_EXPORT_SECONDS = 1.6, 2.4, 11.0
# Judging one (query, key) pair of 8 heads at one spread, the oracle shared by the jobs of a case.
_PAIR_SECONDS = 4e-7
# Loading an arm in a launch, besides its warm-up and visits; one call per pair of bare attention and of a module.
_LOAD_SECONDS, _CALL_SECONDS, _MODULE_CALL_SECONDS = 0.15, 2.2e-8, 7e-8
# Share of comparisons that go on after the first look: 4 of 17 in `quick` on that machine.
_OPEN_SHARE = 0.25


def job_seconds(job: Job) -> float:
    """Estimate how long a job takes, in seconds, to show the time left."""
    match job:
        case ExportJob():
            plain = _MODULE_EXPORT_SECONDS if job.model.spec is None else _EXPORT_SECONDS
            return _BLOCKED_EXPORT_SECONDS if job.model.form is Form.BLOCKED else plain
        case AgreementJob():
            return 0.2 + len(job.spreads) * _pairs(job.case) * _PAIR_SECONDS
        case TimingJob():
            return _timing_seconds(job)
        case SaturationJob():
            return 3.2 + 1e-7 * (job.head_dim or 64) * job.draws * sum(job.kv_seq_lens)


def _pairs(case: CaseKey) -> int:
    return case.batch_size * case.q_seq_len * case.kv_seq_len


def _timing_seconds(job: TimingJob) -> float:
    """Launches of all arms and a clone: loading, warm-up, and as many blocks as fit the budget.

    Launches after the first look count by the chance that they are needed.
    """
    # The runtime `torch` runs the module, whatever the graph.
    measure, clone = job.measure, 1
    arms = sum(1 if runtime == MODULE_RUNTIME else len(job.models) for runtime in job.runtimes) + clone
    looks = measure.first_launches or measure.launches
    launches = looks + _OPEN_SHARE * max(measure.launches - looks, 0)
    call = _pairs(job.case) * (_MODULE_CALL_SECONDS if job.case.spec is None else _CALL_SECONDS)
    visit = max(measure.visit_seconds, 2.0 * call)
    before = arms * (measure.warm_up_seconds + _LOAD_SECONDS)
    fitting = (measure.budget_seconds / launches - before) / (arms * visit)
    blocks = min(max(measure.least_blocks, fitting), max(measure.blocks, measure.least_blocks))
    return launches * (before + blocks * arms * visit)


def elapsed_share(job: Job, workers: int) -> float:
    """Estimate by how much a job makes a run longer, in seconds: all but timings run side by side in these workers."""
    return job_seconds(job) if isinstance(job, TimingJob) else job_seconds(job) / max(workers, 1)


def failed_record(job: Job, error: Exception) -> Record:
    """The record of a job that failed."""
    return _empty_record(job, outcome_of_error(error), error_words(error))


def skipped_record(job: Job, reason: str) -> Record:
    """The record of a job that was not run."""
    return _empty_record(job, Outcome.SKIPPED, reason)


def _empty_record(job: Job, outcome: Outcome, reason: str) -> Record:
    """The record of a job without a result."""
    match job:
        case ExportJob():
            return ExportRecord(
                target=job.model.target,
                case=model_words(job.model),
                opset=job.model.opset,
                outcome=outcome,
                reason=reason,
            )
        case AgreementJob():
            return failed_agreement(job, outcome, reason)
        case TimingJob():
            return skipped_arm(job, "", outcome, reason)
        case SaturationJob():
            return SaturationRecord(
                target="sdpa", head_dim=job.head_dim, sigma=job.sigma, outcome=outcome, reason=reason
            )


def error_words(error: Exception) -> str:
    """An error as the reason of a record: our errors by their text, others with their class name."""
    return str(error) if isinstance(error, SdpaOnnxError) else f"{type(error).__name__}: {error}"


def failed_agreement(job: AgreementJob, outcome: Outcome, reason: str) -> AgreementRecord:
    """The record of a case that was not judged."""
    return AgreementRecord(
        target=job.case.target,
        case=case_words(job.case),
        form=job.model.form or default_form(job.model.spec, job.model.opset),
        opset=job.model.opset,
        runtime=job.runtime,
        dtype=job.case.dtype.value,
        outcome=outcome,
        reason=reason,
    )


def skipped_arm(job: TimingJob, arm: str, outcome: Outcome, reason: str) -> TimingRecord:
    """The record of an arm that was not timed."""
    return TimingRecord(
        target=job.case.target,
        case=case_words(job.case),
        arm=arm,
        runtime=arm.partition(" ")[0],
        outcome=outcome,
        reason=reason,
    )


def model_words(key: ModelKey) -> str:
    """Describe a graph."""
    return key.target if key.spec is None else f"{key.target} d_k {key.spec.head_dim}"


def case_words(case: CaseKey) -> str:
    """Describe a case."""
    causal = " causal" if case.spec is not None and case.spec.is_causal else ""
    width = f" d_k {case.spec.head_dim}" if case.spec is not None else ""
    lengths = f"{case.q_seq_len}" if case.q_seq_len == case.kv_seq_len else f"{case.q_seq_len}x{case.kv_seq_len}"
    return f"{case.target}{causal}{width} batch {case.batch_size} length {lengths}"
