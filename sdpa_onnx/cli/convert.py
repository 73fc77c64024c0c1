"""`sdpa-onnx convert`: convert every attention of a file to another form, verify it, and only then write it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sdpa_onnx.cli.error_boundary import DISAGREES, OK, pin_threads, print_note, with_exit_codes
from sdpa_onnx.cli.help.completion import complete_runtime
from sdpa_onnx.cli.options import (
    AUTO_SECONDS,
    PATIENCE_SECONDS,
    AutoSeconds,
    AutoSizes,
    Debug,
    Json,
    ModelFile,
    Output,
    Quiet,
    Seed,
    Threads,
    Timeout,
    Verbose,
    check_auto_options,
    parse_size_sets,
)
from sdpa_onnx.cli.output_checks import check_output
from sdpa_onnx.cli.process.limited_steps import with_limited_steps
from sdpa_onnx.cli.process.shared_processes import with_shared_processes
from sdpa_onnx.cli.show import print_json, show_result
from sdpa_onnx.cli.step_progress import StepProgress
from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sdpa_onnx.core.records.records import FormRecord
    from sdpa_onnx.workflows.convert.convert_file import Conversion

__all__ = ["convert"]

FormName = Literal["decomposed", "attention", "blocked", "ort-mha", "ort-gqa", "auto"]
Placement = Literal["query", "scores", "both"]
Inner = Literal["attention", "decomposed"]
OneRuntime = Annotated[
    str, typer.Option("--runtime", help="Runtime that verifies the result.", autocompletion=complete_runtime)
]


@with_exit_codes
@with_shared_processes
@with_limited_steps
def convert(
    model: ModelFile,
    output: Output,
    *,
    form: Annotated[
        FormName, typer.Option("--form", help="Form of every attention in the result.", show_default=False)
    ],
    opset: Annotated[
        int | None, typer.Option("--opset", help="Opset of the result. Default: the file's, if the form has it.")
    ] = None,
    runtime: OneRuntime = "ort-cpu",
    scale_placement: Annotated[
        Placement | None, typer.Option("--scale-placement", help="decomposed, blocked: where to multiply by the scale.")
    ] = None,
    inner: Annotated[Inner | None, typer.Option("--inner", help="blocked: form of each block.")] = None,
    no_empty_rows: Annotated[
        bool,
        typer.Option(
            "--no-empty-rows",
            help="Assume that every query sees a key, so that masks that are causal except for padding become causal.",
        ),
    ] = False,
    at: AutoSizes = [],
    seconds: AutoSeconds = None,
    timeout: Timeout = PATIENCE_SECONDS,
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Convert every attention of a file to another form, verify it against the file, and only then write it."""
    pin_threads(threads)
    check_output(output)
    check_auto_options(form, at, seconds)
    options = _options(form, scale_placement, inner)
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.choose_form.choose import RaceBudget
    from sdpa_onnx.workflows.convert.convert_file import ProofOptions
    from sdpa_onnx.workflows.convert.convert_for_runtime import ConversionTask, convert_fastest, convert_for

    pick_runtimes([runtime])
    with StepProgress(f"converting {model}") as progress:
        proof = ProofOptions(
            runtime=runtime,
            seed=seed,
            threads=threads,
            patience_seconds=timeout,
            on_size=progress.sizes("proving", after=None),
        )
        task = ConversionTask(path=model, output=output, opset=opset, proof=proof, rows_may_be_empty=not no_empty_rows)
        if form == "auto":
            done, forms = convert_fastest(
                task, RaceBudget(seconds=seconds or AUTO_SECONDS), at=parse_size_sets(at), on_step=progress.at
            )
        else:
            again = no_empty_rows or any(value is not None for value in (opset, scale_placement, inner))
            done, forms = convert_for(task, Form(form), options, again=again)
    return _show(done, forms, output, as_json=json, opset=opset)


def _options(form: FormName, scale_placement: Placement | None, inner: Inner | None) -> LowerOptions:
    if inner is not None and form != "blocked":
        raise PlanError("--inner requires --form blocked.", hint="Leave out --inner.")
    if scale_placement is not None and form not in ("decomposed", "blocked"):
        raise PlanError("--scale-placement requires --form decomposed or blocked.", hint="Leave out --scale-placement.")
    return LowerOptions(
        scale_placement=None if scale_placement is None else ScalePlacement(scale_placement),
        inner=None if inner is None else Form(inner),
    )


def _show(done: "Conversion", forms: "Sequence[FormRecord]", output: Path, *, as_json: bool, opset: int | None) -> int:
    from sdpa_onnx.report.run.convert_text import convert_result
    from sdpa_onnx.workflows.export.export_for_runtime import workaround_words

    result = convert_result(done, forms, str(output), opset=opset)
    if as_json:
        seen = () if done.proof is None else (*done.proof.records, *done.proof.source)
        print_json([*done.attentions, *seen, *forms])
        for line in (*workaround_words(forms), result.verdict):
            print_note(line)
    else:
        show_result(result)
    return DISAGREES if done.path is None else OK
