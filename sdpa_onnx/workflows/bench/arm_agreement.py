"""Judge the outputs of every timed arm at the timed sizes against the float64 oracle.

Runs each arm once as it will be timed (runtime, settings, threads, environment), with the values around its attentions
as additional outputs. Times nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sdpa_onnx.core.records.records import AgreementRecord, Verdict
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.files.held_folder import HeldFolder
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.pool import WorkerFactory, WorkerPool
from sdpa_onnx.measure.what_ran import worker_report
from sdpa_onnx.runtimes.array_files import read_arrays
from sdpa_onnx.runtimes.timing_worker import TimingWorker
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import GIVEN, Feeds, InputStep, draw_feeds
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.check.run_context import RunContext
from sdpa_onnx.workflows.timing.job_folder import Arm, JobFolder
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, judge_outputs

__all__ = ["ArmAgreement", "judge_numbers", "step_of"]

_NOT_READ = "no attention of it could be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmAgreement:
    """The judgements of the outputs of all arms.

    Args:
        records: Every judgement.
        warnings: By arm with wrong outputs, the sentence for its record.
        unjudged: By arm that was not judged, the reason as a clause.
        outputs: By arm that ran, its outputs by name, with the values around its attentions.
    """

    records: tuple[AgreementRecord, ...] = ()
    warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unjudged: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Feeds] = field(default_factory=dict)


def judge_numbers(
    arms: Sequence[Arm],
    check: CheckOptions,
    *,
    target: str,
    patience_seconds: float,
    start: WorkerFactory = TimingWorker,
    step: InputStep | None = None,
) -> ArmAgreement:
    """Judge the outputs of arms.

    An arm that does not run is left to the timing, which reports it.

    Args:
        arms: All arms of a comparison.
        check: Sizes and inputs that will be timed; its first spread is used.
        target: Name for the records.
        patience_seconds: Longest wait for one answer of a runtime.
        start: Starts a worker process; a parameter for tests.
        step: The inputs of all arms; None = drawn for each arm.
    """
    records: list[AgreementRecord] = []
    warnings: dict[str, tuple[str, ...]] = {}
    unjudged: dict[str, str] = {}
    outputs: dict[str, Feeds] = {}
    expectations = ExpectationCache()
    with WorkerPool(fresh=False, patience_seconds=patience_seconds, start=start) as pool, JobFolder() as folder:
        for arm in arms:
            model = with_lifted_sites(arm.model).model
            if not model.sites and step is None:
                unjudged[arm.name] = _NOT_READ
                continue
            try:
                own = step or step_of(model, check)
                checked, outputs[arm.name] = _ran(arm, model, own, pool, folder, target=target)
                found = list(judge_outputs(checked, own, outputs[arm.name], expectations)) if model.sites else []
            except (SessionError, ModelError) as error:
                unjudged[arm.name] = str(error)
                continue
            records += found
            if bad := _warnings(found):
                warnings[arm.name] = bad
            elif (reason := _unjudged_reason(found) if model.sites else _NOT_READ) is not None:
                unjudged[arm.name] = reason
    return ArmAgreement(records=tuple(records), warnings=warnings, unjudged=unjudged, outputs=outputs)


def _ran(
    arm: Arm, model: OnnxModel, step: InputStep, pool: WorkerPool, folder: JobFolder, *, target: str
) -> tuple[RunContext, Feeds]:
    """What ran, and the outputs."""
    tapped = model.tapped()
    job = folder.job(arm, step.feeds, threads=step.check.threads, model=tapped)
    with HeldFolder("outputs") as outputs_folder:
        with pool.lend(job) as worker:
            worker.visit(1)  # some runtimes have outputs and choose their kernels only after a run
            ran = worker_report(worker, tapped, job.runtime, threads=job.threads)
            worker.outputs(Path(outputs_folder.name))
        outputs = read_arrays(Path(outputs_folder.name))
    checked = RunContext(
        model=model, runtime=job.runtime, ran=ran, check=step.check, step=step.word, target=f"{target}, {arm.name}"
    )
    return checked, outputs


def step_of(model: OnnxModel, check: CheckOptions) -> InputStep:
    """The given inputs of a check, or inputs drawn for a model."""
    if check.inputs is not None:
        return InputStep(word=GIVEN, spread=None, check=check, feeds=dict(check.inputs))
    spread = check.spreads[0]
    feeds: Feeds = draw_feeds(model, check.sizes, spread=spread, seed=check.seed)
    return InputStep(
        word=f"spread {spread:g}", spread=spread if model.is_bare_attention else -1.0, check=check, feeds=feeds
    )


def _unjudged_reason(found: Sequence[AgreementRecord]) -> str | None:
    """Why a part of an arm was not judged, or None if all parts were."""
    return next((record.reason for record in found if record.verdict is None), None)


def _warnings(found: Sequence[AgreementRecord]) -> tuple[str, ...]:
    """One sentence for the worst judgement that fails."""
    bad = [record for record in found if record.verdict is not None and not record.verdict.is_right]
    worst = next((record for record in bad if record.verdict is Verdict.WRONG), next(iter(bad), None))
    if worst is None:
        return ()
    return (f"Numbers {worst.verdict}: {worst.diagnosis}",)
