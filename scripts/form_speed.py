"""Time the forms of one attention relative to each other and to other runtimes; prints Markdown.

    python -m scripts.form_speed --lengths 256 512 1024 2048 4096 8192 --head-dim 64 --threads 1
    python -m scripts.form_speed --lengths 4096 --window 256
    python -m scripts.form_speed --lengths 256 1024 4096 --no-mask
    python -m scripts.form_speed --lengths 8192 --memory

Each length is one comparison of all arms on the same inputs, each in four worker processes, in random order. A
ratio is the time of the other arm over that of `blocked` (above 1: blocked is faster) with its 99 % interval. The roof
is products plus exponentials at the speeds measured before each length. `--memory` runs each arm once in a fresh
process and prints the rise of its resident memory above that with inputs and outputs allocated. With a window,
`attention` is the operator with a mask.
"""

import argparse
import multiprocessing
import resource
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.timing.paired import StoppingLook
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.lower import lower, refusal
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.measure.calibration import load_calibration
from sdpa_onnx.measure.ceilings import measure_ceilings
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, Unsupported, get_runtime
from sdpa_onnx.runtimes.worker.onnxruntime_import import import_onnxruntime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.timing.comparison import Arm, TimedComparison, bench

_ORT_FORMS = (Form.ATTENTION, Form.DECOMPOSED, Form.BLOCKED, Form.ORT_MHA, Form.ORT_GQA)
_OTHERS = ("openvino", "torch")
_OPSET = 23
_MIB = 2**20


# openvino is set to float32: by default it uses bfloat16 if the processor supports it.
_OPTIONS = {"openvino": {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}}


