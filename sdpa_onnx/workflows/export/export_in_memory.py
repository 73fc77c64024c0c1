"""Export in memory, and verify the result on a runtime if one is named: return it, or raise the reason why it is wrong.

Writes no file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
from sdpa_onnx.workflows.choose_form.choose import RaceBudget
from sdpa_onnx.workflows.export.export_for_runtime import WrittenExport, with_fastest_form, with_workarounds
from sdpa_onnx.workflows.export.export_target import ExportResult, export_and_prove

__all__ = ["MemoryProof", "export_for_runtime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProof:
    """The runtime that an export is for, and how it is verified there.

    Args:
        runtime: Name of the runtime.
        seed: Seed of the inputs.
        patience_seconds: Run it in a separate process, and stop it after this long without an answer; None = here.
        fastest: Write the fastest form on the runtime, with this time to find it; None = only workarounds.
    """

    runtime: str
    seed: int = 0
    patience_seconds: float | None = None
    fastest: RaceBudget | None = None


def export_for_runtime(
    make: Callable[[], OnnxModel],
    proof: MemoryProof,
    *,
    target: str,
    at: Sequence[Mapping[str, int]] = (),
    opset: int | None = None,
) -> OnnxModel:
    """Export, write for the runtime, and verify there; see `export_and_prove`.

    Args:
        make: Does the export.
        proof: The runtime.
        target: Name for the error text.
        at: Sizes of the model's own axes to time the forms at; () = several lengths.
        opset: Required opset of the fastest form; None = it may be raised.

    Raises:
        ExportError: If the result is wrong or could not be verified.
        RuntimeNotFoundError, RuntimeUnavailableError: If the runtime is not available.
    """
    pick_runtimes([proof.runtime])

    def write(model: OnnxModel, runtime: Runtime) -> WrittenExport:
        if proof.fastest is None:
            return with_workarounds(model, runtime)
        return with_fastest_form(model, get_runtime(proof.runtime), proof.fastest, at=at, opset=opset)

    exported = export_and_prove(
        make,
        target=target,
        runtime=proof.runtime,
        seed=proof.seed,
        patience_seconds=proof.patience_seconds,
        write=write,
    )
    if not exported.is_right:
        raise ExportError(f"The export of {target} was not proved on {proof.runtime}: {_why(exported)}")
    return exported.model


def _why(exported: ExportResult) -> str:
    records = (exported.record, *exported.agreement)
    bad = next(record for record in records if record.outcome is not Outcome.OK)
    return getattr(bad, "diagnosis", "") or bad.reason
