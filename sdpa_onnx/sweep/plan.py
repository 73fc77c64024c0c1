"""The jobs of a suite: what is exported, judged and timed, each with a stable id.

The id of a job is the hash of everything that determines its result, so that runs can be resumed and compared. Runs
nothing.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, ScaleRule
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.sweep.suite import CaseKey, Suite, TimingBudget, cases
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME

__all__ = [
    "AgreementJob",
    "ExportJob",
    "Job",
    "JobKind",
    "ModelKey",
    "SaturationJob",
    "SharedJob",
    "TimingJob",
    "cell_id",
    "job_id",
    "plan",
]


class JobKind(StrEnum):
    """What a job does."""

    EXPORT = "export"
    AGREEMENT = "agreement"
    SATURATION = "saturation"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKey:
    """One exported graph, the same for every size; without a form, it has the default form of its opset."""

    target: str
    spec: AttentionSpec | None
    dtype: Dtype
    opset: int
    seed: int
    form: Form | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """Export a graph and prove its dynamic axes."""

    model: ModelKey


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementJob:
    """Judge one graph on one runtime at one size, over all spreads, and with the structural probes if `probes`."""

    model: ModelKey
    case: CaseKey
    runtime: str
    spreads: tuple[float, ...]
    probes: bool
    seed: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingJob:
    """Time every graph of a case on every timed runtime, interleaved."""

    models: tuple[ModelKey, ...]
    case: CaseKey
    runtimes: tuple[str, ...]
    baseline: str
    measure: TimingBudget
    seed: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationJob:
    """Measure the effect of every scale rule at one width, over all lengths.

    Without a width, torch.nn.MultiheadAttention is measured with its initial weights.
    """

    head_dim: int | None
    kv_seq_lens: tuple[int, ...]
    scale_rules: tuple[ScaleRule, ...]
    sigma: float
    rows: int
    draws: int
    seed: int
    threads: int


# Jobs that may share the machine; a timing must not.
SharedJob = ExportJob | AgreementJob | SaturationJob
Job = SharedJob | TimingJob


def plan(suite: Suite) -> list[Job]:
    """All jobs of a suite: exports first, then agreement and timing case by case.

    Agreement comes before timing, because the time of a wrong graph means nothing.
    """
    found = cases(suite)
    models = dict.fromkeys(key for case in found for key in _model_keys(case, suite))
    jobs: list[Job] = [ExportJob(model=model) for model in models]
    probed: dict[tuple[ModelKey, str], CaseKey] = {}
    for case in found:
        jobs += _agreement_jobs(case, suite, probed)
        if suite.timing:
            jobs.append(_timing_job(case, suite))
    # Cases of several lengths have one reduced case, which a reference runtime judges once.
    return [*dict.fromkeys(jobs), *_saturation_jobs(suite)]


def job_id(job: Job) -> str:
    """sha256 of the job's canonical JSON, hex."""
    return cell_id({"kind": type(job).__name__, "job": _without_later_fields(msgspec.to_builtins(job))})


_LATER_FIELDS = ("form", "forms", "first_launches")


def _without_later_fields(parts: object) -> object:
    """Drop empty fields that earlier versions did not have, so that a job without them keeps its id."""
    if isinstance(parts, dict):
        kept = {name: value for name, value in parts.items() if name not in _LATER_FIELDS or value}
        return {name: _without_later_fields(value) for name, value in kept.items()}
    return [_without_later_fields(part) for part in parts] if isinstance(parts, list | tuple) else parts


def cell_id(parts: object) -> str:
    """sha256 of canonical JSON (sorted keys), hex."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def _model_key(case: CaseKey, opset: int, suite: Suite) -> ModelKey:
    return ModelKey(target=case.target, spec=case.spec, dtype=case.dtype, opset=opset, seed=suite.seed)


def _model_keys(case: CaseKey, suite: Suite) -> list[ModelKey]:
    """Every graph of a case: one per opset, then the further forms at the newest opset."""
    plain = [_model_key(case, opset, suite) for opset in suite.opsets]
    return [*plain, *(replace(plain[-1], form=form) for form in case.forms)]


def _agreement_jobs(case: CaseKey, suite: Suite, probed: dict[tuple[ModelKey, str], CaseKey]) -> list[Job]:
    """Every graph on every runtime; torch runs the module itself, only once for all opsets.

    Args:
        case: The case.
        suite: The suite.
        probed: The case at which a graph is probed on a runtime, its first; this function adds to it. Once is enough,
            because the structure does not depend on the size.
    """
    jobs: list[Job] = []
    for opset in suite.opsets:
        for runtime in suite.agreement:
            once = runtime == MODULE_RUNTIME
            if once and (opset != suite.opsets[-1] or case.spec is None):
                continue  # the attentions of a module cannot be tapped in torch; torch is the yardstick of its output
            jobs.append(_agreement_job(case, suite, _model_key(case, opset, suite), runtime, probed))
    timed = [runtime for runtime in suite.agreement if runtime in suite.timing and runtime != MODULE_RUNTIME]
    others = _model_keys(case, suite)[len(suite.opsets) :]
    jobs += [_agreement_job(case, suite, model, runtime, probed) for model in others for runtime in timed]
    return jobs


def _agreement_job(
    case: CaseKey, suite: Suite, model: ModelKey, runtime: str, probed: dict[tuple[ModelKey, str], CaseKey]
) -> AgreementJob:
    case = _reduced(case, suite, runtime)
    has_probes = suite.probes and probed.setdefault((model, runtime), case) == case
    return AgreementJob(
        model=model,
        case=case,
        runtime=runtime,
        spreads=tuple(suite.spreads),
        probes=has_probes,
        seed=suite.seed,
        threads=suite.threads,
    )


def _reduced(case: CaseKey, suite: Suite, runtime: str) -> CaseKey:
    """The case that a runtime judges: a runtime for agreement only judges a fraction of long ones, of equal structure.

    All lengths are divided by one number, so that equal ones stay equal and a longer one stays longer.
    """
    longest = max(case.q_seq_len, case.kv_seq_len, case.past_seq_len)
    limit = suite.reference_seq_len
    if limit is None or longest <= limit or get_runtime(runtime).measures_time:
        return case
    divisor = math.ceil(longest / limit)
    return replace(
        case,
        q_seq_len=max(case.q_seq_len // divisor, 1),
        kv_seq_len=max(case.kv_seq_len // divisor, 1),
        past_seq_len=math.ceil(case.past_seq_len / divisor),
    )


def _saturation_jobs(suite: Suite) -> list[Job]:
    """One job per width, and one for the initial weights of the module."""
    if suite.saturation is None:
        return []
    found = suite.saturation
    widths: list[int | None] = [*found.head_dim, *([None] if found.module else [])]
    return [
        SaturationJob(
            head_dim=width,
            kv_seq_lens=found.kv_seq_len,
            scale_rules=found.scale_rule,
            sigma=found.sigma,
            rows=found.rows,
            draws=found.draws,
            seed=suite.seed,
            threads=suite.threads,
        )
        for width in widths
    ]


def _timing_job(case: CaseKey, suite: Suite) -> TimingJob:
    return TimingJob(
        models=tuple(_model_keys(case, suite)),
        case=case,
        runtimes=tuple(suite.timing),
        baseline=suite.baseline,
        measure=suite.measure,
        seed=suite.seed,
        threads=suite.threads,
    )
