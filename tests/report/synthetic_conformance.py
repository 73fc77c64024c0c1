"""Synthetic rows of `conformance`: plausible shapes, invented figures, no runtime is used."""

from collections.abc import Iterator

from sdpa_onnx.core.records.records import ConformanceRecord, Outcome
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.report.conformance.run import ConformanceRun

FEATURES = {
    "plain": ("basic", "Attention with nothing special"),
    "heads-grouped": ("basic", "Grouped heads: each key head serves neighbouring query heads"),
    "value-width-differs": ("basic", "Values wider than keys"),
    "causal-square": ("causal", "Causal, as many queries as keys"),
    "causal-past-one-query": ("causal", "Causal, one query after a past, several new keys"),
    "mask-row-fully-masked": ("mask", "A query that may attend to nothing"),
    "mask-shorter-than-keys": ("mask", "A mask shorter than the keys"),
    "softcap-before-mask": ("softcap", "Softcap is applied before the mask"),
    "window-left": ("window", "A left window (opset 25)"),
}
PLACES = (
    *(("Attention", opset, dtype) for opset in (23, 24, 25) for dtype in ("float32", "float16", "bfloat16")),
    *(("com.microsoft.MultiHeadAttention", 1, dtype) for dtype in ("float32", "float16")),
)
SHORT_MASK = (
    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : attn_mask->Shape()[NumDimensions() - 1] == "
    "parameters.total_sequence_length was false. inconsistent total_sequence_length"
)


def row(verdict: Conformity | None = Conformity.RIGHT, **fields: object) -> ConformanceRecord:
    """One row, with fields replaced."""
    usual: dict[str, object] = {"runtime": "ort-cpu", "feature": "plain", "operator": "Attention", "opset": 23}
    usual |= {"dtype": "float32", "verdict": verdict, "cases": 4}
    usual |= {"outcome": Outcome.SKIPPED if verdict is None else verdict.outcome}
    is_judged = verdict is not None and (verdict is Conformity.RIGHT or verdict.disagrees)
    usual |= {"path": "native", "path_nodes": 1} if is_judged else {}
    record = {**usual, **fields}
    group, title = FEATURES.get(str(record["feature"]), ("other", ""))
    again = f"sdpa-onnx conformance --runtime {record['runtime']} --only {record['feature']} --opset {record['opset']}"
    return ConformanceRecord(**({"group": group, "title": title, "repeat": again} | record))  # type: ignore[arg-type]


def rows(runtime: str = "ort-cpu") -> Iterator[ConformanceRecord]:
    """A runtime with something of every kind."""
    for feature in FEATURES:
        for operator, opset, dtype in PLACES:
            if (feature == "window-left" and opset != 25) or ("MultiHead" in operator and "past" in feature):
                continue
            place = {"runtime": runtime, "feature": feature, "operator": operator, "opset": opset, "dtype": dtype}
            yield _judged(**place)


def _judged(**place: object) -> ConformanceRecord:
    feature, opset, dtype = place["feature"], place["opset"], place["dtype"]
    expanded = {"path": "expanded", "path_nodes": 59} if opset == 25 else {}
    if dtype == "bfloat16":
        return row(Conformity.REFUSED, reason="NOT_IMPLEMENTED : no kernel for Attention(23) in bfloat16", **place)
    if feature == "mask-shorter-than-keys":
        return row(Conformity.REFUSED, reason=SHORT_MASK, **place)
    if feature == "window-left" and dtype == "float16":
        return row(Conformity.CRASHED, reason="The process ended by signal 11 (SIGSEGV).", **place)
    if feature == "causal-past-one-query" and opset in (23, 24):
        return row(Conformity.WRONG, **(place | _UPPER_LEFT | {"max_bound_ratio": 41000.0 if opset == 23 else 38500.0}))
    if feature == "mask-row-fully-masked" and opset == 25:
        return row(Conformity.WRONG, **(place | expanded | _MEAN))
    return row(**(place | expanded))


_UPPER_LEFT: dict[str, object] = {
    "observed": "upper-left",
    "reading": "causal-upper-left (the text of onnx 1.18, 2025-05)",
    "diagnosis": "It looks as if the past were not counted in the causal mask",
    "max_abs_error": 0.3127,
    "wrong_cases": 3,
}
_MEAN: dict[str, object] = {
    "observed": "mean-of-values",
    "diagnosis": "A row without keys is the mean of the values; the oracle gives zero",
    "max_abs_error": 0.84,
    "max_bound_ratio": 125000.0,
    "wrong_cases": 1,
}


def run_of(*records: ConformanceRecord, **fields: object) -> ConformanceRun:
    """A run with these rows, of known versions and a known machine."""
    used = dict.fromkeys(record.runtime for record in records)
    versions = {"ort-cpu": "onnxruntime 1.32.0", "openvino": "openvino 2026.4.1"}
    usual: dict[str, object] = {
        "records": records,
        "versions": {runtime: versions.get(runtime, "") for runtime in used},
        "sources": {"causal-past-one-query": "https://onnx.ai/operators", "plain": "Attention-23, text of onnx 1.23"},
        "facts": {"processor": "Invented CPU at 2.5 GHz", "system": "Linux x86_64", "python": "3.11.9"},
        "command": "sdpa-onnx conformance --runtime ort-cpu --seed 0",
        "made": "2026-07-01",
    }
    return ConformanceRun(**(usual | fields))  # type: ignore[arg-type]
