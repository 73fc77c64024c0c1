"""Run a model at one size set after the other, and keep what was right, wrong, or refused by the module itself.

`dynamic_axes` chooses the sizes and explains what failed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject, outcome_of_error
from sdpa_onnx.errors import CaseError, ExportError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.runtimes.worker.ort_errors import failing_node
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.integer_draws import IllegalSizesError
from sdpa_onnx.workflows.check.legal_sizes import nearest_legal
from sdpa_onnx.workflows.check.long_sizes import sizes_in_words
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.verify.axis_links import follow
from sdpa_onnx.workflows.verify.found_limits import module_refusal
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

__all__ = ["SizeFailure", "SizeSetTrial", "SizeWalk", "is_meaningful"]


@dataclass(frozen=True, slots=True)
class SizeFailure:
    """Why one size set failed.

    Args:
        evidence: In one sentence.
        node: Where, or "".
        is_number: It ran, the shapes of the outputs are right and the numbers are not.
        is_refusal: The runtime did not run it.
    """

    evidence: str
    node: str
    is_number: bool = False
    is_refusal: bool = False


@dataclass(slots=True, kw_only=True)
class SizeSetTrial:
    """One model on one runtime, to be run at many sizes; what all runs share is made once."""

    model: OnnxModel
    runtime: Runtime
    target: str
    seed: int
    links: Mapping[str, str]
    is_enough: Callable[[], bool]
    shared: ExpectationCache = field(default_factory=ExpectationCache)
    _tapped: OnnxModel | None = field(default=None, init=False)

    def run(self, sizes: Mapping[str, int], records: list[AgreementRecord]) -> SizeFailure | None:
        """Run one size set and add its records; None if everything is right.

        Raises:
            ProcessDiedError: If the runtime crashed or did not answer, which is no result about the graph.
        """
        check = CheckOptions(sizes=follow(self.links, sizes), spreads=(1.0,), seed=self.seed)
        try:
            tapped = self._tapped or self.model.tapped()
            self._tapped = tapped
            found = check_model(
                self.model, self.runtime, check, target=self.target, expectations=self.shared, tapped=tapped
            )
        except ProcessDiedError:
            raise
        except IllegalSizesError as error:
            return SizeFailure(str(error), "", is_refusal=True)
        except SessionError as error:
            return SizeFailure(str(error), failing_node(str(error.__cause__ or error)) or "", is_refusal=True)
        except (ExportError, CaseError) as error:
            # CaseError: inner values that do not fit together, which only a fault of the runtime can cause.
            return SizeFailure(str(error), "")
        records.extend(found)
        wrong = next((record for record in found if record.outcome is Outcome.DISAGREES), None)
        if wrong is None:
            return None
        # Some sites are attentions, others outputs of the whole graph, which is no node.
        is_output = wrong.subject is Subject.OUTPUT
        # A wrong shape has no error of numbers.
        is_number = is_output and bool(wrong.max_bound_ratio or wrong.not_finite)
        return SizeFailure(wrong.diagnosis, "" if is_output else wrong.site, is_number)


@dataclass(slots=True, kw_only=True)
class SizeWalk:
    """The results of running one size set after the other; private and short-lived."""

    good: list[dict[str, int]]
    batches: Collection[str]
    on_size: Callable[[int, int], None] | None
    tried: list[dict[str, int]] = field(default_factory=list)
    failures: list[tuple[dict[str, int], SizeFailure]] = field(default_factory=list)
    refused: list[tuple[dict[str, int], str]] = field(default_factory=list)
    illegal: list[tuple[dict[str, int], str]] = field(default_factory=list)
    records: list[AgreementRecord] = field(default_factory=list)
    died: str = ""
    ended: Outcome = Outcome.OK

    def go(self, trial: SizeSetTrial, planned: Sequence[dict[str, int]]) -> None:
        """Run every planned size set, until it is enough or the runtime dies."""
        total = len(self.tried) + len(planned)
        for sizes in planned:
            if self.died or (self.tried and trial.is_enough()):
                return
            legal = nearest_legal(trial.model, sizes, complete=partial(follow, trial.links))
            if legal != sizes:
                # A full cache is no fault; the search for limits explains it.
                self.illegal.append((sizes, "an operator has no room for it"))
            if legal is None or legal in self.tried:
                continue
            sizes = legal  # noqa: PLW2901
            found: list[AgreementRecord] = []
            try:
                failure = trial.run(sizes, found)
            except ProcessDiedError as error:
                self.ended = outcome_of_error(error)
                self.died = f"At {sizes_in_words(follow(trial.links, sizes))}: {error}"
                return
            why = "" if failure is None else module_refusal(trial.model, follow(trial.links, sizes), trial.seed)
            if why:
                # No graph can be right or wrong where its module does not run.
                self.refused.append((sizes, why))
                continue
            self.tried.append(sizes)
            self.records.extend(found)
            if failure is not None:
                self.failures.append((sizes, failure))
            elif is_meaningful(sizes, self.batches):
                self.good.append(sizes)
            if self.on_size is not None:
                self.on_size(len(self.tried), total)

    def right(self) -> list[dict[str, int]]:
        """The sizes that ran and are right."""
        failed = [sizes for sizes, _ in self.failures]
        return [sizes for sizes in self.tried if sizes not in failed]


def is_meaningful(sizes: Mapping[str, int], batches: Collection[str]) -> bool:
    """Whether a right result proves anything: with one key the softmax is 1 whatever the scores are."""
    return all(size > 1 for axis, size in sizes.items() if not axis.startswith("batch") and axis not in batches)
