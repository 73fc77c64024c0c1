"""Judge a model against the float64 oracle for a test, as `sdpa-onnx verify` does, and form the failure message."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdpa_onnx.core.records.findings import Finding, group_findings
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
    found = group_findings(records)
    checks = [one for one in records if isinstance(one, AgreementRecord) and one.verdict is not None]
    if not found:
        return None if checks else _nothing_judged(records, target, runtime)
    command = _command(loaded, runtime, sizes, inputs, seed)
    return "\n".join([*_lines(found, len(checks), target), f"Repeat with: {command}"])


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


def _lines(found: Sequence[Finding], checks: int, target: str) -> list[str]:
    """The first finding with its verdict, then the evidence of each."""
    lines = [f"{target}: {found[0].sentence}"]
    for number, finding in enumerate(found[:_SHOWN]):
        lines += [] if number == 0 else [f"{target}: {finding.sentence}"]
        lines += _evidence(finding, checks)
    left = len(found) - _SHOWN
    return [*lines, f"and {left} more"] if left > 0 else lines


def _evidence(finding: Finding, checks: int) -> list[str]:
    """How many judgements disagree, and the worst with its figures; nothing that the sentence already has."""
    worst = finding.worst
    if not isinstance(worst, AgreementRecord) or worst.verdict is None:
        return []
    wrong = sum(isinstance(one, AgreementRecord) and one.outcome is Outcome.DISAGREES for one in finding.records)
    where = ", ".join(part for part in (worst.dtype, *_sizes(worst.sizes), f"seed {worst.seed}") if part)
    place = f"{site_in_words(worst)}, {worst.inputs} ({where})"
    lines = [f"- {wrong} of {checks} judgements disagree, the worst: {place}: {worst.reason}"]
    figures = "; ".join(_figures(worst))
    return [*lines, *([f"  {figures}"] if figures else [])]


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
