"""Convert a file and write the result only if it is verified.

The file that is written is byte for byte the one that was verified. Does not choose forms and does not judge.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.records.records import AttentionRecord, Outcome
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.files.external_data import tensors_of
from sdpa_onnx.graph.files.saved_files import staged
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.lifted_model import LiftedModel
from sdpa_onnx.workflows.choose_form.form_strategy import FormStrategy
from sdpa_onnx.workflows.convert.convert_model import ConvertedModel, convert_model
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from sdpa_onnx.workflows.convert.proof import ConversionProof, prove_conversion
from sdpa_onnx.workflows.convert.proof_process import prove_apart
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from sdpa_onnx.workflows.verify.inspect_file import attention_records

__all__ = ["Conversion", "ProofOptions", "convert_and_prove", "prove_converted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOptions:
    """Options of the proof of a result.

    Args:
        runtime: Name of the runtime on which the result must be right.
        seed: Seed of the inputs.
        threads: Threads inside one operator.
        patience_seconds: Run the runtime in a separate process, and stop it after this
            long without an answer; None = in this process, without a limit.
        effort: How much is run; None = the default.
        on_size: Called with (done, of) after each size set.
    """

    runtime: str = "ort-cpu"
    seed: int = 0
    threads: int = 1
    patience_seconds: float | None = None
    effort: RunEffort | None = None
    on_size: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The conversion of a file.

    Args:
        converted: The result, with the attentions that were found.
        attentions: One record per attention: what it is, and whether it was converted.
        proof: The proof; None where nothing was converted.
        path: The file that was written, or None.
    """

    converted: ConvertedModel
    attentions: tuple[AttentionRecord, ...]
    proof: ConversionProof | None
    path: Path | None

    @property
    def is_right(self) -> bool:
        """Whether there is a result and no judgement fails."""
        if self.proof is not None:
            return self.proof.is_right
        return bool(self.converted.already)


def convert_and_prove(
    path: Path,
    output: Path,
    form: Form | FormStrategy,
    options: LowerOptions | None = None,
    *,
    opset: int | None = None,
    again: bool = False,
    rows_may_be_empty: bool = True,
    proof: ProofOptions | None = None,
) -> Conversion:
    """Convert a file; the result is written in one step, and only if its proof passes.

    Where every attention already has the form, the file is written unchanged.

    Args:
        path: The file.
        output: Path of the result; may be the file itself.
        form: The form to write, or the strategy that chooses one for each attention.
        options: Options within a form.
        opset: Of the result; None = the file's own wherever the form allows.
        again: Also rewrite attentions that already have the form.
        rows_may_be_empty: Whether padding may hide every key of a query, see `convert_model`. If not, the proof
            feeds only masks under which every query sees its first key.
        proof: Options of the proof.

    Raises:
        ModelError: If the file cannot be read, contains no attention, cannot be raised to the opset that the form
            needs, runs on no runtime, or the result cannot be written.
        PlanError: If the requested opset is older than the file's.
    """
    model = load_model(path)
    converted = convert_model(model, form, options, opset=opset, again=again, rows_may_be_empty=rows_may_be_empty)
    attentions = attention_fates(model, converted, str(path))
    if not attentions:
        raise ModelError(f"{path} has no attention in it.", hint="Neither an operator nor softmax(QK^T) V was found.")
    if not converted.converted:
        written = model.save(output) if converted.already else None
        return Conversion(converted=converted, attentions=attentions, proof=None, path=written)
    with staged(converted.model.ir, output) as draft:
        proved = _prove_draft(path, converted, draft.path, str(output), proof or ProofOptions())
        written = draft.commit() if proved.is_right else None
    return Conversion(converted=converted, attentions=attentions, proof=proved, path=written)


def prove_converted(converted: ConvertedModel, *, target: str, proof: ProofOptions | None = None) -> ConversionProof:
    """Prove a result in memory, see `proof.prove_conversion`."""
    return _prove_here(converted, converted.model, target, proof or ProofOptions())


def attention_fates(model: OnnxModel, converted: ConvertedModel, target: str) -> tuple[AttentionRecord, ...]:
    """One record per attention of the source, with its new form or the reason why it has none."""
    lifted = LiftedModel(model=converted.source, found=converted.found)
    records = attention_records(model, lifted, target=target)
    return tuple(
        _with_fate(record, found.node, converted) for record, found in zip(records, converted.found, strict=True)
    )


def _with_fate(record: AttentionRecord, node: str, converted: ConvertedModel) -> AttentionRecord:
    if record.spec is not None and record.node in converted.converted:
        return msgspec.structs.replace(record, converted_to=converted.form)
    if node in converted.refused:
        return msgspec.structs.replace(record, outcome=Outcome.UNSUPPORTED, reason=converted.refused[node])
    return record


def _prove_draft(
    path: Path, converted: ConvertedModel, draft: Path, target: str, options: ProofOptions
) -> ConversionProof:
    """The proof of a written draft; a model with external data is loaded in a separate process only."""
    in_files = any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors_of(converted.model.ir))
    if in_files and options.patience_seconds is not None:
        return prove_apart(
            path,
            draft,
            runtime=options.runtime,
            target=target,
            seed=options.seed,
            threads=options.threads,
            patience_seconds=options.patience_seconds,
            rows_may_be_empty=converted.rows_may_be_empty,
            requested=() if options.effort is None else options.effort.requested,
        )
    return _prove_here(converted, load_model(draft), target, options)


def _prove_here(converted: ConvertedModel, result: OnnxModel, target: str, options: ProofOptions) -> ConversionProof:
    with own_process(get_runtime(options.runtime), options.patience_seconds) as runtime:
        return prove_conversion(
            converted.source,
            result,
            runtime,
            target=target,
            seed=options.seed,
            threads=options.threads,
            effort=replace(options.effort or RunEffort(), rows_may_be_empty=converted.rows_may_be_empty),
            on_size=options.on_size,
        )
