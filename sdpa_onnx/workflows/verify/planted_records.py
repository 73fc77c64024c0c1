"""Planted faults for every attention of a file, as records: would this check have noticed?"""

from collections.abc import Iterator
from dataclasses import replace

from sdpa_onnx.core.records.records import Outcome, PlantedRecord
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime, Unsupported
from sdpa_onnx.workflows.check.run_context import CheckOptions
from sdpa_onnx.workflows.verify.plant_faults import PlantedFault, prove
from sdpa_onnx.workflows.verify.site_probes import sites_alone

__all__ = ["prove_sites"]


def prove_sites(model: OnnxModel, runtime: Runtime, check: CheckOptions, *, target: str) -> Iterator[PlantedRecord]:
    """Plant every fault that each attention can have, in the outputs of the same inputs that `check` judges.

    An attention inside a larger model is cut out; one that cannot be is left out.

    Args:
        model: The model.
        runtime: Where it runs.
        check: Sizes, spreads or given inputs (these of a bare attention only).
        target: Name for the records.

    Raises:
        SessionError: If the runtime fails on the model.
    """
    if isinstance(runtime.supports(model), Unsupported):
        return
    asked = replace(check, probes=True)
    parts = [(model.sites[0].name, model, asked)] if model.is_bare_attention else sites_alone(model, runtime, asked)
    for site, part, small in parts:
        for planted in prove(part, runtime, small):
            yield _record(part, runtime.name, site, planted, target)


def _record(model: OnnxModel, runtime: str, site: str, planted: PlantedFault, target: str) -> PlantedRecord:
    if planted.caught_by is not None:
        outcome, reason = Outcome.OK, ""
    elif planted.shows:
        outcome, reason = Outcome.FAILED, f"These inputs would not have shown that {planted.fault.says}."
    else:
        outcome, reason = Outcome.SKIPPED, "It changes no output on any of these inputs."
    return PlantedRecord(
        target=target,
        case=target,
        form=model.facts.form.value,
        opset=model.opset,
        runtime=runtime,
        outcome=outcome,
        reason=reason,
        site=site,
        dtype=model.facts.dtype.value,
        fault=planted.fault.name,
        says=planted.fault.says,
        caught_by=planted.caught_by or "",
    )
