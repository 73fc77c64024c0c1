"""Time one decoding step of every form relative to the memory bandwidth, and show which forms copy the whole cache.

Run from the root of the repository on a quiet machine:
`OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m scripts.decode_speed --cache 1024 8192`. Prints Markdown.

One query and one new key per step, causal, float32. All arms of a case are timed interleaved, ratios are paired.
A step must read the cache once; an arm that also writes all of it as `present` moves three times as much.
"""

import argparse
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.core.timing.statistics import bootstrap_median
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.measure.bandwidth import measure_bandwidth
from sdpa_onnx.measure.environment import load_average
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.verdict_rule import clock_of, ratio
from sdpa_onnx.measure.visits import VisitPlan, visit_arms
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, get_runtime
from sdpa_onnx.runtimes.worker.onnxruntime_import import import_onnxruntime
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, form_model

Array = NDArray[np.generic]

_BASELINE = "attention 23"
# Level of the confidence intervals of ratios.
_ALPHA = 0.05


@dataclass(frozen=True, kw_only=True)
class Step:
    """One decoding step, ready to be timed.

    Args:
        call: Runs one step.
        output: Returns the output of the last call, for verification.
        copies: The part of the cache that the arm writes.
        precision: The declared arithmetic, which determines the error bound.
    """

    call: Callable[[], object]
    output: Callable[[], Array]
    copies: str
    precision: str = "float32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=int, nargs="+", default=[1024, 8192], help="keys in the cache")
    parser.add_argument("--heads", nargs="+", default=["8/8/64", "8/8/128", "32/8/128"], help="query/key heads/width")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="for the comparison of one case")
    options = parser.parse_args()
    print("| heads, width, cache | arm | writes | us a step | ratio [95 %] | GB/s of cache | of bandwidth |")
    print("|" + "---|" * 7)
    for text in options.heads:
        q_heads, kv_heads, width = (int(part) for part in text.split("/"))
        spec = AttentionSpec(q_num_heads=q_heads, kv_num_heads=kv_heads, head_dim=width, is_causal=True, has_past=True)
        for cache in options.cache:
            _time_case(AttentionCase(spec=spec, q_seq_len=1, past_seq_len=cache), options.threads, options.seconds)
    print(f"\nLoad average at the end: {load_average():.2f}.")


def _time_case(case: AttentionCase, threads: int, seconds: float) -> None:
    inputs = draw_inputs(case, spread=1.0, seed=1)
    with contextlib.ExitStack() as stack:
        steps: dict[str, Step] = {}
        for name, build in _arms().items():
            try:
                steps[name] = build(case, inputs, threads, stack)
                steps[name].call()
            except (SdpaOnnxError, RuntimeError) as error:
                print(f"| {_where(case)} | {name} | | not run: {' '.join(str(error).split())[:120]} | | | |")
                steps.pop(name, None)
        wrong = {name: _wrong(case, inputs, step) for name, step in steps.items()}
        samples = visit_arms(
            {name: step.call for name, step in steps.items()},
            VisitPlan(budget_seconds=seconds, warm_up_seconds=0.3, visit_seconds=0.005),
        )
    bandwidth = measure_bandwidth(size_bytes=_cache_bytes(case), threads=threads)
    _show(case, steps, samples, wrong, bandwidth, threads)


def _show(
    case: AttentionCase,
    steps: Mapping[str, Step],
    samples: Mapping[str, ArmSamples],
    wrong: Mapping[str, str],
    bandwidth: float,
    threads: int,
) -> None:
    clock = clock_of(samples, threads=threads)
    for name, step in steps.items():
        median = bootstrap_median(samples[name].per_visit(clock)[0]).estimate
        found = ratio(samples[name], samples[_BASELINE], clock, Calibration())
        low, high = found.interval(_ALPHA)
        rate = _cache_bytes(case) / median
        figures = (
            f"{median * 1e6:.1f}{wrong[name]}",
            f"{found.ratio:.3f} [{low:.3f}, {high:.3f}]",
            f"{rate / 1e9:.1f}",
            f"{100 * rate / bandwidth:.0f} %",
        )
        print(f"| {_where(case)} | {name} | {step.copies} | {' | '.join(figures)} |", flush=True)
    print(
        f"| {_where(case)} | reading alone | - | {1e6 * _cache_bytes(case) / bandwidth:.1f} | - "
        f"| {bandwidth / 1e9:.1f} | 100 % ({clock} clock) |",
        flush=True,
    )


