"""What was asked of a model and what ran, and the agreement records that come of it."""

import math
from dataclasses import dataclass, field

import msgspec

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Sizes, Subject, Verdict
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import RanReport
from sdpa_onnx.runtimes.torch_compiled import TORCH_COMPILE
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import bare_case

__all__ = [
    "MODULE_RUNTIME",
    "NamedCase",
    "RunContext",
    "end_sizes",
    "failed_record",
    "named_case",
    "runs_module",
    "site_sizes",
    "unsupported_record",
    "with_figures",
    "with_ran",
]

# This runtime runs the module that a graph came from: it has no form and no opset.
MODULE_RUNTIME = "torch"


def runs_module(runtime: str) -> bool:
    """Whether a runtime runs the PyTorch module of a model and not its graph."""
    return runtime in (MODULE_RUNTIME, TORCH_COMPILE)


_NO_NUMBER = "Nothing could be judged: the oracle itself has no finite number here."
_EMPTY = "Nothing could be judged: the output has no elements."
_ONLY_OUTPUTS = "No attention inside was judged: only the outputs were compared."
_NOTHING_FOUND = "No attention was found, neither an operator nor softmax(QK^T) V: only the outputs were compared."
# Outputs that a warning names.
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A check on one runtime, with what really ran; `step` names the inputs, such as "spread 1"."""

    model: OnnxModel
    runtime: str
    ran: RanReport
    check: CheckOptions
    step: str
    target: str
    # Of the model, the same on every record: to find them, all attentions are looked at.
    _unjudged: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_unjudged", (*_untapped(self.model), *_unjudged(self.model)))

    def record(
        self,
        agreement: Agreement,
        *,
        spread: float | None,
        subject: Subject = Subject.ATTENTION,
        site: str,
        sizes: Sizes,
        is_empty: bool = False,
        scale_note: str = "",
    ) -> AgreementRecord:
        """Write one judgement down.

        Args:
            agreement: What the judge found.
            spread: Standard deviation of the logits as measured, None if unknown.
            subject: What is judged.
            site: Its name.
            sizes: Sizes it was judged at.
            is_empty: Whether there is no element to judge.
            scale_note: Its scale if it is unusual.
        """
        disagrees = not agreement.verdict.is_right
        blind = not disagrees and (
            is_empty or (agreement.judged_rows > 0 and agreement.total > 0 and not agreement.judged)
        )
        outcome = Outcome.DISAGREES if disagrees else Outcome.FAILED if blind else Outcome.OK
        reason = (_EMPTY if is_empty else _NO_NUMBER) if blind else ""
        case = named_case(self.model, self.check, self.target)
        plain = AgreementRecord(
            target=self.target,
            case=case.name,
            spec=case.spec,
            past_seq_len=case.past_seq_len,
            form="" if runs_module(self.runtime) else self.model.facts.form.value,
            opset=None if runs_module(self.runtime) else self.model.opset,
            runtime=self.runtime,
            outcome=outcome,
            reason=agreement.diagnosis if disagrees else reason,
            warnings=(*self.ran.warnings, *agreement.warnings, *self._unjudged),
            subject=subject,
            site=site,
            scale_note=scale_note,
            sizes=sizes,
            axes=dict(self.check.sizes),
            dtype=self.model.facts.dtype.value,
            precision=self.ran.precision,
            diagnosis=reason if blind else agreement.diagnosis,
            inputs=self.step,
            spread=spread,
            seed=self.check.seed,
        )
        return with_ran(plain if blind else with_figures(plain, agreement), self.ran)

    def skipped(
        self, reason: str, *, spread: float | None, subject: Subject, site: str, sizes: Sizes
    ) -> AgreementRecord:
        """Write down what ran and cannot be judged, and why; it is no finding."""
        nothing = Agreement(verdict=Verdict.OK, diagnosis="")
        record = self.record(nothing, spread=spread, subject=subject, site=site, sizes=sizes)
        return msgspec.structs.replace(record, outcome=Outcome.SKIPPED, verdict=None, reason=reason)

    def not_compared(self, reason: str, *, output: str) -> AgreementRecord:
        """Write down an output whose module fails: nothing accuses the runtime, and nothing was judged."""
        sizes = end_sizes(self.check)
        record = self.skipped(reason, spread=None, subject=Subject.OUTPUT, site=output, sizes=sizes)
        return msgspec.structs.replace(record, outcome=Outcome.FAILED)


def _untapped(model: OnnxModel) -> tuple[str, ...]:
    """Why attentions inside were not judged; nothing where all were."""
    if model.sites or model.unread is None:
        return model.unread or ()
    return (*model.unread, _ONLY_OUTPUTS if model.unread else _NOTHING_FOUND)


def _unjudged(model: OnnxModel) -> tuple[str, ...]:
    """One sentence for each output of an attention, and one for all outputs of the graph, that nothing judges."""
    unjudged = model.facts.unjudged
    if not model.sites or model.source is not None:  # a module judges every output of the graph
        return tuple(unjudged.values())
    judged = {name for site in model.sites for name in site.outputs.values()} | set(unjudged)
    ends = [f"'{name}'" for name in model.output_names if name not in judged]
    if not ends:
        return tuple(unjudged.values())
    more = f" and {len(ends) - _NAMED} more" if len(ends) > _NAMED else ""
    which, them = ("output", "it") if len(ends) == 1 else ("outputs", "them")
    judge = "`verify --against FILE.py:Class` judges"
    return (
        *unjudged.values(),
        f"Not judged: {which} {', '.join(ends[:_NAMED])}{more}, not from an attention; {judge} {them} too.",
    )


def with_figures(record: AgreementRecord, agreement: Agreement) -> AgreementRecord:
    """The record with the judge's word and figures; the sentence is the caller's."""
    proven, has_rows = agreement.scale_error_proven, agreement.total_rows > 0
    return msgspec.structs.replace(
        record,
        verdict=agreement.verdict,
        max_abs_error=agreement.max_abs_error,
        max_bound_ratio=agreement.max_bound_ratio,
        not_finite=agreement.not_finite if agreement.total else None,
        max_relative_error=agreement.max_relative_error,
        max_ulp_error=agreement.max_ulp_error,
        cosine=agreement.cosine,
        judged_rows=agreement.judged_rows if has_rows else None,
        total_rows=agreement.total_rows if has_rows else None,
        scale_error_proven=proven if math.isfinite(proven) else None,
        kappa=agreement.kappa,
        max_z=agreement.max_z,
    )


def with_ran(record: AgreementRecord, ran: RanReport) -> AgreementRecord:
    """The record with what really ran."""
    return msgspec.structs.replace(
        record,
        ran=dict(ran.node_counts),
        expanded=dict(ran.expanded),
        fused=dict(ran.fused),
        providers=dict(ran.providers),
    )


def unsupported_record(
    model: OnnxModel, runtime: str, check: CheckOptions, *, target: str, reason: str
) -> AgreementRecord:
    """The record of a runtime that does not take the model."""
    return _not_judged(model, runtime, check, target, Outcome.UNSUPPORTED, reason)


def failed_record(
    model: OnnxModel,
    runtime: str,
    check: CheckOptions,
    *,
    target: str,
    reason: str,
    outcome: Outcome = Outcome.FAILED,
) -> AgreementRecord:
    """The record of a runtime that failed on the model, or gave no answer in time (outcome TIMED_OUT)."""
    return _not_judged(model, runtime, check, target, outcome, reason)


def _not_judged(
    model: OnnxModel, runtime: str, check: CheckOptions, target: str, outcome: Outcome, reason: str
) -> AgreementRecord:
    case = named_case(model, check, target)
    return AgreementRecord(
        target=target,
        case=case.name,
        spec=case.spec,
        past_seq_len=case.past_seq_len,
        form=model.facts.form.value,
        opset=model.opset,
        runtime=runtime,
        outcome=outcome,
        reason=reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCase:
    """A case as records name it, with its spec and the keys in its cache where it is one attention by itself."""

    name: str
    spec: AttentionSpec | None = None
    past_seq_len: int | None = None


def named_case(model: OnnxModel, check: CheckOptions, target: str) -> NamedCase:
    """Case id of a bare attention, else the target with its sizes."""
    case = bare_case(model, check.sizes) if check.inputs is None else None
    if case is not None:
        past = case.past_seq_len if case.spec.has_past else None
        return NamedCase(name=case.case_id, spec=case.spec, past_seq_len=past)
    lengths = [axis for axis in check.sizes if not axis.startswith("batch")]
    short = {axis: "b" for axis in check.sizes if axis.startswith("batch")} | dict(
        zip(lengths, ("q", "kv"), strict=False)
    )
    sizes = (f"{short.get(axis, axis)}{size}" for axis, size in check.sizes.items())
    return NamedCase(name="_".join([target or "model", *sizes]))


def site_sizes(site: AttentionSite, inputs: AttentionInputs) -> Sizes:
    """Sizes of one attention, read off its own arrays."""
    axis = 2 if inputs.query.ndim == 4 else 1
    return Sizes(
        batch_size=inputs.query.shape[0],
        q_seq_len=inputs.query.shape[axis],
        kv_seq_len=inputs.key.shape[axis],
        head_dim=site.spec.head_dim,
        q_num_heads=site.spec.q_num_heads,
    )


def end_sizes(check: CheckOptions) -> Sizes:
    """Sizes of a whole module, as far as its axes are named."""
    queries = check.sizes.get("q_seq_len")
    return Sizes(
        batch_size=check.sizes.get("batch_size"),
        q_seq_len=queries,
        kv_seq_len=check.sizes.get("kv_seq_len", queries),
    )
