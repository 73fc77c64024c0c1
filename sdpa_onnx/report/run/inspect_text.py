"""The result of `inspect` in words: how many attentions a file has and whether its axes hold, then each attention."""

from collections.abc import Mapping, Sequence

from sdpa_onnx.core.records.records import AttentionRecord
from sdpa_onnx.report.run.attention_text import describe_attention
from sdpa_onnx.report.run.form_table import attention_names
from sdpa_onnx.report.run.limits_table import limit_in_words
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.result_text import ResultText
from sdpa_onnx.runtimes.base import RanReport

__all__ = ["inspect_result"]

# Operator types of a line; the others are counted.
_MOST_OPERATORS = 6


def inspect_result(
    path: str, opset: int, records: Sequence[AttentionRecord], *, says: str, ran: Mapping[str, RanReport | str]
) -> ResultText:
    """The result of `inspect`.

    Args:
        path: The file.
        opset: Its opset.
        records: Its attentions, with the trial of the axes if there was one.
        says: The result of that trial, one sentence; "" if the file was not run.
        ran: What runs on each runtime, or why nothing does.
    """
    axes = ", ".join(records[0].dynamic_axes) or "none"
    details = [
        *_attentions(records),
        f"Dynamic axes: {axes}.",
        *(f"It {limit_in_words(limit)}." for limit in records[0].limits),
        *(f"Warning: {line}" for line in _file_warnings(records)),
        *(f"On {name}: {_execution(found)}" for name, found in ran.items()),
    ]
    found = f"{path}: {count(len(records), 'attention')}, opset {opset}."
    return ResultText(verdict=f"{found} {says}".strip(), details=tuple(details))


def _attentions(records: Sequence[AttentionRecord]) -> list[str]:
    """Each kind of attention once, with its own warnings."""
    alike: dict[tuple[str, tuple[str, ...]], list[AttentionRecord]] = {}
    for record in records:
        key = describe_attention(record).replace(record.node, ""), record.warnings
        alike.setdefault(key, []).append(record)
    lines: list[str] = []
    for same in alike.values():
        lines.append(f"{attention_names([one.node for one in same])}: {describe_attention(same[0])}.")
        lines += [f"Warning: {warning}" for warning in same[0].warnings]
    return list(dict.fromkeys(lines))


def _file_warnings(records: Sequence[AttentionRecord]) -> list[str]:
    """Warnings about a file that can be read."""
    return [*records[0].static_axes, *(record.scale_doubt for record in records if record.scale_doubt)]


def _execution(ran: RanReport | str) -> str:
    if isinstance(ran, str):
        return f"does not run: {ran}"
    if not ran.node_counts:
        return " ".join([f"nodes not known, {ran.precision}.", *ran.warnings])
    kinds = sorted(ran.node_counts.items(), key=lambda item: -item[1])
    more = f", {count(len(kinds) - _MOST_OPERATORS, 'other')}" if len(kinds) > _MOST_OPERATORS else ""
    top = ", ".join(f"{number} {kind}" for kind, number in kinds[:_MOST_OPERATORS])
    nodes = count(sum(ran.node_counts.values()), "node")
    return " ".join([f"{nodes} ({top}{more}), {ran.precision}.", *ran.warnings])