def _arms() -> dict[str, Callable[..., Step]]:
    """Builder by arm name; present outputs are written unless the name says otherwise."""
    return {
        "attention 23": _form(Form.ATTENTION, 23),
        "attention 24": _form(Form.ATTENTION, 24),
        "decomposed": _form(Form.DECOMPOSED, 23),
        "ort-mha": _form(Form.ORT_MHA, 23),
        "ort-gqa": _form(Form.ORT_GQA, 23),
        "blocked": _form(Form.BLOCKED, 23),
        "ort-gqa, one buffer for past and present": _shared_gqa,
        "TensorScatter + attention 24, one buffer": _scatter,
        "attention 23, no presents": _form(Form.ATTENTION, 23, presents=False),
        "decomposed, no presents": _form(Form.DECOMPOSED, 23, presents=False),
        "attention 23 on a joined cache": _joined("ort-cpu"),
        "openvino, attention 23": _form(Form.ATTENTION, 23, runtime="openvino"),
        "openvino, on a joined cache": _joined("openvino"),
        "torch, cat and SDPA": _torch(joins=True),
        "torch, SDPA on a joined cache": _torch(joins=False),
    }


def _form(form: Form, opset: int, *, runtime: str = "ort-cpu", presents: bool = True) -> Callable[..., Step]:
    """A form as exported."""

    def build(case: AttentionCase, inputs: AttentionInputs, threads: int, stack: contextlib.ExitStack) -> Step:
        problem = FormProblem(spec=case.spec, has_equal_lengths=True)
        model = form_model(problem, form, opset=opset, options=LowerOptions())
        if not presents:
            copy = model.ir.clone()
            del copy.graph.outputs[1:]
            model = replace(model, ir=copy)
        options = LoadOptions(threads=threads, purpose=Purpose.TIMING)
        session = stack.enter_context(get_runtime(runtime).load(model, options))
        bound: Any = session.bind(inputs.onnx_feeds())
        copies = "the whole cache" if presents else "nothing kept"
        return Step(
            call=bound,
            output=lambda: np.asarray(bound.outputs()["Y"]),
            copies=copies,
            precision=session.ran().precision,
        )

    return build


def _joined(runtime: str) -> Callable[..., Step]:
    """Attention over keys that are in one array already: the lower limit of a step's cost."""

    def build(case: AttentionCase, inputs: AttentionInputs, threads: int, stack: contextlib.ExitStack) -> Step:
        spec = case.spec
        plain = AttentionSpec(q_num_heads=spec.q_num_heads, kv_num_heads=spec.kv_num_heads, head_dim=spec.head_dim)
        model = form_model(FormProblem(spec=plain), Form.ATTENTION, opset=23, options=LowerOptions())
        options = LoadOptions(threads=threads, purpose=Purpose.TIMING)
        session = stack.enter_context(get_runtime(runtime).load(model, options))
        bound: Any = session.bind(_joined_inputs(inputs).onnx_feeds())
        return Step(
            call=bound,
            output=lambda: np.asarray(bound.outputs()["Y"]),
            copies="nothing: the caller joined it",
            precision=session.ran().precision,
        )

    return build


def _joined_inputs(inputs: AttentionInputs) -> AttentionInputs:
    key = np.concatenate([_given(inputs.past_key), inputs.key], axis=2)
    value = np.concatenate([_given(inputs.past_value), inputs.value], axis=2)
    return AttentionInputs(query=inputs.query, key=key, value=value)


def _given(array: Array | None) -> Array:
    if array is None:
        raise ValueError("A decoding step has a cache.")
    return array


def _torch(*, joins: bool) -> Callable[..., Step]:
    def build(case: AttentionCase, inputs: AttentionInputs, threads: int, stack: contextlib.ExitStack) -> Step:
        import torch

        torch.set_num_threads(threads)
        stack.enter_context(torch.inference_mode())
        joined = _joined_inputs(inputs)
        named = {name: torch.from_numpy(array) for name, array in {**inputs.named(), **joined.named()}.items()}
        query, key, value = named["query"], named["key"], named["value"]
        new_key, new_value = torch.from_numpy(inputs.key), torch.from_numpy(inputs.value)
        kept: dict[str, torch.Tensor] = {}

        def call() -> None:
            keys, values = key, value
            if joins:
                keys = torch.cat([named["past_key"], new_key], dim=2)
                values = torch.cat([named["past_value"], new_value], dim=2)
            enable_gqa = case.spec.heads_per_kv > 1
            kept["output"] = torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, enable_gqa=enable_gqa
            )

        copies = "the whole cache" if joins else "nothing: the caller joined it"
        return Step(call=call, output=lambda: np.asarray(kept["output"]), copies=copies)

    return build


