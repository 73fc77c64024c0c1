"""Run one random case on one runtime and judge every output; failures are returned as values.

Chooses no cases.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.mask_rule import full_mask, mask_rule_of
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import Precision, find_precision
from sdpa_onnx.core.attention.random_cases import RandomCase, RandomGraph
from sdpa_onnx.core.faults.diagnosis import Explanation
from sdpa_onnx.core.faults.output_diagnosis import explain_output
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.records.records import Conformity, Verdict
from sdpa_onnx.errors import SessionError
from sdpa_onnx.runtimes.base import RanReport, Session
from sdpa_onnx.workflows.check.case_trial import LoadFailure, Sessions, failure_of
from sdpa_onnx.workflows.conformance.feature import Feature
from sdpa_onnx.workflows.conformance.judging import allowed_precision
from sdpa_onnx.workflows.fuzz.model import SOFTMAX_ELEMENTS, fuzz_model
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError

__all__ = ["CaseOutcome", "FuzzFinding", "run_random"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzFinding:
    """One failure of one case: a wrong or suspicious output, a refusal or a crash.

    Args:
        number: Of the case.
        case_id: Its id; words: what the id leaves out, such as "opset 24".
        source: "spread 1", "probe poison".
        elements: Number of input elements.
        features: Special properties of the case.
        is_empty: Whether a size of it is 0.
        kind: WRONG, SUSPICIOUS, REFUSED or CRASHED.
        message: The evidence, or the error of the runtime; one sentence.
        is_timeout: Whether it crashed in so far as it gave no answer in time.
        output: The wrong or suspicious output: Y, present_key, present_value or qk_matmul_output; "" if nothing ran.
        agreement: The judgement of that output.
        explanation: The known fault that a wrong output looks like, if any.
        precision: The declared arithmetic; "" if nothing ran.
        ran: What really ran, if the runtime can report it.
        after: Numbers of the cases that ran before in the same session, if it is right in a fresh one.
    """

    number: int
    case_id: str
    words: str
    source: str
    elements: int
    features: frozenset[str] = frozenset()
    is_empty: bool = False
    kind: Conformity
    message: str
    is_timeout: bool = False
    output: str = ""
    agreement: Agreement | None = None
    explanation: Explanation | None = None
    precision: str = ""
    ran: RanReport | None = None
    after: tuple[int, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, or None if nothing ran."""
        return None if self.agreement is None else self.agreement.verdict

    @property
    def path(self) -> str:
        """How the operator runs: "native" by the runtime itself, "expanded", or "" if unknown."""
        if self.ran is None:
            return ""
        return "expanded" if "Attention" in self.ran.expanded else "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOutcome:
    """The result of a case.

    Args:
        verdict: The worst verdict on its outputs, or None if it did not finish.
        findings: One for each wrong or suspicious output, or one for a refusal or crash.
    """

    verdict: Verdict | None
    findings: tuple[FuzzFinding, ...] = ()


def run_random(case: RandomCase, sessions: Sessions) -> CaseOutcome:
    """Run a case and judge every output; a refusal and a crash are values.

    Args:
        case: What to run.
        sessions: Open sessions of the runtime; one that may crash the process is to be isolated first.
    """
    session = sessions.open(case.graph, lambda: fuzz_model(case.graph))
    if isinstance(session, LoadFailure):
        return _not_run(case, session, None)
    try:
        outputs = session.run(case.inputs.onnx_feeds())
        ran = session.ran()  # asked after the run: some choose their kernels only then
    except SessionError as error:
        return _not_run(case, failure_of(error), _ran_of(session, error))
    verdicts: list[Verdict] = []
    findings: list[FuzzFinding] = []
    for name, agreement in _judged(case, outputs, ran):
        verdicts.append(agreement.verdict)
        if not agreement.verdict.is_right:
            findings.append(_disagreeing(case, name, agreement, outputs[name], ran))
    return CaseOutcome(verdict=max(verdicts, key=list(Verdict).index), findings=tuple(findings))


def _judged(case: RandomCase, outputs: Mapping[str, Array], ran: RanReport) -> Iterator[tuple[OutputRole, Agreement]]:
    """Every output by the one judge."""
    judged = judge_attention_outputs(
        case.case.spec,
        case.inputs,
        {role: outputs[role] for role in OutputRole if role in outputs},
        precision=_precision(case.graph, ran),
        qk_modes=(case.graph.qk_mode or QkOutputMode.SCORES,),
        mask_rule=mask_rule_of(case.graph.opset),
    )
    yield from judged.items()


def _precision(graph: RandomGraph, ran: RanReport) -> Precision:
    """The declared arithmetic, or the arithmetic that softmax_precision of the model allows."""
    if graph.softmax_precision is None:
        return find_precision(ran.precision)
    element = SOFTMAX_ELEMENTS[graph.softmax_precision]
    asked = Feature(slug="", group="", title="", source="", specs=(), attributes={"softmax_precision": element})
    return allowed_precision(ran.precision, asked, graph.dtype)


def _disagreeing(
    case: RandomCase, role: OutputRole, agreement: Agreement, actual: Array, ran: RanReport
) -> FuzzFinding:
    return _finding(
        case,
        agreement.verdict.conformity,
        agreement.diagnosis,
        output=role.value,
        agreement=agreement,
        explanation=_explained(case, role, actual, ran) if agreement.total else None,
        precision=ran.precision,
        ran=ran,
    )


def _explained(case: RandomCase, role: OutputRole, actual: Array, ran: RanReport) -> Explanation | None:
    return explain_output(
        role,
        case.case.spec,
        full_mask(case.inputs, mask_rule_of(case.graph.opset), layout=case.case.spec.layout),
        actual,
        precision=ran.precision,
        allowed=_precision(case.graph, ran),
        qk_mode=case.graph.qk_mode or QkOutputMode.SCORES,
    )


def _not_run(case: RandomCase, stopped: LoadFailure, ran: RanReport | None) -> CaseOutcome:
    finding = replace(_finding(case, stopped.kind, stopped.message, ran=ran), is_timeout=stopped.is_timeout)
    return CaseOutcome(verdict=None, findings=(finding,))


def _finding(  # fields of one record
    case: RandomCase,
    kind: Conformity,
    message: str,
    *,
    output: str = "",
    agreement: Agreement | None = None,
    explanation: Explanation | None = None,
    precision: str = "",
    ran: RanReport | None = None,
) -> FuzzFinding:
    return FuzzFinding(
        number=case.number,
        case_id=case.case.case_id,
        words=case.graph.words,
        source=case.source,
        elements=case.elements,
        features=case.features,
        is_empty=case.is_empty,
        kind=kind,
        message=message,
        output=output,
        agreement=agreement,
        explanation=explanation,
        precision=precision,
        ran=ran,
    )


def _ran_of(session: Session, error: SessionError) -> RanReport | None:
    """What the session is made of, unless the process is gone."""
    if isinstance(error, ProcessDiedError):
        return None
    try:
        return session.ran()
    except SessionError:
        return None
