"""Run the proof of a large result in a separate process, which reads source and result from their files.

The process that converts never holds the weights of the model. Judges nothing itself: `proof` does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from sdpa_onnx.core.records.records import AgreementRecord, Outcome
from sdpa_onnx.errors import ModelError, SdpaOnnxError
from sdpa_onnx.graph.files.large import is_large, number_bytes
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift
from sdpa_onnx.workflows.check.run_context import failed_record
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from sdpa_onnx.workflows.convert.proof import ConversionProof, prove_conversion
from sdpa_onnx.workflows.isolate.isolated_function import CallFailure, IsolatedFunction

__all__ = ["answer", "prove_apart"]


# Every run reads all weights of a large model: few runs of the complete graph, the usual ones of each attention.
_FEW = RunEffort(count=2, spreads=(1.0,))


class _ProofRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request to the worker, as JSON.

    Args:
        source, result: Files.
        runtime: Name of the runtime, which the worker itself loads.
        target: Name for the records.
        seed: Seed of the inputs.
        threads: Threads inside one operator.
        rows_may_be_empty: How to read the source, see `convert_model`.
        requested: Sizes of some axes at which the result is judged too, one size set each.
    """

    source: str
    result: str
    runtime: str
    target: str
    seed: int
    threads: int
    rows_may_be_empty: bool
    requested: tuple[dict[str, int], ...] = ()


class _ProofReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of the worker: a refusal, or the parts of a `ConversionProof`."""

    refusal: str = ""
    records: tuple[AgreementRecord, ...] = ()
    source: tuple[AgreementRecord, ...] = ()
    sizes_tried: int = 0
    notes: tuple[str, ...] = ()
    sizes: tuple[dict[str, int], ...] = ()
    longest: int = 0
    untested: tuple[int, ...] = ()
    hint: str = ""


def prove_apart(  # noqa: PLR0913  # one argument per field of the request
    source: Path,
    result: Path,
    *,
    runtime: str,
    target: str,
    seed: int,
    threads: int,
    patience_seconds: float,
    rows_may_be_empty: bool = True,
    requested: Sequence[Mapping[str, int]] = (),
) -> ConversionProof:
    """Prove a result in a new process; a crash of the runtime is a failed record.

    Args:
        source: File of the source.
        result: File of the result.
        runtime: Name of the runtime.
        target: Name for the records.
        seed: Seed of the inputs.
        threads: Threads inside one operator.
        patience_seconds: Longest wait for the proof.
        rows_may_be_empty: How to read the source, see `convert_model`.
        requested: Sizes of some axes at which the result is judged too, one size set each.

    Raises:
        ModelError: If the source runs on no runtime, or no inputs can be drawn for it.
        RuntimeUnavailableError: If no process starts.
    """
    request = _ProofRequest(
        source=str(source),
        result=str(result),
        runtime=runtime,
        target=target,
        seed=seed,
        threads=threads,
        rows_may_be_empty=rows_may_be_empty,
        requested=tuple(dict(sizes) for sizes in requested),
    )
    with IsolatedFunction(answer, who=runtime, attempts=1) as worker:
        data = worker.call(msgspec.json.encode(request), patience_seconds=patience_seconds)
    if isinstance(data, CallFailure):
        model = load_model(result)
        check = CheckOptions(sizes={}, seed=seed, threads=threads)
        outcome = Outcome.TIMED_OUT if data.is_timeout else Outcome.FAILED
        failed = failed_record(model, runtime, check, target=target, reason=data.reason, outcome=outcome)
        return ConversionProof(records=(failed,))
    found = msgspec.json.decode(data.data, type=_ProofReply)
    if found.refusal:
        raise ModelError(found.refusal)
    return ConversionProof(
        records=found.records,
        source=found.source,
        sizes_tried=found.sizes_tried,
        notes=found.notes,
        sizes=found.sizes,
        longest=found.longest,
        untested=found.untested,
        hint=found.hint,
    )


def answer(data: bytes) -> bytes:
    """Prove, in the worker.

    Args:
        data: The request, as JSON.

    Returns:
        A refusal, or the parts of the proof, as JSON.
    """
    return msgspec.json.encode(_answer(msgspec.json.decode(data, type=_ProofRequest)))


def _answer(request: _ProofRequest) -> _ProofReply:
    try:
        source = load_model(request.source)
        large = is_large(source.ir)
        proof = prove_conversion(
            lift(source, rows_may_be_empty=request.rows_may_be_empty).model,
            load_model(request.result),
            get_runtime(request.runtime),
            target=request.target,
            seed=request.seed,
            threads=request.threads,
            effort=replace(
                _FEW if large else RunEffort(),
                rows_may_be_empty=request.rows_may_be_empty,
                requested=request.requested,
            ),
        )
    except SdpaOnnxError as error:
        return _ProofReply(refusal=str(error))
    return _ProofReply(
        records=proof.records,
        source=proof.source,
        sizes_tried=proof.sizes_tried,
        notes=(*proof.notes, *([_few_note(source, proof)] if large else [])),
        sizes=tuple(dict(sizes) for sizes in proof.sizes),
        longest=proof.longest,
        untested=proof.untested,
        hint=proof.hint,
    )


def _few_note(source: OnnxModel, proof: ConversionProof) -> str:
    size = f"{number_bytes(source.ir) / 1e9:.1f} GB of weights"
    at = f"{proof.sizes_tried} size set{'s' * (proof.sizes_tried != 1)}"
    return (
        f"The model has {size}: the complete graph ran at {at} and logit spread 1 only, each attention by itself at "
        "every spread."
    )
