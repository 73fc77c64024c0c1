"""Convert a file for a runtime: one form with its workarounds there, or the fastest form of each attention.

Does not probe or time itself: the strategies of `choose_form` do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.long_sizes import is_affordable
from sdpa_onnx.workflows.choose_form.attention_sizes import sizes_by_name
from sdpa_onnx.workflows.choose_form.choose import RaceBudget
from sdpa_onnx.workflows.choose_form.form_strategy import FormStrategy
from sdpa_onnx.workflows.choose_form.runtime_strategies import FastestForm, RuntimeForm
from sdpa_onnx.workflows.convert.convert_file import Conversion, ProofOptions, convert_and_prove
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from sdpa_onnx.workflows.convert.upgrade_opset import stays_below
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process

__all__ = ["ConversionTask", "convert_fastest", "convert_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionTask:
    """A file to convert, the path of the result, and the options of its proof.

    Args:
        path: The file.
        output: Path of the result.
        opset: Of the result; None = the file's own wherever the form allows.
        proof: Options of the proof; names the runtime.
        rows_may_be_empty: Whether padding may hide every key of a query, see `convert_model`.
    """

    path: Path
    output: Path
    opset: int | None
    proof: ProofOptions
    rows_may_be_empty: bool = True

    def convert(self, strategy: FormStrategy, *, again: bool) -> Conversion:
        """Convert with a strategy, and prove the result."""
        return convert_and_prove(
            self.path,
            self.output,
            strategy,
            opset=self.opset,
            again=again,
            rows_may_be_empty=self.rows_may_be_empty,
            proof=self.proof,
        )


def convert_for(
    task: ConversionTask, form: Form, options: LowerOptions, *, again: bool
) -> tuple[Conversion, tuple[FormRecord, ...]]:
    """Convert to one form, written so that the runtime computes it correctly; see `convert_and_prove`.

    Returns:
        The conversion, and the records of the probes on the runtime.
    """
    with own_process(get_runtime(task.proof.runtime), task.proof.patience_seconds) as runtime:
        strategy = RuntimeForm(runtime=runtime, form=form, options=options)
        conversion = task.convert(strategy, again=again)
    return conversion, strategy.records


def convert_fastest(
    task: ConversionTask, budget: RaceBudget, *, at: Sequence[Mapping[str, int]], on_step: Callable[[str], None]
) -> tuple[Conversion, tuple[FormRecord, ...]]:
    """Convert every attention to the form that is right and fastest on the runtime; see `convert_and_prove`.

    Args:
        task: The file.
        budget: What is timed, and how long.
        at: Sizes of the file's own axes to time and to judge at; () = those of the budget.
        on_step: Called with the name of each step, for progress.

    Returns:
        The conversion, and the records that explain each choice.
    """
    runtime = get_runtime(task.proof.runtime)
    model = load_model(task.path)
    sizes = sizes_by_name(model, runtime, at) if at else {}
    strategy = FastestForm(
        runtime=runtime,
        budget=replace(budget, threads=task.proof.threads, seed=task.proof.seed),
        sizes=sizes,
        cannot_hold=stays_below(model, task.opset),
        on_step=on_step,
    )
    # What is timed is judged there too, up to the length that a float64 run can afford; the proof states the longest.
    requested = [one for one in at if is_affordable(model, one, model.facts.batch_axes)]
    effort = replace(task.proof.effort or RunEffort(), requested=requested)
    proved = replace(task, proof=replace(task.proof, effort=effort))
    conversion = proved.convert(strategy, again=True)
    return conversion, strategy.records
