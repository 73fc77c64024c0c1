"""`sdpa-onnx convert`: convert every attention of a file to another form, verify it, and only then write it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sdpa_onnx.cli.error_boundary import DISAGREES, OK, pin_threads, print_message, with_exit_codes
from sdpa_onnx.cli.options import (
    AUTO_SECONDS,
    PATIENCE_SECONDS,
    TIMEOUT_HINT,
    AutoSeconds,
    AutoSizes,
    Debug,
    Json,
    ModelFile,
    Output,
    Seed,
    Threads,
    Timeout,
    check_auto_options,
    parse_size_sets,
)
from sdpa_onnx.cli.output_checks import check_output
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.shared_processes import with_shared_processes
from sdpa_onnx.cli.show import print_json, show_records
from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sdpa_onnx.core.records.records import AgreementRecord, AttentionRecord, FormRecord
    from sdpa_onnx.workflows.convert.convert_file import Conversion
    from sdpa_onnx.workflows.convert.proof import ConversionProof

__all__ = ["convert"]

FormName = Literal["decomposed", "attention", "blocked", "ort-mha", "ort-gqa", "auto"]
Placement = Literal["query", "scores", "both"]
Inner = Literal["attention", "decomposed"]

# More findings than these are counted, not listed.
_LISTED = 3
_ONE_SIZE = (
    "This is proved at one size only: the file does not run at the other sizes that were tried, because an axis is "
    "fixed inside it. `sdpa-onnx inspect` names the axis."
)


@with_exit_codes
@with_shared_processes
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
    runtime: Annotated[str, typer.Option("--runtime", help="Runtime that verifies the result.")] = "ort-cpu",
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
    debug: Debug = False,
) -> int:
    """Convert every attention of a file to another form, verify it against the file, and only then write it."""
    pin_threads(threads)
    check_output(output)
    check_auto_options(form, at, seconds)
    options = _options(form, scale_placement, inner)
    sizes = parse_size_sets(at)
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.choose_form.choose import RaceBudget
    from sdpa_onnx.workflows.convert.convert_file import ProofOptions
    from sdpa_onnx.workflows.convert.convert_for_runtime import ConversionTask, convert_fastest, convert_for

    pick_runtimes([runtime])
    with Progress(10.0) as progress:
        progress.at(f"converting {model}")
        proof = ProofOptions(
            runtime=runtime,
            seed=seed,
            threads=threads,
            patience_seconds=timeout,
            on_size=lambda size, of: progress.at(f"proving: {size} of {of} sizes"),
        )
        task = ConversionTask(path=model, output=output, opset=opset, proof=proof, rows_may_be_empty=not no_empty_rows)
        if form == "auto":
            done, forms = convert_fastest(
                task, RaceBudget(seconds=seconds or AUTO_SECONDS), at=sizes, on_step=progress.at
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
        scale_placement=ScalePlacement.QUERY if scale_placement is None else ScalePlacement(scale_placement),
        inner=None if inner is None else Form(inner),
    )


def _show(done: "Conversion", forms: "Sequence[FormRecord]", output: Path, *, as_json: bool, opset: int | None) -> int:
    from sdpa_onnx.workflows.export.export_for_runtime import workaround_words

    if as_json:
        seen = () if done.proof is None else (*done.proof.records, *done.proof.source)
        print_json([*done.attentions, *seen, *forms])
    else:
        _print(done, forms, opset)
    for line in workaround_words(forms):
        print_message(line)
    if done.path is None:
        print_message(f"{output} was not written: {_failure_reason(done)}")
        return DISAGREES
    print_message(f"wrote {output}{'' if done.proof is not None else ', identical to the source'}")
    return OK


def _print(done: "Conversion", forms: "Sequence[FormRecord]", opset: int | None) -> None:
    """Print the attentions, the table of forms and the proof."""
    from sdpa_onnx.core.records.records import Outcome
    from sdpa_onnx.report.run.form_table import attention_names, forms_to_print, limits_of_chosen

    printed: set[str] = set()
    lines = {
        record.node: f"{_description(record)}; {_conversion_note(record, done.converted.form)}"
        for record in done.attentions
    }
    alike: dict[str, list[AttentionRecord]] = {}
    for record in done.attentions:
        alike.setdefault(lines[record.node].replace(record.node, ""), []).append(record)
    for records in alike.values():
        names = [record.node for record in records]
        print(f"  {attention_names(names)}: {lines[names[0]]}")
        for warning in dict.fromkeys(warning for record in records for warning in record.warnings):
            if warning not in printed:
                print(f"  warning: {warning}")
            printed.add(warning)
    for line in _opset_lines(done, opset):
        print(line)
    if any(form.median_seconds for form in forms):
        show_records(forms_to_print(forms), as_json=False)
        for line in limits_of_chosen(forms):
            print(f"warning: {line}")
    if done.proof is not None:
        for line in _proof_lines(done.proof, done.attentions[0].static_axes):
            print(line)
    if any(one.outcome is Outcome.TIMED_OUT for one in (*forms, *(done.proof.records if done.proof else ()))):
        print(TIMEOUT_HINT)


def _description(record: "AttentionRecord") -> str:
    from sdpa_onnx.cli.inspect import describe_attention

    line = record.dialect if record.spec is None else describe_attention(record)
    return line.removeprefix(f"  {record.node}: ")


def _conversion_note(record: "AttentionRecord", form: str) -> str:
    if record.converted_to:
        return f"converted to {record.converted_to}"
    if record.spec is None:
        return f"not converted because it cannot be read: {record.reason}"
    return f"not converted: {record.reason}" if record.reason else f"already in form {form}: copied unchanged"


def _opset_lines(done: "Conversion", opset: int | None) -> list[str]:
    if not done.converted.is_raised:
        return []
    before, after = done.converted.source.opset, done.converted.model.opset
    why = "the form requires it" if opset is None else "--opset requires it"
    return [f"The whole graph was converted from opset {before} to {after} because {why}."]


def _proof_lines(proof: "ConversionProof", fixed: "Sequence[str]") -> list[str]:
    """Describe the result of the proof."""
    from sdpa_onnx.core.records.records import Subject
    from sdpa_onnx.report.text.tally import bound_ratio
    from sdpa_onnx.workflows.check.long_sizes import reach_in_words

    judged = [record for record in proof.records if record.verdict is not None]
    bad = [record for record in proof.records if record.outcome != "ok"]
    runtimes = sorted({record.runtime for record in judged or bad if record.subject is not Subject.READING})
    outputs = [record for record in judged if record.subject is Subject.OUTPUT]
    worst = max(outputs, key=bound_ratio, default=None)
    lines = [
        (
            f"Proof on {', '.join(runtimes)}: {len(judged)} judgements at {_sizes_in_words(proof)}, "
            f"{len(bad)} of them failed."
        )
    ]
    if fixed:
        lines.append(f"Fixed axes: {'; '.join(fixed)}.")
    if proof.is_right and proof.sizes_tried == 1 and any(proof.sizes):
        lines.append(_ONE_SIZE)
    if worst is not None:
        lines.append(f"Worst output ({worst.site}): {worst.diagnosis}")
    reach = reach_in_words(proof.longest, proof.untested)
    lines += [reach] if reach else []
    lines += list(proof.notes)
    seen = list(dict.fromkeys(f"  {_finding(record)}" for record in bad))
    lines += seen[:_LISTED]
    if len(seen) > _LISTED:
        lines.append(f"  and {len(seen) - _LISTED} more, see --json")
    return lines


def _sizes_in_words(proof: "ConversionProof") -> str:
    count = f"{proof.sizes_tried} size{'s' if proof.sizes_tried > 1 else ''}"
    from sdpa_onnx.workflows.check.long_sizes import sizes_in_words

    named = "; ".join(sizes_in_words(sizes) for sizes in proof.sizes if sizes)
    return f"{count} ({named})" if named else count


def _finding(record: "AgreementRecord") -> str:
    from sdpa_onnx.report.text.labels import site_in_words

    where = site_in_words(record) or record.runtime
    figures = {"batch": record.sizes.batch_size, "q": record.sizes.q_seq_len, "kv": record.sizes.kv_seq_len}
    sizes = ", ".join(f"{word} {size}" for word, size in figures.items() if size is not None)
    at = f" ({', '.join(part for part in (record.inputs, sizes) if part)})" if record.inputs or sizes else ""
    return f"{where}{at}: {record.verdict or record.outcome}. {record.diagnosis or record.reason}"


def _failure_reason(done: "Conversion") -> str:
    if done.proof is None:
        return "no attention could be converted, see the reasons above."
    bad = [record for record in done.proof.records if record.outcome != "ok"]
    if all(record.outcome.is_failure for record in bad):
        return "the result could not be verified because it failed, see above."
    return "the result differs from the source, see above."
