"""Count false alarms: correct outputs of runtimes and emulated kernels with the verdict wrong or suspicious.

Run from the root of the repository, on one thread: `OMP_NUM_THREADS=1 python -m scripts.false_alarms --seed 1`.
Prints every alarm with the seed that reproduces it. Seeds 1 to 9 and 21 to 29 were used to tune the rule, see
docs/decisions/0004.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from scripts.problems import RANGES, Drawn, draw
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype
from sdpa_onnx.core.judge.agreement import Agreement, Expectation, expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import CaseError, SdpaOnnxError
from tests.core.kernels import ARITHMETICS, KERNELS, run_kernel

Array = NDArray[np.generic]
Source = Callable[[AttentionCase, AttentionInputs], Array]

_TORCH_TYPES = (Dtype.FLOAT64, Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)
# The decomposed graph has the opset of most models in use, the Attention node its first opset.
_DECOMPOSED_OPSET, _ATTENTION_OPSET = 18, 23


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="seed of the sequence of problems")
    parser.add_argument("--problems", type=int, default=60, help="problems of each range")
    parser.add_argument("--ranges", nargs="+", choices=RANGES, default=list(RANGES))
    parser.add_argument("--sources", nargs="+", default=[""], help="only sources whose name contains one of these")
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    highest: dict[str, float] = defaultdict(float)
    alarms: list[str] = []
    sources = {name: one for name, one in _sources().items() if any(part in name for part in options.sources)}
    for range_name in options.ranges:
        for index in range(options.problems):
            drawn = draw(range_name, options.seed, index)
            for name, found in _judge_all(drawn, sources):
                counts[name][found.verdict.value] += 1
                highest[name] = max(highest[name], found.kappa)
                if found.verdict in (Verdict.WRONG, Verdict.SUSPICIOUS):
                    alarms.append(f"{name} on {drawn.name} ({drawn.case.case_id}): {found.verdict}: {found.diagnosis}")
                    print(alarms[-1], flush=True)
    _show(counts, highest, alarms)


def _show(counts: dict[str, Counter[str]], highest: dict[str, float], alarms: list[str]) -> None:
    lines = [
        "",
        "| source | right outputs | ok | rounding-level | suspicious | wrong | largest kappa |",
        "|" + "---|" * 7,
    ]
    for name, verdicts in sorted(counts.items()):
        figures = (str(verdicts[verdict.value]) for verdict in Verdict)
        lines.append(f"| {name} | {verdicts.total()} | {' | '.join(figures)} | {highest[name]:.2f} |")
    total = sum(verdicts.total() for verdicts in counts.values())
    lines.append(f"\n{len(alarms)} false alarms in {total} right outputs.")
    print("\n".join(lines))


def _judge_all(drawn: Drawn, sources: dict[str, tuple[str, Source]]) -> Iterator[tuple[str, Agreement]]:
    """Run every source; sources that refuse the case are left out."""
    made: dict[str, Expectation] = {}
    for name, (precision, source) in sources.items():
        dtype = Dtype.FLOAT32 if precision == "tf32" else Dtype(precision)
        case, inputs = drawn.stored(dtype)
        try:
            with np.errstate(all="ignore"):
                output = source(case, inputs)
        except SdpaOnnxError:
            continue
        if precision not in made:
            made[precision] = expect(case.spec, inputs, precision=find_precision(precision))
        yield name, judge(made[precision], output)


def _sources() -> dict[str, tuple[str, Source]]:
    """Precision and computation by name."""
    found: dict[str, tuple[str, Source]] = {}
    for precision in ("float64", "float32", "tf32", "float16", "bfloat16"):
        for name in KERNELS:
            found[f"numpy {name} {precision}"] = (precision, partial(_emulate, name, precision))
    for dtype in _TORCH_TYPES:
        for backend in ("flash", "math"):
            found[f"torch {backend} {dtype}"] = (dtype.value, partial(_torch, backend))
    for form, session in (("decomposed", _decomposed), ("attention", _attention)):
        for dtype in (Dtype.FLOAT32, Dtype.FLOAT16):
            found[f"ort-cpu {form} {dtype}"] = (dtype.value, partial(session, "ort-cpu"))
        found[f"openvino {form} float32"] = ("float32", partial(session, "openvino"))
    return found


def _emulate(name: str, precision: str, case: AttentionCase, inputs: AttentionInputs) -> Array:
    return run_kernel(KERNELS[name], case.spec, inputs, ARITHMETICS[precision])


def _torch(backend: str, case: AttentionCase, inputs: AttentionInputs) -> Array:
    """PyTorch's own kernel, with the cache concatenated and everything that hides keys in one mask."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if backend == "flash" and case.spec.head_dim != case.spec.v_head_dim:
        raise CaseError("The flash kernel takes values as wide as queries only.")
    kind = getattr(torch, case.dtype.value)

    def joined(past: Array | None, new: Array) -> torch.Tensor:
        joined = new if past is None else np.concatenate([past, new], axis=2)
        return torch.from_numpy(joined.astype(np.float64)).to(kind)

    mask = torch.from_numpy(_visible(case, inputs))
    chosen = SDPBackend.FLASH_ATTENTION if backend == "flash" else SDPBackend.MATH
    with torch.no_grad(), sdpa_kernel([chosen]):
        output = torch.nn.functional.scaled_dot_product_attention(
            joined(None, inputs.query),
            joined(inputs.past_key, inputs.key).repeat_interleave(case.spec.heads_per_kv, 1),
            joined(inputs.past_value, inputs.value).repeat_interleave(case.spec.heads_per_kv, 1),
            attn_mask=mask,
        )
    return output.to(torch.float64).numpy().astype(inputs.query.dtype)


