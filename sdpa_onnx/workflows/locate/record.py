"""Locate the first bad node behind a disagreement of a model, as a record.

Does not judge models: `verify` does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records.records import AgreementRecord, LocatedRecord, Outcome, outcome_of_error
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME
from sdpa_onnx.workflows.locate.bad_node import BadNode, BadNodeKind
from sdpa_onnx.workflows.locate.first_bad_node import first_bad_node

__all__ = ["Arrays", "StepRecorder", "locate"]

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(slots=True)
class StepRecorder:
    """Stores the arrays of every step of the last check, by the name of the step; the `keep` argument of `check_model`.

    Args:
        also: A second callback that receives the same arrays.
    """

    also: Callable[[str, str, Arrays], None] | None = None
    steps: dict[str, Arrays] = field(default_factory=dict)

    def __call__(self, runtime: str, step: str, arrays: Arrays) -> None:
        self.steps[step] = arrays
        if self.also is not None:
            self.also(runtime, step, arrays)


def locate(
    model: OnnxModel, runtime: Runtime, record: AgreementRecord, arrays: Arrays, *, threads: int
) -> LocatedRecord | None:
    """Find the first bad node behind a judgement that disagrees.

    Args:
        model: A model of several nodes; for a single node the result is None.
        runtime: The runtime that disagreed.
        record: The judgement.
        arrays: The inputs of the model in that run, by name; other arrays are ignored.
        threads: Threads inside one operator.
    """
    if runtime.name == MODULE_RUNTIME or sum(model.node_counts().values()) < 2:
        return None
    feeds = {name: arrays[name] for name in model.input_names}
    try:
        found = first_bad_node(model, runtime, feeds, threads=threads)
    except SdpaOnnxError as error:
        sentence = f"The search for the first bad node failed: {error}"
        return _located_record(record, outcome_of_error(error), sentence, None)
    outcome = Outcome.OK if found.kind is BadNodeKind.NOT_FOUND else Outcome.DISAGREES
    return _located_record(record, outcome, found.sentence(), found)


def _located_record(record: AgreementRecord, outcome: Outcome, sentence: str, found: BadNode | None) -> LocatedRecord:
    located = LocatedRecord(
        target=record.target,
        case=record.case,
        form=record.form,
        opset=record.opset,
        runtime=record.runtime,
        outcome=outcome,
        reason="" if outcome is Outcome.OK else sentence,
        subject=record.subject,
        site=record.site,
        sizes=record.sizes,
        inputs=record.inputs,
        diagnosis=sentence,
    )
    if found is None:
        return located
    return msgspec.structs.replace(
        located,
        node=found.node,
        op_type=found.op_type,
        value=found.value,
        verdict=None if found.kind is BadNodeKind.NOT_FOUND else found.verdict,
        max_abs_error=None if found.kind is BadNodeKind.NOT_FOUND else found.error,
        allowed=None if found.kind is BadNodeKind.NOT_FOUND else found.allowed,
        group=found.group,
        judged=found.judged,
        not_judged=len(found.not_judged),
    )
