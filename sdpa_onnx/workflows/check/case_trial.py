"""One attention case run on one runtime and judged: the trial that fuzzing and reducing repeat.

Builds the one-attention model, keeps sessions of equal graphs open, and returns every
outcome as a value. Cases are chosen by `reduce` and by the fuzzer.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.mask_rule import MaskRule, mask_rule_of
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.probes import PROBES
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec
from sdpa_onnx.core.judge.agreement import Agreement, expect
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.judge.cache_agreement import CacheRule
from sdpa_onnx.core.records.records import Conformity, Verdict
from sdpa_onnx.errors import CaseError, NoAnswerError, SessionError
from sdpa_onnx.graph.attention_node import add_scores_output, build_attention_model, minimum_opset
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, Unsupported
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError

__all__ = [
    "QK_OUTPUT",
    "CaseTrial",
    "Form",
    "LoadFailure",
    "Sessions",
    "TrialResult",
    "failure_of",
    "judge_attention",
    "not_taken",
    "run_case",
    "trial_model",
]

Array = NDArray[np.generic]
Form = Literal["attention", "decomposed"]

# Name of the operator's fourth output.
QK_OUTPUT = OutputRole.QK.value
_ALL_COPIED = CacheRule()
# Sessions kept open: a fuzzer repeats few graphs, and each session is small.
_KEPT_SESSIONS = 32
# Axes of a mask that has another shape than the exporter's (batch_size, 1, q_seq_len, total_seq_len).
_MASK_AXES = ("mask_batch", "mask_heads", "mask_queries", "mask_keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTrial:
    """One attention to run and judge.

    Args:
        case: What is computed, with sizes and type.
        source: How the inputs are drawn: a logit spread, or the name of a probe.
        seed: Seed of the inputs.
        inputs: Given arrays, instead of drawn ones; a mask may have any shape that broadcasts.
        form: One Attention node, or the exporter's formula.
        opset: None = the lowest that can express the spec.
        threads: Threads inside one operator.
        graph: A graph of one bare attention to run instead of a built one; needs given inputs.
        qk_mode: The stage of the scores that the fourth output returns; None = without that output.
    """

    case: AttentionCase
    source: float | str = 1.0
    seed: int = 0
    inputs: AttentionInputs | None = None
    form: Form = "attention"
    opset: int | None = None
    threads: int = 1
    graph: OnnxModel | None = None
    qk_mode: QkOutputMode | None = None

    @property
    def used_opset(self) -> int:
        """Operator-set version of the model that runs."""
        if self.graph is not None:
            return self.graph.opset
        return self.least_opset if self.opset is None else self.opset

    @property
    def least_opset(self) -> int:
        """Lowest opset whose operator accepts the spec and these arrays.

        Source: ONNX Attention, opset 24, from which a mask may be shorter than the keys, and 1 means so.
        """
        mask = None if self.inputs is None else self.inputs.attn_mask
        is_short = mask is not None and mask.ndim > 0 and mask.shape[-1] < self.case.total_seq_len
        return max(minimum_opset(self.case.spec), 24 if is_short else 0)

    def feeds(self, inputs: AttentionInputs) -> dict[str, Array]:
        """The arrays by the names of the graph's inputs."""
        if self.graph is None:
            return inputs.onnx_feeds()
        arrays = inputs.named()
        return {name: arrays[field] for field, name in self.graph.sites[0].inputs.items()}

    def by_role(self, outputs: Mapping[str, Array]) -> dict[OutputRole, Array]:
        """The outputs of the graph, by what they are."""
        if self.graph is None:
            return {role: outputs[role] for role in OutputRole if role in outputs}
        return self.graph.sites[0].outputs_in(outputs)

    @property
    def qk_modes(self) -> tuple[QkOutputMode, ...]:
        """Stages of the scores that the fourth output may hold."""
        if self.graph is not None:
            return self.graph.sites[0].scores_modes
        return (self.qk_mode or QkOutputMode.SCORES,)

    @property
    def mask_rule(self) -> MaskRule:
        """What a mask means in this trial whose last axis is 1."""
        if self.graph is not None:
            return self.graph.sites[0].mask_rule
        return mask_rule_of(self.used_opset) if self.form == "attention" else MaskRule.BROADCAST

    def draw(self) -> AttentionInputs:
        """The arrays that the runtime gets.

        Raises:
            CaseError: If there is no probe of that name.
        """
        if self.inputs is not None:
            return self.inputs
        if isinstance(self.source, str):
            probe = next((probe for probe in PROBES if probe.name == self.source), None)
            if probe is None:
                known = ", ".join(probe.name for probe in PROBES)
                raise CaseError(f"There is no probe '{self.source}'.", hint=f"Known: {known}.")
            return probe.draw(self.case, self.seed)
        return draw_inputs(self.case, spread=self.source, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The result of a trial.

    Args:
        kind: RIGHT, WRONG, SUSPICIOUS, REFUSED or CRASHED.
        message: The evidence, or the runtime's error, one sentence.
        output: The first output with the worst verdict, wrong or suspicious: Y, present_key, present_value or
            qk_matmul_output; "" if all are right.
        agreement: The judgement of that output, or of Y where all are right; None if nothing ran.
        precision: The declared arithmetic; "" if nothing ran.
        inputs: The arrays it ran on.
        outputs: The outputs of the runtime, by what they are.
    """

    kind: Conformity
    message: str
    output: str = ""
    agreement: Agreement | None = None
    precision: str = ""
    inputs: AttentionInputs
    outputs: Mapping[OutputRole, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailure:
    """A model that a runtime did not load or run: refused or crashed, why in one sentence, whether it is a time-out."""

    kind: Conformity
    message: str
    is_timeout: bool = False


@dataclass(slots=True)
class Sessions:
    """Loaded models of one runtime, so that trials of equal graphs share one; a context manager.

    Args:
        runtime: Where they run.
        keep: How many stay open.
        threads: Threads inside one operator; a `CaseTrial` has its own.
    """

    runtime: Runtime
    keep: int = _KEPT_SESSIONS
    threads: int = 1
    _open: "OrderedDict[Hashable, tuple[ExitStack, Session] | LoadFailure]" = field(
        default_factory=OrderedDict, init=False
    )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self._open.clear()  # interrupted in the middle of a call: the runtime may not answer
            return
        while self._open:
            self._drop()

    def get(self, trial: CaseTrial, inputs: AttentionInputs) -> Session | LoadFailure:
        """The session for a trial's graph, or why the runtime refuses it."""
        spec, dtype = trial.case.spec, trial.case.dtype
        mask = inputs.attn_mask
        shaped = None if mask is None else (mask.dtype.name, _mask_pattern(trial.case, mask))
        built = (spec, dtype, trial.form, trial.used_opset, trial.qk_mode, shaped)
        key = (*(built if trial.graph is None else (trial.graph.content_hash(),)), trial.threads)
        return self.open(key, lambda: trial_model(trial, inputs), threads=trial.threads)

    def open(
        self, key: Hashable, build: Callable[[], OnnxModel], *, threads: int | None = None
    ) -> Session | LoadFailure:
        """The session for a model, or why the runtime refuses it.

        Args:
            key: What the model is known by.
            build: Makes the model, called only where no session has that key.
            threads: Threads inside one operator; None = those of all sessions.
        """
        if key not in self._open:
            self._open[key] = self._load(build(), self.threads if threads is None else threads)
            while len(self._open) > self.keep:
                self._drop()
        self._open.move_to_end(key)
        found = self._open[key]
        return found if isinstance(found, LoadFailure) else found[1]

    def _load(self, model: OnnxModel, threads: int) -> tuple[ExitStack, Session] | LoadFailure:
        support = self.runtime.supports(model)
        if isinstance(support, Unsupported):
            return LoadFailure(kind=Conformity.REFUSED, message=not_taken(self.runtime.name, support.reason))
        stack = ExitStack()
        try:
            return stack, stack.enter_context(self.runtime.load(model, LoadOptions(threads=threads)))
        except SessionError as error:
            return failure_of(error)

    def _drop(self) -> None:
        _, oldest = self._open.popitem(last=False)
        if not isinstance(oldest, LoadFailure):
            oldest[0].close()


def failure_of(error: SessionError) -> LoadFailure:
    """Why a model does not load or run, by the error that the runtime raised."""
    is_dead = isinstance(error, ProcessDiedError)
    return LoadFailure(
        kind=Conformity.CRASHED if is_dead else Conformity.REFUSED,
        message=str(error),
        is_timeout=isinstance(error, NoAnswerError),
    )


def not_taken(runtime: str, reason: str) -> str:
    """The sentence about a model that a runtime does not support."""
    return f"{runtime} does not take the model: {reason}."


def run_case(trial: CaseTrial, sessions: Sessions) -> TrialResult:
    """Run one attention on one runtime and judge every output.

    A refusal, before or while it runs, is a value. Wrap a runtime first that may end the
    process.

    Args:
        trial: What to run.
        sessions: Open sessions of the runtime.

    Raises:
        CaseError: If given arrays do not fit the case.
        ExportError: If the operator of that opset cannot express the spec.
    """
    inputs = trial.draw()
    session = sessions.get(trial, inputs)
    if isinstance(session, LoadFailure):
        return TrialResult(kind=session.kind, message=session.message, inputs=inputs)
    try:
        outputs = session.run(trial.feeds(inputs))
    except SessionError as error:
        failure = failure_of(error)
        return TrialResult(kind=failure.kind, message=failure.message, inputs=inputs)
    precision = session.ran().precision  # read after the run: some choose their kernels only then
    return judge_attention(
        trial.case.spec,
        inputs,
        trial.by_role(outputs),
        precision=precision,
        seed=trial.seed,
        qk_modes=trial.qk_modes,
        mask_rule=trial.mask_rule,
        nan_rows=trial.graph is not None and bool(trial.graph.facts.without_row_guard),
    )


def trial_model(trial: CaseTrial, inputs: AttentionInputs | None = None) -> OnnxModel:
    """The one-attention model of a trial, with dynamic sizes.

    Args:
        trial: What to run.
        inputs: Arrays whose mask may have another shape than the usual one.
    """
    spec, dtype = trial.case.spec, trial.case.dtype
    if trial.graph is not None:
        return trial.graph
    if trial.form == "decomposed":
        from sdpa_onnx.torch_export.exporter import export_spec

        return export_spec(spec, opset=trial.used_opset, form="decomposed", dtype=dtype)
    graph = build_attention_model(spec, opset=trial.used_opset, dtype=dtype)
    if inputs is not None and inputs.attn_mask is not None:
        _shape_mask(graph, trial.case, inputs.attn_mask)
    if trial.qk_mode is not None:
        add_scores_output(graph, spec, trial.qk_mode, name=QK_OUTPUT)
    return load_model(graph)


def _shape_mask(graph: ir.Model, case: AttentionCase, given: Array) -> None:
    """Set the shape of the mask to that of an array; where the spec names only lengths, add a mask first."""
    pattern = _mask_pattern(case, given)
    if pattern is None:
        return
    names = _MASK_AXES[len(_MASK_AXES) - len(pattern) :]
    shape = ir.Shape([1 if is_one else name for is_one, name in zip(pattern, names, strict=True)])
    mask = next((value for value in graph.graph.inputs if value.name == "attn_mask"), None)
    if mask is None:
        mask = ir.Value(name="attn_mask", type=ir.TensorType(ir.DataType.from_numpy(given.dtype)))
        graph.graph.inputs.append(mask)
        graph.graph.node(0).replace_input_with(3, mask)
    mask.shape = shape


def _mask_pattern(case: AttentionCase, mask: Array | None) -> tuple[bool, ...] | None:
    """Which axes of a mask are 1, or None if it has the usual shape (or there is none)."""
    if mask is None or mask.shape == case.input_shapes().get("attn_mask"):
        return None
    return tuple(size == 1 for size in mask.shape)


def judge_attention(  # noqa: PLR0913  # what a site states
    spec: AttentionSpec,
    inputs: AttentionInputs,
    outputs: Mapping[OutputRole, Array],
    *,
    precision: str,
    seed: int = 0,
    qk_modes: Sequence[QkOutputMode] = (QkOutputMode.SCORES,),
    mask_rule: MaskRule = MaskRule.PADDED,
    cache: CacheRule = _ALL_COPIED,
    nan_rows: bool = False,
) -> TrialResult:
    """Judge every output of an attention.

    Args:
        spec: What is computed.
        inputs: The arrays it ran on.
        outputs: Its outputs, by what they are.
        precision: The declared arithmetic.
        seed: Which queries of a big case are judged.
        qk_modes: Stages of the scores that the fourth output may hold.
        mask_rule: What a mask means whose last axis is 1.
        cache: What the operator defines of its present outputs.
        nan_rows: Whether a row without a visible key is NaN, because the softmax of the graph has no guard.
    """
    arithmetic = find_precision(precision)
    agreements = judge_attention_outputs(
        spec,
        inputs,
        outputs,
        precision=arithmetic,
        qk_modes=qk_modes,
        mask_rule=mask_rule,
        cache=cache,
        expectation_of=lambda reading: expect(spec, reading.inputs, precision=arithmetic, seed=seed, nan_rows=nan_rows),
    )
    worst = max(agreements, key=lambda role: list(Verdict).index(agreements[role].verdict))  # the first of equals
    is_right = agreements[worst].verdict.is_right
    agreement = agreements[OutputRole.OUTPUT if is_right else worst]
    return TrialResult(
        kind=agreement.verdict.conformity,
        message=agreement.diagnosis,
        output="" if is_right else worst.value,
        agreement=agreement,
        precision=precision,
        inputs=inputs,
        outputs=outputs,
    )
