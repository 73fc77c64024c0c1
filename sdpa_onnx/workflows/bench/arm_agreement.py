"""Judge the outputs of every timed arm at the timed sizes against the float64 oracle.

Runs each arm as it will be timed (runtime, settings, threads, environment), with the values around its attentions as
additional outputs and without them, see `workflows.verify.untapped`. Times nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject, Verdict
from sdpa_onnx.errors import ModelError, NoAnswerError, SessionError
from sdpa_onnx.graph.files.held_folder import HeldFolder
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.opened_bodies import OpenedBody, opened_bodies
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.pool import WorkerFactory, WorkerPool
from sdpa_onnx.measure.what_ran import worker_report
from sdpa_onnx.runtimes.array_files import read_arrays
from sdpa_onnx.runtimes.base import LoadOptions, RanReport
from sdpa_onnx.runtimes.timing_worker import TimingWorker
from sdpa_onnx.runtimes.workers import WorkerNotStartedError
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import GIVEN, Feeds, InputStep, draw_feeds
from sdpa_onnx.workflows.check.file_feeds import named_axes
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.check.run_context import RunContext, runs_module
from sdpa_onnx.workflows.timing.job_folder import Arm, JobFolder
from sdpa_onnx.workflows.verify.axis_links import complete_sizes
from sdpa_onnx.workflows.verify.verify_file import contradiction_records
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, judge_outputs, tapped_run, untapped_check

__all__ = ["ArmAgreement", "judge_numbers", "step_of"]

# Settings by registered runtime that turn off its graph optimisation, as `LoadOptions.optimise` does.
_UNOPTIMISED = {name: {"graph_optimization_level": "ORT_DISABLE_ALL"} for name in ("ort-cpu", "ort-cuda")}
_NOT_READ = "no attention of it could be read"
_NO_TIME = "the time limit was reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmAgreement:
    """The judgements of the outputs of all arms.

    Args:
        records: Every judgement.
        warnings: By arm with wrong outputs, the sentence for its record.
        unjudged: By arm that was not judged, the reason as a clause.
        outputs: By arm that ran, its outputs by name, with the values around its attentions.
        first_seconds: By arm that ran, the first run after it was loaded; `torch.compile` compiles in it.
        module_error: What the module raised at these sizes, so that no output was compared with it; "" if it ran.
        late: Arms that had no answer when the time limit of the command came.
    """

    records: tuple[AgreementRecord, ...] = ()
    warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unjudged: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Feeds] = field(default_factory=dict)
    first_seconds: Mapping[str, float] = field(default_factory=dict)
    module_error: str = ""
    late: frozenset[str] = frozenset()


def judge_numbers(
    arms: Sequence[Arm],
    check: CheckOptions,
    *,
    target: str,
    patience_seconds: float,
    start: WorkerFactory = TimingWorker,
    step: InputStep | None = None,
    folder: JobFolder | None = None,
    deadline: Deadline | None = None,
) -> ArmAgreement:
    """Judge the outputs of arms; where an arm has a PyTorch module, its outputs are compared with that in float64.

    An arm that does not run is left to the timing, which reports it.

    Args:
        arms: All arms of a comparison.
        check: Sizes and inputs that will be timed; its first spread is used.
        target: Name for the records.
        patience_seconds: Longest wait for one answer of a runtime.
        start: Starts a worker process; a parameter for tests.
        step: The inputs of all arms; None = drawn for each arm.
        folder: Where models and inputs are written; None = a new one.
        deadline: When judging ends: an arm that it does not reach, or takes more than its share of the time, is not
            judged. Its workers are started with it.
    """
    with ExitStack() as stack:
        judge = _Judge(
            pool=stack.enter_context(WorkerPool(fresh=False, patience_seconds=patience_seconds, start=start)),
            folder=folder or stack.enter_context(JobFolder()),
            check=check,
            target=target,
            step=step,
            limit=deadline or Deadline(),
        )
        for number, arm in enumerate(arms):
            judge.add(arm, patience_seconds=judge.limit.turn(len(arms) - number))
    return judge.judged


@dataclass(slots=True, kw_only=True)
class _Judge:
    """What was found of the arms so far; for the arguments see `judge_numbers`."""

    pool: WorkerPool
    folder: JobFolder
    check: CheckOptions
    target: str
    step: InputStep | None
    limit: Deadline
    expectations: ExpectationCache = field(default_factory=ExpectationCache)
    records: list[AgreementRecord] = field(default_factory=list)
    warnings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unjudged: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, Feeds] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    module_error: str = ""
    late: set[str] = field(default_factory=set)

    def add(self, arm: Arm, *, patience_seconds: float) -> None:
        """Run and judge one arm; with a time limit, no arm takes the time of those that follow."""
        lifted = arm.lifted or with_lifted_sites(arm.model)
        truth = self.expectations.truth(lifted.model)
        has_module = truth is not None
        # A module has no values around its attentions.
        model = replace(lifted.model, sites=()) if has_module and runs_module(arm.runtime.name) else lifted.model
        bodies = [] if has_module else list(opened_bodies(model))
        is_read = bool(model.sites) or has_module or bool(bodies)
        if (self.step is None and not is_read) or self.limit.seconds_left <= 0.0:
            self.unjudged[arm.name] = _NO_TIME if is_read else _NOT_READ
            return
        patience = None if math.isinf(patience_seconds) else patience_seconds
        place = _ArmPlace(
            arm=arm, pool=self.pool, folder=self.folder, first_seconds=self.first, patience_seconds=patience
        )
        try:
            step = self.step or step_of(model, self.check)
            found, self.outputs[arm.name] = _judged(place, model, step, self.expectations, target=self.target)
            found += [one for body in bodies for one in self._inside(place, body)]
        except (SessionError, ModelError) as error:
            is_late = self.limit.is_past and isinstance(error, WorkerNotStartedError)
            is_late = is_late or (patience is not None and isinstance(error, NoAnswerError))
            self.late |= {arm.name} if is_late else set()
            self.unjudged[arm.name] = _NO_TIME if is_late else str(error)
            return
        self.module_error = self.module_error or ("" if truth is None else truth.raised)
        found = [*contradiction_records(lifted, arm.runtime.name, f"{self.target}, {arm.name}"), *found]
        self.records += found
        if bad := _warnings(found):
            self.warnings[arm.name] = bad
        elif (reason := _unjudged_reason(found) if is_read else _NOT_READ) is not None:
            self.unjudged[arm.name] = reason

    def _inside(self, place: "_ArmPlace", body: OpenedBody) -> Iterator[AgreementRecord]:
        """Judge the attentions of a body in the body opened as a model, with inputs of its own."""
        part = named_axes(body.model)
        own = {axis: size for axis, size in self.check.sizes.items() if axis in part.facts.axes}
        check = replace(self.check, inputs=None, sizes=complete_sizes(part.facts, {}, own))
        found, _ = _judged(place, part, step_of(part, check), self.expectations, target=self.target)
        yield from found

    @property
    def judged(self) -> ArmAgreement:
        return ArmAgreement(
            records=tuple(self.records),
            warnings=self.warnings,
            unjudged=self.unjudged,
            outputs=self.outputs,
            first_seconds=self.first,
            module_error=self.module_error,
            late=frozenset(self.late),
        )


def _judged(
    place: "_ArmPlace", model: OnnxModel, step: InputStep, expectations: ExpectationCache, *, target: str
) -> tuple[list[AgreementRecord], Feeds]:
    """The judgements of an arm, and the outputs of its tapped model.

    Raises:
        SessionError: If it fails, with the taps or without.
    """
    tapped, arm = model.tapped(), place.arm
    with place.load(tapped, LoadOptions(threads=step.check.threads)) as loaded:
        outputs, ran = loaded.run(step.feeds), loaded.ran()
    checked = RunContext(
        model=model, runtime=arm.runtime.name, ran=ran, check=step.check, step=step.word, target=f"{target}, {arm.name}"
    )
    if not model.sites and expectations.truth(model) is None:
        return [], outputs
    if tapped is model:
        return list(judge_outputs(checked, step, outputs, expectations)), outputs
    run = tapped_run(checked, step, outputs, expectations)
    return list(untapped_check(model, place.load, expectations).records([run])), outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArmPlace:
    """Where the models of an arm run: worker processes with its settings."""

    arm: Arm
    pool: WorkerPool
    folder: JobFolder
    first_seconds: dict[str, float]
    patience_seconds: float | None = None

    @contextmanager
    def load(self, model: OnnxModel, options: LoadOptions) -> Iterator["_ArmModel"]:
        """A model to run as this arm; without optimisation where its runtime has a setting for it."""
        changed = {} if options.optimise else _UNOPTIMISED.get(self.arm.runtime.name, {})
        arm = replace(self.arm, options={**self.arm.options, **changed})
        yield _ArmModel(place=replace(self, arm=arm), model=model, threads=options.threads)


@dataclass(slots=True, kw_only=True)
class _ArmModel:
    """One model of an arm; a worker holds it during a run only."""

    place: _ArmPlace
    model: OnnxModel
    threads: int
    _ran: list[RanReport] = field(default_factory=list, init=False)

    def run(self, inputs: Feeds) -> Feeds:
        """Arrays by output name.

        Raises:
            SessionError: If the worker fails.
        """
        job = self.place.folder.job(self.place.arm, inputs, threads=self.threads, model=self.model)
        with HeldFolder("outputs") as outputs_folder:
            with self.place.pool.lend(job, patience_seconds=self.place.patience_seconds) as (worker, loaded):
                self.place.first_seconds.setdefault(self.place.arm.name, loaded.first_seconds)
                worker.visit(1)  # some runtimes have outputs and choose their kernels only after a run
                self._ran.append(worker_report(worker, self.model, job.runtime, threads=job.threads))
                worker.outputs(Path(outputs_folder.name))
            return read_arrays(Path(outputs_folder.name))

    def ran(self) -> RanReport:
        """What ran in the last run."""
        return self._ran[-1]


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
    """Why a part of an arm was not judged, or None if all parts were; outputs decide where an attention is skipped."""
    by_outputs = any(record.subject is Subject.OUTPUT for record in found)
    missing = (record for record in found if record.verdict is None)
    return next((one.reason for one in missing if not (by_outputs and _is_inside(one))), None)


def _is_inside(record: AgreementRecord) -> bool:
    return record.subject is Subject.ATTENTION and record.outcome is Outcome.SKIPPED


def _warnings(found: Sequence[AgreementRecord]) -> tuple[str, ...]:
    """One sentence for the worst judgement that fails."""
    bad = [record for record in found if record.verdict is not None and not record.verdict.is_right]
    worst = next((record for record in bad if record.verdict is Verdict.WRONG), next(iter(bad), None))
    if worst is None:
        return ()
    return (f"Numbers {worst.verdict}: {worst.diagnosis}",)
