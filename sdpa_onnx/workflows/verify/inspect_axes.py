"""Try the axes of an inspected file for a few seconds: which of them are really free.

A short proof: fewer sizes than in `verify`, and a time limit.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from sdpa_onnx.core.records.records import AttentionRecord
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Unsupported, get_runtime
from sdpa_onnx.workflows.check.kept_sessions import kept_sessions
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, own_process
from sdpa_onnx.workflows.verify.dynamic_axes import AxesProof, prove_axes

__all__ = ["AxesTrial", "try_axes"]

_SETS = 4
# Seconds after which no further size is begun.
_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AxesTrial:
    """Records of the attentions with the result of a short proof of the axes.

    Args:
        records: The records given, with `baked`, `sizes_tried` and warnings.
        says: The result, one sentence.
    """

    records: list[AttentionRecord]
    says: str


def try_axes(
    model: OnnxModel,
    records: Sequence[AttentionRecord],
    runtime: str,
    *,
    target: str,
    patience_seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> AxesTrial:
    """Run the file at a few sizes and record what is fixed.

    Args:
        model: The file.
        records: Of its attentions.
        runtime: Where to run it.
        target: Its name.
        patience_seconds: Run it in a process of its own, so that a crash is a result, and stop
            it after this long; None = in this process.
        clock: Seconds.
    """
    found = get_runtime(runtime)
    for answer in (found.available(), found.supports(model)):
        if isinstance(answer, Unsupported):
            return AxesTrial(records=list(records), says=f"Axes were not tried: {answer.reason}")
    try:
        with own_process(found, patience_seconds) as apart:
            if isinstance(apart, GuardedRuntime):
                apart.start()
            start = clock()
            with kept_sessions(apart) as kept:
                proof = prove_axes(
                    model,
                    kept,
                    target=target,
                    traced=model.facts.traced,
                    count=_SETS,
                    is_enough=lambda: clock() - start > _SECONDS,
                )
    except ModelError as error:
        return AxesTrial(records=list(records), says=f"Axes were not tried: {error}")
    doubt = (*((f"On {runtime}: {proof.failure}",) if proof.failure else ()), *proof.doubts)
    changed = [
        msgspec.structs.replace(
            record,
            baked=proof.baked,
            limits=proof.limits,
            sizes_tried=proof.sizes_tried,
            warnings=(*record.warnings, *doubt),
        )
        for record in records
    ]
    return AxesTrial(records=changed, says=_says(proof, runtime, verdict=_verdict(model)))


def _verdict(model: OnnxModel) -> str:
    match bool(model.sites), bool(model.body_sites):
        case True, False:
            return "Every attention is right"
        case True, True:
            return "Every attention outside of If, Loop and Scan is right (verify judges those inside too)"
        case False, True:
            return "It runs (its attentions are inside If, Loop or Scan: verify judges them)"
        case _:
            return "It runs (nothing in it could be judged)"


def _says(proof: AxesProof, runtime: str, *, verdict: str) -> str:
    if not proof.dynamic_axes:
        return "No axis is declared dynamic, so none was tried."
    to = f" (lengths to {proof.longest})" if proof.longest else ""
    where = f"at {proof.sizes_tried} size{'s' if proof.sizes_tried > 1 else ''}{to} on {runtime}"
    if proof.reason:
        return f"Not proved {where}: {proof.reason}"
    linked = ", ".join(f"{axis} as long as {head}" for axis, head in proof.links.items())
    return f"{verdict} {where}{f', with {linked}: it does not run otherwise' if linked else ''}."
