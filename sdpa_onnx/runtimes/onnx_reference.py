"""Runtime `onnx-reference`: ONNX's own numpy evaluator, for agreement only.

It covers the whole standard operator set, bfloat16 included, and computes in
the model's own type step by step. It is slow by design and is never timed.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Supported, Unsupported
from sdpa_onnx.runtimes.feeds import checked_feeds
from sdpa_onnx.runtimes.live_session import LiveSession

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

__all__ = ["OnnxReference", "ReferenceBoundRun", "ReferenceSession"]

Array = NDArray[np.generic]

# What numpy code raises on operands that do not fit; NotImplementedError is a RuntimeError.
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AssertionError, AttributeError, ArithmeticError)

# Both measured with onnx 1.23.2: 452 units of bfloat16 roundoff at 4096 keys; 4e-8 in float64 with scale 0.125.
_BFLOAT16_SUM = "onnx.reference adds a softmax row in bfloat16, key by key: above 256 equal keys the sum stops growing."
_FLOAT32_SCALE = "onnx.reference holds the scale attribute in float32, so the result is no float64 one."


class ReferenceBoundRun:
    """Runs one problem per call."""

    __slots__ = ("_outputs", "_run")

    def __init__(self, run: Callable[[], dict[str, Array]]) -> None:
        self._run = run
        self._outputs: dict[str, Array] = {}

    def __call__(self) -> None:
        self._outputs = self._run()

    def outputs(self) -> dict[str, Array]:
        """Copies of what the last call gave, by output name."""
        return {name: array.copy() for name, array in self._outputs.items()}


class ReferenceSession(LiveSession["ReferenceEvaluator"]):
    """A model in ONNX's evaluator; see `runtimes.base.Session`."""

    def __init__(self, model: OnnxModel, evaluator: "ReferenceEvaluator") -> None:
        super().__init__(OnnxReference.name, evaluator)
        self._model = model

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once; see `Session.run`."""
        return self._evaluate(checked_feeds(OnnxReference.name, self._model, inputs))

    def bind(self, inputs: Mapping[str, Array]) -> ReferenceBoundRun:
        """Check the inputs and run once; see `Session.bind`. The evaluator has no memory to bind."""
        feeds = checked_feeds(OnnxReference.name, self._model, inputs)
        self._evaluate(feeds)
        return ReferenceBoundRun(lambda: self._evaluate(feeds))

    def ran(self) -> RanReport:
        """Every node of the model runs as written; see `Session.ran`."""
        counts = Counter(node.op_type for node in self._model.ir.graph.all_nodes())
        precision, warnings = _precision(self._model)
        return RanReport(
            providers={"numpy": counts.total()},
            node_counts=dict(sorted(counts.items())),
            precision=precision,
            warnings=warnings,
        )

    def _evaluate(self, feeds: dict[str, Array]) -> dict[str, Array]:
        evaluator = self.live
        try:
            outputs = evaluator.run(None, feeds)
        except _FAILURES as error:
            what = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise SessionError(f"{OnnxReference.name} failed: {what}.") from error
        # An evaluator may hand an input through as an output: copy, so that arrays are fresh.
        return {name: np.array(array) for name, array in zip(self._model.output_names, outputs, strict=True)}


class OnnxReference:
    """ONNX's `ReferenceEvaluator`, standard operators only."""

    name = "onnx-reference"
    measures_time = False

    def available(self) -> Supported | Unsupported:
        """Always: onnx is a plain dependency."""
        return Supported()

    def version(self) -> str:
        """Such as "onnx 1.23.2"."""
        import onnx

        return f"onnx {onnx.__version__}"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """Refuse operators of other domains, and the loops that the evaluator silently skips."""
        local = {(function.domain, function.name) for function in model.ir.functions.values()}
        for node in model.ir.graph.all_nodes():
            if node.domain not in ("", "ai.onnx", "ai.onnx.ml") and (node.domain, node.op_type) not in local:
                return Unsupported(f"onnx.reference has no operator {node.op_type} of domain {node.domain}")
            # Seen in onnx 1.23.2: without `cond` the loop runs zero times, without an error.
            if node.op_type == "Loop" and (len(node.inputs) < 2 or node.inputs[1] is None):
                return Unsupported("onnx.reference runs zero iterations of a Loop whose cond input is omitted")
        return Supported()

    def load(self, model: OnnxModel, options: LoadOptions) -> ReferenceSession:
        """Load a model; see `Runtime.load`. numpy's own threads are left as they are."""
        try:
            from onnx.reference import ReferenceEvaluator
        except ImportError as error:
            raise RuntimeUnavailableError(f"Runtime '{self.name}' cannot be imported: {error}.") from error
        try:
            evaluator = ReferenceEvaluator(model.to_proto())
        except _FAILURES as error:
            what = " ".join(str(error).split()).rstrip(".")
            raise SessionError(f"{self.name} cannot load the model: {what}.") from error
        return ReferenceSession(model, evaluator)


def _precision(model: OnnxModel) -> tuple[str, tuple[str, ...]]:
    """The declared arithmetic and what it hides.

    numpy and ml_dtypes add the products of float16 and bfloat16 in float32
    (5000 ones times ones give 5000, not 2048 or 256; numpy 2.4.6).
    """
    dtype = model.facts.attention_dtype
    attentions = [node for node in model.ir.graph.all_nodes() if node.op_type == "Attention"]
    if dtype is Dtype.FLOAT64 and any("scale" in node.attributes for node in attentions):
        return "float32", (_FLOAT32_SCALE,)
    return dtype.value, (_BFLOAT16_SUM,) if dtype is Dtype.BFLOAT16 else ()
