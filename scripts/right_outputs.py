"""Count false alarms over all outputs of an attention: right outputs and caches and scores of random cases.

Run from the root of the repository: `OMP_NUM_THREADS=1 python -m scripts.right_outputs --seed 1 --cases 5000`. The
cases are those of `fuzz`: masks with any axes (per head too), caches, lengths, windows, score outputs, probes. Six
emulated kernels compute them in turn, in the type of the case. Prints every alarm with the number that reproduces it,
and a table.

`false_alarms` measures the attention output of real runtimes on ordinary and hard numbers.
"""

import argparse
from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.masks import attn_bias
from sdpa_onnx.core.attention.oracle import QkOutputMode, split_heads
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.random_cases import RandomCase, draw_case
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.judge.cache_agreement import present_of
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.kernels import ARITHMETICS, KERNELS, Arithmetic, run_kernel

Array = NDArray[np.generic]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="seed of the sequence of cases")
    parser.add_argument("--cases", type=int, default=5000)
    options = parser.parse_args()
    counts: dict[OutputRole, Counter[str]] = defaultdict(Counter)
    masks: Counter[str] = Counter()
    alarms = 0
    for number in range(options.cases):
        case = draw_case(options.seed, number)
        if case.is_empty or not case.case.total_seq_len:
            continue  # the emulated kernels need a query and a key
        masks["with a head axis" if "H" in case.graph.mask_form else "others"] += 1
        with np.errstate(all="ignore"):
            found = judge_attention_outputs(
                case.case.spec,
                case.inputs,
                _right_outputs(case),
                precision=find_precision(case.graph.dtype.value),
                qk_modes=() if case.graph.qk_mode is None else (case.graph.qk_mode,),
            )
        for role, agreement in found.items():
            counts[role][agreement.verdict.value] += 1
            if agreement.verdict in (Verdict.WRONG, Verdict.SUSPICIOUS):
                alarms += 1
                print(
                    f"{number} ({case.case.case_id}, {case.graph.words}, {case.source}) {role}: {agreement.diagnosis}"
                )
    _show(counts, masks, alarms)


def _show(counts: dict[OutputRole, Counter[str]], masks: Counter[str], alarms: int) -> None:
    print("", "| output | right ones | ok | rounding-level | suspicious | wrong |", "|" + "---|" * 6, sep="\n")
    for role, verdicts in counts.items():
        figures = " | ".join(str(verdicts[verdict.value]) for verdict in Verdict)
        print(f"| {role} | {verdicts.total()} | {figures} |")
    total = sum(verdicts.total() for verdicts in counts.values())
    print(f"\nMasks with a head axis: {masks['with a head axis']} of {masks.total()} cases.")
    print(f"{alarms} false alarms in {total} right outputs.")


def _right_outputs(case: RandomCase) -> dict[OutputRole, Array]:
    fmt = ARITHMETICS[case.graph.dtype.value]
    names = sorted(name for name in KERNELS if case.case.spec.scale_value >= 0.0 or name != "prescaled")
    kernel = KERNELS[names[case.number % len(names)]]
    outputs: dict[OutputRole, Array] = {OutputRole.OUTPUT: run_kernel(kernel, case.case.spec, case.inputs, fmt)}
    if case.case.spec.has_past:
        outputs |= present_of(case.case.spec, case.inputs)
    if case.graph.qk_mode is not None:
        outputs[OutputRole.QK] = _scores(case, fmt, case.graph.qk_mode)
    return outputs


def _scores(case: RandomCase, fmt: Arithmetic, mode: QkOutputMode) -> Array:
    """The scores of one stage, every step stored in the type of the case."""
    spec = case.case.spec
    query, key, _ = (fmt.work(array) for array in split_heads(spec, case.inputs))
    batch_size, heads, q_seq_len, _ = query.shape
    found = np.zeros((batch_size, heads, q_seq_len, key.shape[2]), dtype=fmt.storage)
    for batch, head in np.ndindex(batch_size, heads):
        product = fmt.store(fmt.product(query[batch, head], key[batch, head // spec.heads_per_kv].T))
        scores = fmt.store(product * fmt.store(spec.scale_value))
        capped = fmt.store(spec.softcap * np.tanh(fmt.store(scores / spec.softcap))) if spec.softcap else scores
        bias = attn_bias(
            spec,
            case.inputs,
            batch=batch,
            head=head,
            rows=np.arange(q_seq_len),
            q_seq_len=q_seq_len,
            total_seq_len=key.shape[2],
        )
        logits = fmt.store(capped + fmt.work(bias))
        stages = {
            QkOutputMode.SCORES: scores,
            QkOutputMode.AFTER_SOFTCAP: capped,
            QkOutputMode.AFTER_MASK: logits,
        }
        found[batch, head] = stages[mode] if mode in stages else _weights(logits)
    return found


def _weights(logits: Array) -> Array:
    if not logits.shape[1]:
        return logits
    highest = logits.max(1, keepdims=True)
    shifted = np.exp(logits - np.where(np.isneginf(highest), 0, highest))
    total = shifted.sum(1, keepdims=True)
    weights: Array = shifted / np.where(total == 0, 1, total)
    return weights


if __name__ == "__main__":
    main()
