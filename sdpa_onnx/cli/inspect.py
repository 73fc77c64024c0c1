"""`sdpa-onnx inspect`: which attention a file contains, and how runtimes execute it."""

from typing import TYPE_CHECKING, Annotated

import typer

from sdpa_onnx.cli.error_boundary import OK, with_exit_codes
from sdpa_onnx.cli.options import PATIENCE_SECONDS, Debug, Json, ModelFile, Runtimes, Timeout
from sdpa_onnx.cli.shared_processes import with_shared_processes
from sdpa_onnx.cli.show import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sdpa_onnx.core.records.records import AttentionRecord
    from sdpa_onnx.runtimes.base import RanReport

__all__ = ["describe_attention", "inspect"]

Run = Annotated[bool, typer.Option("--run/--no-run", help="Run the model at a few sizes to find axes that are fixed.")]


@with_exit_codes
@with_shared_processes
def inspect(
    model: ModelFile,
    *,
    runtime: Runtimes = ["ort-cpu"],
    run: Run = True,
    timeout: Timeout = PATIENCE_SECONDS,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """List each attention in a file: form, heads, sizes, mask, scale, dynamic or fixed axes, and executed nodes."""
    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.report.run.limits_table import limit_in_words
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
    from sdpa_onnx.workflows.verify.inspect_axes import try_axes
    from sdpa_onnx.workflows.verify.inspect_file import inspect_model, what_runs

    names = pick_runtimes(runtime)
    loaded = load_model(model)
    records = inspect_model(loaded, target=str(model))
    read = {record.node: record.warnings for record in records}
    trial = None
    if run:
        able = with_lifted_sites(loaded).model
        trial = try_axes(able, records, names[0], target=str(model), patience_seconds=timeout)
    if trial is not None:
        records = trial.records
    if json:
        print_json(records)
        return OK
    print(f"{model}: opset {loaded.opset}, {len(records)} attention{'s' if len(records) > 1 else ''}")
    for record in records:
        print(describe_attention(record))
        for warning in read[record.node]:
            print(f"    warning: {warning}")
    print(f"Dynamic axes: {', '.join(records[0].dynamic_axes) or 'none'}")
    for limit in records[0].limits:
        print(f"  It {limit_in_words(limit)}")
    for line in _file_warnings(records):
        print(f"  warning: {line}")
    if trial is not None:
        print(f"Axes: {trial.says}")
    for name in names:
        print(f"On {name}: {_execution_line(what_runs(loaded, name, patience_seconds=timeout))}")
    return OK


def _file_warnings(records: "Sequence[AttentionRecord]") -> list[str]:
    """Return warnings about a file that can be read."""
    scales = (record.scale_doubt for record in records if record.scale_doubt)
    return [*records[0].static_axes, *scales]


def describe_attention(record: "AttentionRecord") -> str:
    """Describe one attention in one line."""
    spec = record.spec
    if spec is None:
        return f"  {record.node}: {record.dialect}; cannot be read: {record.reason}"
    words = [
        f"{spec.q_num_heads} heads"
        if spec.q_num_heads == spec.kv_num_heads
        else f"{spec.q_num_heads} query heads over {spec.kv_num_heads} key/value heads",
        f"d_k {spec.head_dim}" + (f", d_v {spec.v_head_dim}" if spec.v_head_dim != spec.head_dim else ""),
        f"scale {spec.scale_value:.6g}",
        "causal" if spec.is_causal else "",
        f"mask {spec.mask}" if spec.mask != "none" else "no mask",
        f"softcap {spec.softcap:g}" if spec.softcap else "",
        f"window {spec.left_window}, {spec.right_window}" if spec.has_window else "",
        "with past" if spec.has_past else "",
        spec.layout.value.upper(),
    ]
    return f"  {record.node}: {record.dialect}; {'; '.join(word for word in words if word)}"


def _execution_line(ran: "RanReport | str") -> str:
    if isinstance(ran, str):
        return f"does not run: {ran}"
    nodes = sum(ran.node_counts.values())
    top = ", ".join(f"{count} {kind}" for kind, count in sorted(ran.node_counts.items(), key=lambda item: -item[1])[:6])
    warnings = "".join(f" {warning}" for warning in ran.warnings)
    return f"{nodes} node{'s' if nodes > 1 else ''} ({top}), {ran.precision}.{warnings}"
