"""The result of a reduction: the smallest case that still fails, or that nothing failed.

Finds and reduces nothing.
"""

from dataclasses import dataclass, field

import numpy as np

from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.records import Conformity, Verdict
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.case_trial import CaseTrial
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.reduce.expected import BoundedOutput
from sdpa_onnx.workflows.reduce.trials import KeptFailure

__all__ = ["NothingFails", "ReducedCase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingFails:
    """A model in which nothing failed.

    Args:
        tried: The sizes (or arrays) that were tried.
        is_read: Whether any attention was read, so that the ladder and the probes judged something.
        is_probed: Whether each attention that was read was also probed by itself.
        is_given: Whether the arrays are the user's.
        unread: Number of attentions that could not be read.
        replaced: What the nodes are that reading an attention would replace, such as "2 Einsum"; "" if none.
        alone: Sizes at which every node by itself is right, if the nodes were judged.
        not_judged: What could not be judged even so, as text.
        is_finished: False if the time limit was reached before everything was tried.
    """

    tried: tuple[str, ...]
    is_read: bool = True
    is_probed: bool = True
    is_given: bool = False
    unread: int = 0
    replaced: str = ""
    alone: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    is_finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedCase:
    """The smallest case that still fails.

    Args:
        model: One attention, or the nodes that are refused.
        feeds: Its inputs, by graph input name.
        expected: The expected outputs with their bounds, by graph output name; empty if there is no oracle.
        failure: The failure that stayed the same while the case shrank.
        agreement: The judgement of the wrong output, or None if nothing ran.
        message: The evidence or the runtime's error, one sentence.
        case: Case id of one attention, else "".
        trial: The attention as a case, or None.
        found_in: The inputs on which the whole model failed, and the evidence or error of that run.
        dropped: The sizes and options that changed, such as "q_seq_len 13 -> 1".
        trials: Number of candidates that were run.
        seconds: Wall time of the search and the reduction.
        stopped: The reason why it is not smaller, one sentence.
        is_finished: False if the time limit was reached before the reduction finished.
        runtime, runtime_version: The runtime that fails.
        precision: The declared arithmetic for which the bound holds; "" if nothing ran.
        before: Inputs of the runs of the session before, in their order, without which it does not fail.
    """

    model: OnnxModel
    feeds: Feeds
    expected: dict[str, BoundedOutput] = field(default_factory=dict)
    failure: KeptFailure
    agreement: Agreement | None = None
    message: str
    case: str = ""
    trial: CaseTrial | None = None
    found_in: str
    dropped: tuple[str, ...] = ()
    trials: int
    seconds: float
    is_finished: bool
    stopped: str = ""
    runtime: str
    runtime_version: str
    precision: str = ""
    before: tuple[Feeds, ...] = ()

    @property
    def kind(self) -> Conformity:
        """WRONG, SUSPICIOUS, REFUSED or CRASHED."""
        return self.failure.kind

    @property
    def fourth_output(self) -> str:
        """The mode of the fourth output, which the case id does not contain; "" if there is no such output."""
        mode = None if self.trial is None else self.trial.qk_mode
        return "" if mode is None else f", with qk_matmul_output_mode {int(mode)}"

    @property
    def has_one_limit(self) -> bool:
        """Whether the wrong output is not an attention's and its limit is known at one element only."""
        bounds = [bounded.bound for bounded in self.expected.values()]
        return self.trial is None and any(one.size > 1 and int(np.isfinite(one).sum()) == 1 for one in bounds)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the wrong output, or None if nothing ran."""
        return None if self.agreement is None else self.agreement.verdict
