"""The numbers of a record that a reader could take for a measurement."""

from sdpa_onnx.core.records.records import MeasuredValue, Record, Sizes

# Numbers of the request and of its inputs, and counts of the nodes in the graph: no measurements.
SETTINGS = frozenset(
    (
        *("schema", "parts", "opset", "threads", "seed", "spread", "past_seq_len", "margin"),
        *("head_dim", "kv_seq_len", "sigma", "chosen", "measures_time"),
        *("nodes", "model_nodes", "ran", "expanded", "fused", "providers"),
    )
)


def figures_of(record: Record) -> dict[str, object]:
    """Every other field that holds a number, or numbers, by name."""
    found: dict[str, object] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name not in SETTINGS and not isinstance(value, Sizes) and _has_number(value):
            found[name] = value
    return found


def _has_number(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_number, value.values()))
    return isinstance(value, int | float | MeasuredValue)