def _visible(case: AttentionCase, inputs: AttentionInputs) -> NDArray[np.bool_]:
    rows, keys = np.arange(case.q_seq_len)[:, None], np.arange(case.total_seq_len)
    visible = keys <= rows + case.past_seq_len if case.spec.is_causal else np.ones((rows.size, keys.size), dtype=bool)
    return visible if inputs.attn_mask is None else visible & inputs.attn_mask[0, 0].astype(bool)


def _attention(runtime: str, case: AttentionCase, inputs: AttentionInputs) -> Array:
    from sdpa_onnx.workflows.check.feeds import feeds_of

    session, model = _attention_session(runtime, case.spec, case.dtype)
    sizes = {
        "batch_size": case.batch_size,
        "q_seq_len": case.q_seq_len,
        "kv_seq_len": case.kv_seq_len,
        "past_seq_len": case.past_seq_len,
        "total_seq_len": case.total_seq_len,
    }
    feeds = feeds_of(model, inputs, {axis: sizes[axis] for axis in model.facts.axes if axis in sizes})
    return session.run(feeds)["Y"]


@cache
def _attention_session(runtime: str, spec: AttentionSpec, dtype: Dtype):  # noqa: ANN202 - a session and its model
    from sdpa_onnx.graph.attention_node import build_attention_model
    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.runtimes.base import LoadOptions, get_runtime

    model = load_model(build_attention_model(spec, opset=_ATTENTION_OPSET, dtype=dtype))
    return get_runtime(runtime).load(model, LoadOptions()), model


def _decomposed(runtime: str, case: AttentionCase, inputs: AttentionInputs) -> Array:
    """The formula as written by torch.onnx: the root of the scale on query and key, MatMul, Softmax, MatMul."""
    joined = [
        np.repeat(new if past is None else np.concatenate([past, new], axis=2), case.spec.heads_per_kv, axis=1)
        for past, new in ((inputs.past_key, inputs.key), (inputs.past_value, inputs.value))
    ]
    bias = np.where(_visible(case, inputs), 0.0, -np.inf).astype(inputs.query.dtype)
    feeds = {"Q": inputs.query, "K": joined[0], "V": joined[1], "bias": bias}
    return _decomposed_session(runtime, case.spec.head_dim, case.dtype).run(feeds)["Y"]


@cache
def _decomposed_session(runtime: str, head_dim: int, dtype: Dtype):  # noqa: ANN202 - a session
    import onnx.parser

    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.runtimes.base import LoadOptions, get_runtime

    kind = {"float32": "float", "float16": "float16"}[dtype.value]
    text = f"""
        <ir_version: 8, opset_import: ["" : {_DECOMPOSED_OPSET}]>
        decomposed ({kind}[b, h, l, {head_dim}] Q, {kind}[b, h, s, {head_dim}] K, {kind}[b, h, s, e] V,
                    {kind}[l, s] bias) => ({kind}[b, h, l, e] Y) {{
            root = Constant <value_float = {head_dim**-0.25!r}> ()
            factor = CastLike (root, Q)
            query = Mul (Q, factor)
            turned = Transpose <perm = [0, 1, 3, 2]> (K)
            key = Mul (turned, factor)
            scores = MatMul (query, key)
            logits = Add (scores, bias)
            weights = Softmax <axis = -1> (logits)
            Y = MatMul (weights, V)
        }}"""
    return get_runtime(runtime).load(load_model(onnx.parser.parse_model(text)), LoadOptions())


if __name__ == "__main__":
    main()
