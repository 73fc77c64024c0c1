"""Judge the outputs of a graph where two runs on the same inputs differ: which of them float64 confirms.

Used where a session is reused, and where inner values are added to the outputs. Runs no runtime.
"""

from dataclasses import dataclass, field

import numpy as np

from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.judge.node_rule import format_of
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.check.output_check import OutputRun, judge_output, relative_yardstick
from sdpa_onnx.workflows.locate.float64_graph import Float64Graph, Float64Run
from sdpa_onnx.workflows.locate.reference_nodes import moved

__all__ = ["DifferingOutputs", "NoVerdict", "same_bits"]

_QUANTISING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
# A quarter of the step of the largest number in 8 bits, relative to it: inputs that move by it cross steps themselves,
# and all that follows does, more often than by the rounding of any kernel.
_STEP_PART = 2.0**-10


@dataclass(frozen=True, slots=True)
class NoVerdict:
    """Why neither of two different outputs can be called right."""

    reason: str


@dataclass(slots=True, kw_only=True)
class DifferingOutputs:
    """Judges the outputs of one graph; its float64 form is made once, when it is needed.

    Args:
        model: The graph.
    """

    model: OnnxModel
    _graph: Float64Graph | None = field(default=None, init=False)

    def judge(self, feeds: Feeds, reference: Feeds, actual: Feeds, *, name: str) -> dict[str, Agreement | NoVerdict]:
        """Judge every output that differs from the reference in a bit.

        Its error may be twice the error of the reference, plus one rounding, see `judge_output`. In a quantised graph
        a rounding before a step can change a value by a whole step: there the limit is at least the change that inputs
        cause that move by a part of a step.

        Args:
            feeds: The inputs of both runs.
            reference: Outputs of the run that the other one should be equal to.
            actual: Outputs of the other run.
            name: What the reference is, such as "the fresh session".
        """
        different = [one for one in self.model.output_names if not same_bits(reference[one], actual[one])]
        if not different:
            return {}
        exact, stepped = self._float64(feeds, different)
        found: dict[str, Agreement | NoVerdict] = {}
        for one in different:
            truth = exact.values.get(one)
            if format_of(reference[one].dtype) is None and reference[one].shape == actual[one].shape:
                if truth is None or not np.array_equal(truth, actual[one]):
                    found[one] = NoVerdict("it is no floating-point number, and one rounding may change it")
                continue
            run = OutputRun(
                truth=reference[one] if truth is None else truth,
                source=reference[one],
                actual=actual[one],
                source_name=name,
            )
            runs = [run]
            if truth is not None and stepped is not None and one in stepped.values:
                runs.append(OutputRun(truth=truth, source=stepped.values[one], actual=actual[one]))
            agreement = judge_output(run, relative_yardstick(runs))
            is_proof = agreement.verdict is not Verdict.SUSPICIOUS  # a wrong shape or NaN needs no float64 run
            found[one] = agreement if truth is not None or is_proof else NoVerdict(exact.reason)
        return found

    def _float64(self, feeds: Feeds, wanted: list[str]) -> tuple[Float64Run, Float64Run | None]:
        """The outputs in float64; for a quantised graph also those of inputs that moved by a part of a step."""
        self._graph = self._graph or Float64Graph(self.model)
        inputs = [feeds]
        if any(node.op_type in _QUANTISING for node in self.model.ir.graph.all_nodes()):
            inputs.append({name: array.astype(feeds[name].dtype) for name, array in moved(feeds, _STEP_PART).items()})
        exact, *others = self._graph.run_all([(one, {}) for one in inputs], wanted)
        return exact, others[0] if others else None


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