def main() -> None:
    """Print one table."""
    chosen = _arguments()
    spec = _spec(chosen)
    sizes = [{"batch_size": 1, "q_seq_len": length, "kv_seq_len": length} for length in chosen.lengths]
    if chosen.memory:
        _print_memory(spec, sizes, chosen.threads)
    else:
        _print_times(spec, sizes, chosen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each length")
    parser.add_argument("--arms", nargs="+", default=[*_ORT_FORMS, *_OTHERS])
    parser.add_argument("--memory", action="store_true")
    masks = parser.add_mutually_exclusive_group()
    masks.add_argument("--causal", action="store_true", help="the default")
    masks.add_argument("--window", type=int, default=0, help="keys that a query sees, its own the last")
    masks.add_argument("--no-mask", action="store_true")
    return parser.parse_args()


def _spec(chosen: argparse.Namespace) -> AttentionSpec:
    return AttentionSpec(
        q_num_heads=chosen.heads,
        kv_num_heads=chosen.heads,
        head_dim=chosen.head_dim,
        is_causal=not chosen.no_mask,
        left_window=chosen.window - 1 if chosen.window else -1,
    )


def _print_times(spec: AttentionSpec, sizes: Sequence[dict[str, int]], chosen: argparse.Namespace) -> None:
    arms = list(_arms(spec, chosen.arms))
    print("| length | arm | ms | clock | ratio to blocked [99 %] | share of roof | disturbed |")
    print("|---|---|---|---|---|---|---|")
    for size in sizes:
        ceilings = measure_ceilings(threads=chosen.threads)
        plan = TimingPlan(
            looks=(StoppingLook(launches=4, alpha=0.01),),
            visit_seconds=0.05,
            budget_seconds=chosen.seconds,
            least_blocks=8,
            extras=False,
            calibration=load_calibration(),
        )
        check = CheckOptions(sizes=size, spreads=(1.0,), threads=chosen.threads)
        found = bench(arms, check, target="form-speed", baseline=Form.BLOCKED, plan=plan, ceilings=ceilings)
        _print_rows(size["q_seq_len"], found)


def _print_rows(length: int, found: TimedComparison) -> None:
    best = min(
        (arm for arm in found.records if arm not in (Form.ATTENTION, Form.BLOCKED)),
        key=lambda arm: found.records[arm].median_seconds,
        default=None,
    )
    for arm, record in found.records.items():
        ratio = f"{record.ratio:.2f} [{record.ratio_low:.2f}, {record.ratio_high:.2f}]"
        name = f"{arm} (best other)" if arm == best else arm
        print(
            f"| {length} | {name} | {record.median_seconds * 1e3:.2f} | {record.clock} | {ratio} "
            f"| {record.roof_share:.2f} | {record.disturbed:.2f} |",
            flush=True,
        )


def _arms(spec: AttentionSpec, wanted: Sequence[str]) -> Iterator[Arm]:
    """Every arm that can be written and that its runtime supports; prints the others with the reason."""
    for form in _ORT_FORMS:
        if form in wanted:
            yield from _arm(form, _written(spec, form), "ort-cpu")
    for runtime in _OTHERS:
        if runtime in wanted:
            yield from _arm(runtime, load_model(build_attention_model(spec, opset=25, dtype=Dtype.FLOAT32)), runtime)


def _arm(name: str, model: OnnxModel | str, runtime: str) -> Iterator[Arm]:
    if isinstance(model, str):
        print(f"<!-- {name}: {model} -->")
        return
    found = get_runtime(runtime)
    for answer in (found.available(), found.supports(model)):
        if isinstance(answer, Unsupported):
            print(f"<!-- {name}: {answer.reason} -->")
            return
    yield Arm(name=name, model=model, runtime=found, options=_OPTIONS.get(runtime, {}))


def _written(spec: AttentionSpec, form: Form) -> OnnxModel | str:
    """The attention in a form, or the reason why it cannot be written."""
    if form is Form.ATTENTION and spec.has_window:
        spec = replace(spec, is_causal=False, left_window=-1, mask=MaskKind.BOOL)
    model = build_attention_model(spec, opset=25, dtype=Dtype.FLOAT32)
    for value in (*model.graph.inputs, *model.graph.outputs):  # self-attention: one name for both lengths
        if value.shape is not None:
            names = [getattr(size, "value", size) for size in value.shape]
            value.shape = ir.Shape(["q_seq_len" if name in ("kv_seq_len", "total_seq_len") else name for name in names])
    model.graph.opset_imports[""] = _OPSET
    inputs = {value.name: value for value in model.graph.inputs}
    attention = GraphAttention(
        name="attention",
        spec=spec,
        dtype=Dtype.FLOAT32,
        query=inputs["Q"],
        key=inputs["K"],
        value=inputs["V"],
        attn_mask=inputs.get("attn_mask"),
        output=model.graph.outputs[0],
    )
    reason = refusal(attention, form, opset=_OPSET)
    if reason is not None:
        return reason
    lower(model, attention, form)
    site = AttentionSite(
        name="attention",
        spec=spec,
        query="Q",
        key="K",
        value="V",
        output="Y",
        attn_mask="attn_mask" if "attn_mask" in inputs else None,
    )
    return OnnxModel(ir=model, sites=(site,))


def _print_memory(spec: AttentionSpec, sizes: Sequence[dict[str, int]], threads: int) -> None:
    print("| length | arm | MiB above inputs and outputs |")
    print("|---|---|---|")
    spawn = multiprocessing.get_context("spawn")
    for size in sizes:
        for arm in _ORT_FORMS:
            if isinstance(_written(spec, arm), str):
                continue
            with spawn.Pool(1) as fresh:
                rise = fresh.apply(_memory_rise, (spec, arm, size, threads))
            print(f"| {size['q_seq_len']} | {arm} | {rise / _MIB:.0f} |", flush=True)


def _memory_rise(spec: AttentionSpec, form: Form, size: dict[str, int], threads: int) -> int:
    """Bytes by which one call raises the resident memory, with inputs and outputs already allocated."""
    ort = import_onnxruntime()
    model = _written(spec, form)
    if isinstance(model, str):
        raise SystemExit(model)
    feeds = draw_feeds(model, size, spread=1.0, seed=0)
    with get_runtime("ort-cpu").load(model, LoadOptions(threads=threads, purpose=Purpose.TIMING)) as session:
        live = session.live  # type: ignore[attr-defined]  # ort-cpu's own
        binding = live.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        shape = (*feeds["Q"].shape[:3], spec.v_head_dim)
        output = ort.OrtValue.ortvalue_from_numpy(np.ones(shape, np.float32))
        binding.bind_ortvalue_output("Y", output)
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        live.run_with_iobinding(binding)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident


if __name__ == "__main__":
    main()
