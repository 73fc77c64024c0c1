"""Judge a model against the float64 oracle for a test, as `sdpa-onnx verify` does, and form the failure message."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Record, Sizes
from sdpa_onnx.report.text.labels import site_in_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sdpa_onnx.api import ModelSource
    from sdpa_onnx.graph.model import OnnxModel

__all__ = ["find_disagreement"]

# Greatest number of findings in a failure message; the others are counted.
_SHOWN = 5


def find_disagreement(
    model: "ModelSource",
    runtime: str,
    *,
    sizes: Mapping[str, int],
    inputs: "Mapping[str, NDArray[Any]] | str | os.PathLike[str] | None",
    seed: int,
) -> str | None:
    """Judge a model on a runtime.

    Args:
        model: File, `ModelProto`, `onnx_ir.Model` or `OnnxModel`.
        runtime: Its name.
        sizes: Sizes of named axes; the others are chosen.
        inputs: Arrays by input name, or an .npz file of them, instead of random inputs.
        seed: Seed of random inputs.

    Returns:
        Why the model does not agree, with the evidence; None if it agrees.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError: If the runtime is unknown or not installed.
        ModelError: If nothing in the model can be judged.
        PlanError: If a size or an input is wrong.
        SessionError: If the runtime refuses given inputs.
    """
    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.verify.verify_file import verify_file

    names = pick_runtimes([runtime])
    loaded = load_model(model)
    target = str(loaded.path or "the model")
    check = CheckOptions(sizes=dict(sizes), seed=seed, inputs=_arrays(inputs, loaded))
    records = list(verify_file(loaded, names, check, target=target))
    bad = [record for record in records if record.outcome.counted in (Outcome.DISAGREES, Outcome.FAILED)]
    judged = sum(isinstance(record, AgreementRecord) and record.verdict is not None for record in records)
    if not bad:
        return None if judged else _nothing_judged(records, target, runtime)
    command = _command(loaded, runtime, sizes, inputs, seed)
    return "\n".join([_header(bad, judged, target, runtime), *_findings(bad), f"Repeat with: {command}"])


def _arrays(
    inputs: "Mapping[str, NDArray[Any]] | str | os.PathLike[str] | None", model: "OnnxModel"
) -> "Mapping[str, NDArray[Any]] | None":
    if inputs is None:
        return None
    from sdpa_onnx.errors import PlanError
    from sdpa_onnx.workflows.check.given_arrays import read_inputs

    if isinstance(inputs, str | os.PathLike):
        return read_inputs(Path(inputs), model)
    missing = [name for name in model.input_names if name not in inputs]
    if missing:
        raise PlanError(
            f"The inputs have no '{missing[0]}'; they have {', '.join(inputs) or 'nothing'}.",
            hint="Name the arrays like the inputs of the model.",
        )
    return {name: inputs[name] for name in model.input_names}


def _header(bad: Sequence[Record], judged: int, target: str, runtime: str) -> str:
    wrong = [one for one in bad if one.outcome is Outcome.DISAGREES]
    of_those = sum(isinstance(one, AgreementRecord) for one in wrong)
    if wrong:
        return f"{target} disagrees with the float64 oracle on {runtime} ({of_those} of {judged} judgements):"
    return f"{target} could not be judged on {runtime}:"


def _findings(bad: Sequence[Record]) -> list[str]:
    """The first findings, each with its figures."""
    # Disagreements first: a failure may be a consequence.
    ordered = sorted(bad, key=lambda record: record.outcome is not Outcome.DISAGREES)
    lines = [line for record in ordered[:_SHOWN] for line in _finding(record)]
    left = len(bad) - _SHOWN
    return [*lines, f"- and {left} more"] if left > 0 else lines


def _finding(record: Record) -> list[str]:
    if not isinstance(record, AgreementRecord):
        return [f"- {record.reason}"]
    if record.verdict is None:
        return [f"- {site_in_words(record) or record.case}: {record.reason}"]
    where = ", ".join(part for part in (record.dtype, *_sizes(record.sizes), f"seed {record.seed}") if part)
    finding = f"- {site_in_words(record)}, {record.inputs} ({where}) {record.verdict}: {record.reason}"
    figures = "; ".join(_figures(record))
    return [finding, *([f"  {figures}"] if figures else [])]


def _sizes(sizes: Sizes) -> Iterator[str]:
    """The sizes that are known."""
    nouns = {"": sizes.batch_size, " heads": sizes.q_num_heads, " queries": sizes.q_seq_len}
    yield " x ".join(f"{size}{noun}" for noun, size in nouns.items() if size is not None)
    if sizes.kv_seq_len is not None:
        yield f"{sizes.kv_seq_len} keys"


def _figures(record: AgreementRecord) -> Iterator[str]:
    """The figures that are known: none if no element could be compared."""
    if record.max_abs_error is not None:
        yield f"greatest absolute error {record.max_abs_error:.3g}"
    if record.max_relative_error is not None:
        yield f"relative {record.max_relative_error:.3g}"
    if record.max_ulp_error is not None:
        yield f"{record.max_ulp_error:.3g} ulp"
    if record.max_bound_ratio is not None:
        yield f"error over its bound {record.max_bound_ratio:.3g}"
    if record.cosine is not None:
        yield f"cosine {record.cosine:.6f}"
    if record.not_finite is not None:
        yield f"{record.not_finite} not finite"


def _nothing_judged(records: Sequence[Record], target: str, runtime: str) -> str:
    reasons = [record.reason for record in records if record.reason]
    why = f" {reasons[0]}" if reasons else ""
    return f"No output of {target} was judged on {runtime}, so agreement is not shown.{why}"


def _command(
    model: "OnnxModel",
    runtime: str,
    sizes: Mapping[str, int],
    inputs: "Mapping[str, NDArray[Any]] | str | os.PathLike[str] | None",
    seed: int,
) -> str:
    """The command line that repeats the judgement."""
    words = ["sdpa-onnx", "verify", str(model.path or "FILE"), "--runtime", runtime]
    words += [word for axis, size in sizes.items() for word in ("--size", f"{axis}={size}")]
    if inputs is not None:
        words += ["--inputs", str(inputs) if isinstance(inputs, str | os.PathLike) else "FILE.npz"]
    saved = "" if model.path else ", once the model is saved as FILE"
    return shlex.join([*words, "--seed", str(seed)]) + saved
