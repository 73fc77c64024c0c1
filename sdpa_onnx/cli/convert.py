"""`sdpa-onnx convert`: every attention of a file in another form, proved against the file before it is written."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sdpa_onnx.cli.error_boundary import DISAGREES, OK, guarded, pin_threads, tell
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

# Findings beyond these are counted, not listed.
_LISTED = 3
_ONE_SIZE = (
    "At the other sizes that were tried the file does not run: an axis is fixed inside it, which `sdpa-onnx inspect` "
    "names, so this is proved at one size only."
)


@guarded
def convert(
    model: ModelFile,
    output: Output,
    *,
    form: Annotated[FormName, typer.Option("--form", help="What every attention becomes.", show_default=False)],
    opset: Annotated[
        int | None, typer.Option("--opset", help="Of the result. Default: the file's own, if the form has it.")
    ] = None,
    runtime: Annotated[str, typer.Option("--runtime", help="Where it is proved.")] = "ort-cpu",
    scale_placement: Annotated[
        Placement | None, typer.Option("--scale-placement", help="decomposed: where the scale is multiplied in.")
    ] = None,
    inner: Annotated[Inner | None, typer.Option("--inner", help="blocked: what a block is computed by.")] = None,
    no_empty_rows: Annotated[
        bool,
        typer.Option(
            "--no-empty-rows",
            help="Every query sees a key: causality may be used where padding alone could hide a whole row.",
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
    """Write every attention of a file in another form, prove it against the file, and only then write it."""
    pin_threads(threads)
    check_output(output)
    check_auto_options(form, at, seconds)
    options = _options(form, scale_placement, inner)
    asked = parse_size_sets(at)
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
                task, RaceBudget(seconds=seconds or AUTO_SECONDS), at=asked, on_step=progress.at
            )
        else:
            again = no_empty_rows or any(value is not None for value in (opset, scale_placement, inner))
            done, forms = convert_for(task, Form(form), options, again=again)
    return _show(done, forms, output, as_json=json, opset=opset)


def _options(form: FormName, scale_placement: Placement | None, inner: Inner | None) -> LowerOptions:
    if inner is not None and form != "blocked":
        raise PlanError("--inner is of the form blocked.", hint="Leave it out.")
    if scale_placement is not None and form not in ("decomposed", "blocked"):
        raise PlanError("--scale-placement is of the forms decomposed and blocked.", hint="Leave it out.")
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
        tell(line)
    if done.path is None:
        tell(f"{output} was not written: {_why(done)}")
        return DISAGREES
    tell(f"wrote {output}{'' if done.proof is not None else ', equal to the source'}")
    return OK


def _print(done: "Conversion", forms: "Sequence[FormRecord]", opset: int | None) -> None:
    """What was found and seen, for a person."""
    from sdpa_onnx.core.records.records import Outcome
    from sdpa_onnx.report.run.form_table import attentions_alike, limits_of_chosen, told_forms

    said: set[str] = set()
    lines = {record.node: f"{_figures(record)}; {_fate(record, done.converted.form)}" for record in done.attentions}
    alike: dict[str, list[AttentionRecord]] = {}
    for record in done.attentions:
        alike.setdefault(lines[record.node].replace(record.node, ""), []).append(record)
    for records in alike.values():
        names = [record.node for record in records]
        print(f"  {attentions_alike(names)}: {lines[names[0]]}")
        for warning in dict.fromkeys(warning for record in records for warning in record.warnings):
            if warning not in said:
                print(f"  warning: {warning}")
            said.add(warning)
    for line in _raised(done, opset):
        print(line)
    if any(form.median_seconds for form in forms):
        show_records(told_forms(forms), as_json=False)
        for line in limits_of_chosen(forms):
            print(f"warning: {line}")
    if done.proof is not None:
        for line in _seen(done.proof, done.attentions[0].static_axes):
            print(line)
    if any(one.outcome is Outcome.TIMED_OUT for one in (*forms, *(done.proof.records if done.proof else ()))):
        print(TIMEOUT_HINT)


def _figures(record: "AttentionRecord") -> str:
    from sdpa_onnx.cli.inspect import describe_attention

    line = record.dialect if record.spec is None else describe_attention(record)
    return line.removeprefix(f"  {record.node}: ")


def _fate(record: "AttentionRecord", form: str) -> str:
    if record.converted_to:
        return f"converted to {record.converted_to}"
    if record.spec is None:
        return f"not converted, as it cannot be read: {record.reason}"
    return f"not converted: {record.reason}" if record.reason else f"already in form {form}: copied unchanged"


def _raised(done: "Conversion", opset: int | None) -> list[str]:
    if not done.converted.is_raised:
        return []
    before, after = done.converted.source.opset, done.converted.model.opset
    why = "which the form needs" if opset is None else "as --opset asks"
    return [f"The whole graph was converted from opset {before} to {after}, {why}."]


def _seen(proof: "ConversionProof", fixed: "Sequence[str]") -> list[str]:
    """What the proof saw, for a person."""
    from sdpa_onnx.core.records.records import Subject

    judged = [record for record in proof.records if record.verdict is not None]
    bad = [record for record in proof.records if record.outcome != "ok"]
    runtimes = sorted({record.runtime for record in judged or bad if record.subject is not Subject.READING})
    outputs = [record for record in judged if record.subject is Subject.OUTPUT]
    worst = max(outputs, key=lambda record: record.max_bound_ratio, default=None)
    lines = [
        (
            f"Proof on {', '.join(runtimes)}: {len(judged)} judgements at {_size_words(proof)}, "
            f"{len(bad)} of them against it."
        )
    ]
    if fixed:
        lines.append(f"Fixed axes: {'; '.join(fixed)}.")
    if proof.is_right and proof.sizes_tried == 1 and any(proof.sizes):
        lines.append(_ONE_SIZE)
    if worst is not None:
        lines.append(f"Worst output ({worst.site}): {worst.diagnosis}")
    lines += list(proof.notes)
    seen = list(dict.fromkeys(f"  {_evidence(record)}" for record in bad))
    lines += seen[:_LISTED]
    if len(seen) > _LISTED:
        lines.append(f"  and {len(seen) - _LISTED} more, see --json")
    return lines


def _size_words(proof: "ConversionProof") -> str:
    count = f"{proof.sizes_tried} size{'s' if proof.sizes_tried > 1 else ''}"
    sets = [", ".join(f"{axis} {size}" for axis, size in sizes.items()) for sizes in proof.sizes]
    named = "; ".join(words for words in sets if words)
    return f"{count} ({named})" if named else count


def _evidence(record: "AgreementRecord") -> str:
    from sdpa_onnx.report.text.labels import site_in_words

    where = site_in_words(record) or record.runtime
    figures = {"batch": record.sizes.batch_size, "q": record.sizes.q_seq_len, "kv": record.sizes.kv_seq_len}
    sizes = ", ".join(f"{word} {size}" for word, size in figures.items() if size >= 0)
    at = f" ({', '.join(part for part in (record.inputs, sizes) if part)})" if record.inputs or sizes else ""
    return f"{where}{at}: {record.verdict or record.outcome}. {record.diagnosis or record.reason}"


def _why(done: "Conversion") -> str:
    if done.proof is None:
        return "no attention of it could be converted, see the reasons above."
    bad = [record for record in done.proof.records if record.outcome != "ok"]
    if all(record.outcome.is_failure for record in bad):
        return "the result was not proved, as it failed, see above."
    return "the result does not compute what the source computes, see above."