def _shared_gqa(case: AttentionCase, inputs: AttentionInputs, threads: int, _: contextlib.ExitStack) -> Step:
    """GroupQueryAttention with one buffer, as long as all keys, bound as past and present.

    Source: onnxruntime docs/ContribOperators.md, GroupQueryAttention: "past and present k-v cache ... share buffer".
    """
    spec, total = case.spec, case.total_seq_len
    size = (1, spec.kv_num_heads, total, spec.head_dim)
    wide = [onnx.TensorProto.FLOAT, onnx.TensorProto.INT32]
    hidden, kv_hidden = spec.q_num_heads * spec.head_dim, spec.kv_num_heads * spec.head_dim
    given = {
        "query": (wide[0], (1, 1, hidden)),
        "key": (wide[0], (1, 1, kv_hidden)),
        "value": (wide[0], (1, 1, kv_hidden)),
        "past_key": (wide[0], size),
        "past_value": (wide[0], size),
        "seqlens_k": (wide[1], (1,)),
        "total_sequence_length": (wide[1], ()),
    }
    node = onnx.helper.make_node(
        "GroupQueryAttention",
        list(given),
        ["Y", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=spec.q_num_heads,
        kv_num_heads=spec.kv_num_heads,
    )
    outputs = {"Y": (1, 1, hidden), "present_key": size, "present_value": size}
    arrays = {
        "query": inputs.query.reshape(1, 1, hidden),
        "key": inputs.key.reshape(1, 1, kv_hidden),
        "value": inputs.value.reshape(1, 1, kv_hidden),
        "past_key": _padded(inputs.past_key, total),
        "past_value": _padded(inputs.past_value, total),
        "seqlens_k": np.array([total - 1], dtype=np.int32),
        "total_sequence_length": np.array(total, dtype=np.int32),
    }
    return _one_buffer([node], given, outputs, arrays, {"": 23, "com.microsoft": 1}, threads, case)


def _scatter(case: AttentionCase, inputs: AttentionInputs, threads: int, _: contextlib.ExitStack) -> Step:
    """The standard method of opset 24: TensorScatter into a cache of full length, and the number of valid keys."""
    spec, total = case.spec, case.total_seq_len
    size = (1, spec.kv_num_heads, total, spec.head_dim)
    new = (1, spec.kv_num_heads, 1, spec.head_dim)
    real, count = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    given = {
        "query": (real, (1, spec.q_num_heads, 1, spec.head_dim)),
        "key": (real, new),
        "value": (real, new),
        "past_key": (real, size),
        "past_value": (real, size),
        "index": (count, (1,)),
        "lengths": (count, (1,)),
    }
    nodes = [
        onnx.helper.make_node("TensorScatter", ["past_key", "key", "index"], ["present_key"], axis=2),
        onnx.helper.make_node("TensorScatter", ["past_value", "value", "index"], ["present_value"], axis=2),
        onnx.helper.make_node(
            "Attention", ["query", "present_key", "present_value", "", "", "", "lengths"], ["Y"], is_causal=1
        ),
    ]
    outputs = {"Y": given["query"][1], "present_key": size, "present_value": size}
    arrays = {
        "query": inputs.query,
        "key": inputs.key,
        "value": inputs.value,
        "past_key": _padded(inputs.past_key, total),
        "past_value": _padded(inputs.past_value, total),
        "index": np.array([case.past_seq_len], dtype=np.int64),
        "lengths": np.array([total], dtype=np.int64),
    }
    return _one_buffer(nodes, given, outputs, arrays, {"": 24}, threads, case)


def _one_buffer(
    nodes: Sequence[onnx.NodeProto],
    given: Mapping[str, tuple[int, tuple[int, ...]]],
    outputs: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Array],
    opsets: Mapping[str, int],
    threads: int,
    case: AttentionCase,
) -> Step:
    """Bind past and present to the same memory."""
    ort = import_onnxruntime()
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        list(nodes),
        "step",
        [info(name, kind, list(shape)) for name, (kind, shape) in given.items()],
        [info(name, onnx.TensorProto.FLOAT, list(shape)) for name, shape in outputs.items()],
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=12)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {name: ort.OrtValue.ortvalue_from_numpy(np.array(array)) for name, array in arrays.items()}
    values["Y"] = ort.OrtValue.ortvalue_from_shape_and_type(list(outputs["Y"]), np.float32, "cpu")
    binding = session.io_binding()
    for name in given:
        binding.bind_ortvalue_input(name, values[name])
    for name in outputs:
        binding.bind_ortvalue_output(name, values[name.replace("present", "past")])
    shape = (1, case.spec.q_num_heads, 1, case.spec.head_dim)
    return Step(
        call=lambda: session.run_with_iobinding(binding),
        output=lambda: np.array(values["Y"].numpy()).reshape(shape),
        copies="the new keys only",
    )


def _padded(past: Array | None, total: int) -> Array:
    given = _given(past)
    longer = np.zeros((*given.shape[:2], total, given.shape[3]), dtype=given.dtype)
    longer[:, :, : given.shape[2]] = given
    return longer


def _wrong(case: AttentionCase, inputs: AttentionInputs, step: Step) -> str:
    """A mark for arms that are proved wrong."""
    step.call()
    verdict = judge(expect(case.spec, inputs, precision=find_precision(step.precision)), step.output()).verdict
    return "" if verdict.is_right else f" ({verdict})"


def _cache_bytes(case: AttentionCase) -> int:
    """Bytes of all keys and values, read once."""
    spec = case.spec
    return 4 * case.total_seq_len * spec.kv_num_heads * (spec.head_dim + spec.v_head_dim)


def _where(case: AttentionCase) -> str:
    spec = case.spec
    return f"{spec.q_num_heads}/{spec.kv_num_heads}, {spec.head_dim}, {case.past_seq_len}"


if __name__ == "__main__":
    main()
