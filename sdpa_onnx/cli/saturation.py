"""`sdpa-onnx saturation`: the effect of the scale of QK^T on the softmax, measured next to its exact prediction."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sdpa_onnx.cli.error_boundary import DISAGREES, OK, pin_threads, with_exit_codes
from sdpa_onnx.cli.help.completion import complete_runtime
from sdpa_onnx.cli.options import (
    Debug,
    Json,
    Quiet,
    Seed,
    Threads,
    Verbose,
)
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.cli.show import print_json, show_result
from sdpa_onnx.core.attention.spec import Dtype, ScaleRule

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import SaturationRecord

__all__ = ["saturation"]

HeadDims = Annotated[list[int], typer.Option("--head-dim", min=1, help="d_k; repeatable.")]
Lengths = Annotated[list[int], typer.Option("--kv-seq-len", min=2, help="Number of keys; repeatable.")]
Rules = Annotated[list[ScaleRule], typer.Option("--scale-rule", help="Scale of QK^T; repeatable.")]
Sigma = Annotated[float, typer.Option("--sigma", help="Standard deviation of query and key components.")]
Draws = Annotated[int, typer.Option("--draws", min=4, help="Independent draws of the keys.")]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Queries per draw.")]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Element type of the exported graph.")]
RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime", help="Runtime that runs the graph. `runtimes` lists them.", autocompletion=complete_runtime
    ),
]
ModuleOption = Annotated[bool, typer.Option(help="Also measure torch.nn.MultiheadAttention as initialised.")]


@with_exit_codes
def saturation(
    *,
    head_dim: HeadDims = [16, 64, 256, 1024],
    kv_seq_len: Lengths = [64, 256, 1024, 4096],
    scale_rule: Rules = [ScaleRule.NONE, ScaleRule.INVERSE_SQRT],
    sigma: Sigma = 1.0,
    dtype: DtypeOption = Dtype.FLOAT32,
    runtime: RuntimeOption = "ort-cpu",
    draws: Draws = 16,
    rows: Rows = 128,
    module: ModuleOption = True,
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Measure the effect of dividing by sqrt(d_k) on the softmax, its weights and its gradients."""
    pin_threads(threads)
    import torch

    from sdpa_onnx.core.records.records import Outcome
    from sdpa_onnx.workflows.saturation.measure import SaturationPlan, module_check
    from sdpa_onnx.workflows.saturation.measure import saturation as measure

    torch.set_num_threads(threads)
    plan = SaturationPlan(
        head_dims=tuple(dict.fromkeys(head_dim)),
        kv_seq_lens=tuple(dict.fromkeys(kv_seq_len)),
        scale_rules=tuple(dict.fromkeys(scale_rule)),
        sigma=sigma,
        dtype=dtype,
        rows=rows,
        draws=draws,
        seed=seed,
        threads=threads,
        runtime=runtime,
    )
    with Progress(plan.cells) as progress:

        def on_done(done: int, total: int) -> None:
            progress.advance(1.0)
            progress.at(f"cell {done} of {total}")

        records = list(measure(plan, on_done=on_done))
        if module:
            progress.at("torch.nn.MultiheadAttention")
            records += module_check(seed=seed, threads=threads, runtime=runtime)
    if json:
        print_json(records)
    else:
        _print(records)
    return DISAGREES if any(record.outcome is Outcome.DISAGREES for record in records) else OK


def _print(records: "Sequence[SaturationRecord]") -> None:
    """Print the conclusions; the tables only with --verbose."""
    from sdpa_onnx.report.saturation.result import saturation_result

    show_result(saturation_result(records))
