"""The gate on graphs: planted changes, just inside and just outside."""

import pytest

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.records.gate_records import Gate, GateVerdict
from sdpa_onnx.core.records.records import ExportRecord
from tests.core.gate_problems import agreed, stored, timed

_MIB = 2**20
_CPU = "CPUExecutionProvider"


@pytest.mark.parametrize(
    ("base", "head", "word", "sentence"),
    [
        ({}, {}, GateVerdict.SAME, "The file and the executed nodes are the same."),
        ({}, {"ran": {"Attention": 11}}, GateVerdict.CHANGED, "What runs: Attention 10 to 11."),
        (
            {},
            {"ran": {"Attention": 12}},
            GateVerdict.REGRESSION,
            "12 nodes run, before 10: an increase of more than 10 %.",
        ),
        ({"ran": {"Attention": 12}}, {}, GateVerdict.BETTER, "What runs: Attention 12 to 10."),
        (
            {},
            {"expanded": {"Attention": 59}},
            GateVerdict.REGRESSION,
            "Attention is now expanded into 59 nodes: the runtime has no kernel for this node.",
        ),
        (
            {"expanded": {"Attention": 59}},
            {"expanded": {"Attention": 60}},
            GateVerdict.SAME,
            "The file and the executed nodes",
        ),
        ({"expanded": {"Attention": 59}}, {}, GateVerdict.BETTER, "Attention is no longer expanded."),
        (
            {"fused": {"Gelu": 1}, "ran": {"Attention": 9, "Gelu": 1}},
            {"ran": {"Attention": 11}},
            GateVerdict.REGRESSION,
            "Gelu is no longer fused: it ran before, and more nodes run now.",
        ),
        # What it did is done by fewer nodes.
        (
            {"fused": {"Gelu": 1}, "ran": {"Attention": 9, "Gelu": 1}},
            {"ran": {"Attention": 10}},
            GateVerdict.CHANGED,
            "What runs: Gelu 1 to 0, Attention 9 to 10. Gelu was fused and no longer runs.",
        ),
        # Not fused any more because the file has it now.
        (
            {"fused": {"Gelu": 1}, "ran": {"Gelu": 1}},
            {"ran": {"Gelu": 1}},
            GateVerdict.SAME,
            "The file and the executed nodes",
        ),
        (
            {"providers": {"CUDAExecutionProvider": 10}},
            {"providers": {"CUDAExecutionProvider": 9, _CPU: 1}},
            GateVerdict.REGRESSION,
            f"1 node fell back to {_CPU}; before there were none.",
        ),
        ({}, {"providers": {_CPU: 11}}, GateVerdict.SAME, "The file and the executed nodes"),
        ({}, {"opset": 24}, GateVerdict.CHANGED, "Opset 23 became 24."),
        (
            {"runtime_version": "onnxruntime 1.31.1"},
            {"runtime_version": "onnxruntime 1.32.0"},
            GateVerdict.CHANGED,
            "onnxruntime 1.31.1 became onnxruntime 1.32.0.",
        ),
        ({}, {"runtime_version": "onnxruntime 1.32.0"}, GateVerdict.SAME, "The file and the executed nodes"),
        ({}, {"model_nodes": {"Attention": 2}}, GateVerdict.CHANGED, "In the file: Attention 1 to 2."),
        ({}, {"model_bytes": 22 * _MIB}, GateVerdict.SAME, "The file and the executed nodes"),
        ({}, {"model_bytes": 22 * _MIB + 1}, GateVerdict.REGRESSION, "The file has 23068673 bytes, before 20971520."),
        ({"model_bytes": 1000}, {"model_bytes": 1000 + _MIB}, GateVerdict.SAME, "The file and the executed nodes"),
        ({"model_bytes": 1000}, {"model_bytes": 1001 + _MIB}, GateVerdict.REGRESSION, "The file has 1049577 bytes"),
        ({"model_bytes": None}, {}, GateVerdict.SAME, "The file and the executed nodes"),
    ],
)
def test_graph(base: dict[str, object], head: dict[str, object], word: GateVerdict, sentence: str) -> None:
    """Each fault by itself, each with its twin that passes."""
    (row,) = stored([timed(**base)], [timed(**head)], Gate.GRAPH)
    assert (row.word, row.fails) == (word, word is GateVerdict.REGRESSION), row.evidence
    assert row.evidence.startswith(sentence)


def test_limits_are_options() -> None:
    """More nodes and larger files can be allowed."""
    limits = GateLimits(more_nodes=0.5, larger_file=0.5)
    head = timed(ran={"Attention": 15}, model_bytes=30 * _MIB)
    assert not stored([timed()], [head], Gate.GRAPH, limits)[0].fails
    assert stored([timed()], [timed(ran={"Attention": 16})], Gate.GRAPH, limits)[0].fails


def test_one_row_for_all_sizes() -> None:
    """The same change at ten lengths is one finding; where sizes differ in it there are two."""
    base = [timed(case=f"q{number}") for number in range(10)]
    head = [timed(case=f"q{number}", ran={"Attention": 20}) for number in range(10)]
    assert len(stored(base, head, Gate.GRAPH)) == 1
    assert len(stored(base, [*head[:9], timed(case="q9")], Gate.GRAPH)) == 2


def test_judged_models_count_where_they_were_not_timed() -> None:
    """Judging taps a graph, so what was timed is believed first."""
    base, head = agreed(ran={"Attention": 1}), agreed(ran={"Softmax": 5})
    assert [row.word for row in stored([base], [head], Gate.GRAPH)] == [GateVerdict.REGRESSION]
    assert [row.word for row in stored([base, timed()], [head, timed()], Gate.GRAPH)] == [GateVerdict.SAME]


def test_exports_tell_the_nodes_of_the_file() -> None:
    """Changes are reported; executed nodes are compared separately."""
    exports = [ExportRecord(target="sdpa", form="attention", opset=23, nodes={"MatMul": count}) for count in (2, 9)]
    (row,) = stored([exports[0]], [exports[1]], Gate.GRAPH)
    assert (row.word, row.evidence) == (GateVerdict.CHANGED, "In the file: MatMul 2 to 9.")


def test_many_operators_are_counted() -> None:
    """The first ones are named: what is gone, then the largest changes."""
    head = {f"Op{number:02}": number + 1 for number in range(12)}
    (row,) = stored([timed()], [timed(ran=head)], Gate.GRAPH)
    assert "What runs: Attention 10 to 0, Op11 0 to 12, " in row.evidence
    assert row.evidence.endswith(" and 5 more.")


@pytest.mark.parametrize(
    ("head", "amount"),
    [
        ({"ran": {"Attention": 15}}, 1.5),
        ({"ran": {"Attention": 15}, "model_bytes": 80 * _MIB}, 4.0),
        ({"ran": {"Attention": 15}, "model_bytes": None}, 1.5),
    ],
)
def test_how_much_larger_it_is(head: dict[str, object], amount: float) -> None:
    """Nodes that run or bytes of the file over BASE's, whichever is more."""
    (row,) = stored([timed()], [timed(**head)], Gate.GRAPH)
    assert row.amount == amount
