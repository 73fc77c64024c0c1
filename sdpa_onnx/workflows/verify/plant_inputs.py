"""Plant faults of reading each input of an operator: the runtime gets the changed input, the judge the right one.

Only where a graph input is the operator's own. Faults of what an attention computes are in `plant_faults`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sdpa_onnx.core.faults.input_faults import InputFault, input_faults
from sdpa_onnx.core.records.records import Outcome, PlantedRecord
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.integers.rules import input_names
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.one_node import FORMAL_INPUTS
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, Unsupported
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import Feeds, InputStep, ladder
from sdpa_onnx.workflows.check.run_context import RunContext
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, judge_outputs

__all__ = ["PlantedInput", "operator_inputs", "prove_inputs", "records_of_inputs"]

_NOTICED = (Verdict.WRONG, Verdict.SUSPICIOUS)


@dataclass(slots=True, kw_only=True)
class PlantedInput:
    """The result of one fault of one input.

    Args:
        node: Name of the operator's node.
        formal: The input, by its name in the operator's specification.
        fault: The fault.
        value: Name of the graph input.
        caught_by: The first inputs that showed it; "" if none did.
        shows: Whether it changes an output on any of the inputs.
    """

    node: str
    formal: str
    fault: InputFault
    value: str
    caught_by: str = ""
    shows: bool = False


def operator_inputs(model: OnnxModel) -> Iterator[tuple[str, str, str]]:
    """Every graph input that an attention operator reads itself: node, name of the operator's input, graph input."""
    outputs = {site.output for site in model.sites}
    for node in model.ir.graph:
        is_read = (node.domain, node.op_type) in FORMAL_INPUTS and any(one.name in outputs for one in node.outputs)
        if is_read:
            names = input_names(node, model.ir.opset_imports.get(node.domain, 1))
            for formal, value in zip(names, node.inputs, strict=False):
                if value is not None and value.is_graph_input() and value.name:
                    yield node.name or node.op_type, formal, value.name


def prove_inputs(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, *, formals: Collection[str] | None = None
) -> list[PlantedInput]:
    """Plant every fault of every input of the operators, and find which inputs of a check catch it.

    Args:
        model: Its attentions can be tapped.
        runtime: Where it runs; an input that it refuses is no fault.
        check: Sizes and inputs.
        formals: Names of the operators' inputs; None = all.

    Raises:
        SessionError: If the runtime fails on the model itself.
    """
    inputs = [one for one in operator_inputs(model) if formals is None or one[1] in formals]
    if not inputs or isinstance(runtime.supports(model), Unsupported):
        return []
    tapped = model.tapped()
    found: dict[tuple[str, str, str], PlantedInput] = {}
    with runtime.load(tapped, LoadOptions(threads=check.threads)) as session:
        for step in ladder(model, session, check):
            outputs = session.run(step.feeds)
            checked = RunContext(
                model=model, runtime=runtime.name, ran=session.ran(), check=step.check, step=step.word, target=""
            )
            if _is_noticed(checked, step, outputs):
                continue  # the runtime itself is wrong here
            for node, formal, value in inputs:
                for fault in input_faults(step.feeds[value]):
                    planted = PlantedInput(node=node, formal=formal, fault=fault, value=value)
                    one = found.setdefault((node, formal, fault.name), planted)
                    if not one.caught_by:
                        _try(one, checked, session, step, outputs)
    return list(found.values())


def _try(one: PlantedInput, checked: RunContext, session: Session, step: InputStep, outputs: Feeds) -> None:
    read = {name for site in checked.model.sites for name in site.inputs.values()}
    try:
        changed = session.run({**step.feeds, one.value: one.fault.change(step.feeds[one.value])})
    except ProcessDiedError:
        raise
    except SessionError:
        return  # the changed input is not legal
    planted = {name: array if name in read else changed[name] for name, array in outputs.items()}
    if all(planted[name].tobytes() == array.tobytes() for name, array in outputs.items()):
        return
    one.shows = True
    if _is_noticed(checked, step, planted):
        one.caught_by = step.word


def _is_noticed(checked: RunContext, step: InputStep, outputs: Feeds) -> bool:
    return any(record.verdict in _NOTICED for record in judge_outputs(checked, step, outputs, ExpectationCache()))


def records_of_inputs(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, *, target: str
) -> Iterator[PlantedRecord]:
    """The results of `prove_inputs` as records."""
    for one in prove_inputs(model, runtime, check):
        says = f"{one.formal} {one.fault.says}"
        outcome, reason = Outcome.OK, ""
        if not one.caught_by:
            outcome = Outcome.FAILED if one.shows else Outcome.SKIPPED
            unseen = "It changes no output on any of these inputs, or the runtime refuses it."
            reason = f"These inputs would not have shown that {says}." if one.shows else unseen
        yield PlantedRecord(
            target=target,
            case=target,
            form=model.facts.form.value,
            opset=model.opset,
            runtime=runtime.name,
            outcome=outcome,
            reason=reason,
            site=one.node,
            dtype=model.facts.dtype.value,
            fault=f"{one.formal}-{one.fault.name}",
            says=says,
            caught_by=one.caught_by,
        )
