"""Subgraphs inside subgraphs, to the depth that protobuf reads and beyond it. The bytes are written by hand."""

from pathlib import Path

import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import load_model


def _field(number: int, content: bytes) -> bytes:
    """A field of a message that has a length."""
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes([*length, size]) + content


def _output(name: str) -> bytes:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]).SerializeToString()


def _nested(depth: int, *, as_list: bool = False) -> bytes:
    """A model with `depth` If nodes inside each other; protobuf writes none that it does not read."""
    inner = helper.make_graph([helper.make_node("Relu", ["X"], ["r"])], "body", [], []).SerializeToString()
    name, body = "r", inner + _field(GraphProto.OUTPUT_FIELD_NUMBER, _output("r"))
    plain = helper.make_graph([helper.make_node("Neg", ["X"], ["e"])], "other", [], []).SerializeToString()
    other = plain + _field(GraphProto.OUTPUT_FIELD_NUMBER, _output("e"))
    for level in range(depth):
        name = f"o{level}"
        node = NodeProto(op_type="If", input=["c"], output=[name]).SerializeToString()
        for branch, graph in (("then_branch", body), ("else_branch", other)):
            kind = AttributeProto.GRAPHS if as_list else AttributeProto.GRAPH
            number = AttributeProto.GRAPHS_FIELD_NUMBER if as_list else AttributeProto.G_FIELD_NUMBER
            attribute = AttributeProto(name=branch, type=kind).SerializeToString() + _field(number, graph)
            node += _field(NodeProto.ATTRIBUTE_FIELD_NUMBER, attribute)
        body = _field(GraphProto.NODE_FIELD_NUMBER, node) + GraphProto(name=f"g{level}").SerializeToString()
        body += _field(GraphProto.OUTPUT_FIELD_NUMBER, _output(name))
    for value, kind in (("c", TensorProto.BOOL), ("X", TensorProto.FLOAT)):
        info = helper.make_tensor_value_info(value, kind, [] if value == "c" else ["n"])
        body += _field(GraphProto.INPUT_FIELD_NUMBER, info.SerializeToString())
    model = ModelProto(ir_version=9, opset_import=[helper.make_opsetid("", 18)]).SerializeToString()
    return model + _field(ModelProto.GRAPH_FIELD_NUMBER, body)


@pytest.mark.parametrize("depth", [1, 20, 31])
def test_what_protobuf_reads_is_read(tmp_path: Path, depth: int) -> None:
    """Up to that depth, every node is there."""
    path = tmp_path / "m.onnx"
    path.write_bytes(_nested(depth))
    assert sum(node.op_type == "If" for node in load_model(path).ir.graph.all_nodes()) == depth


@pytest.mark.parametrize(("depth", "as_list"), [(33, False), (45, False), (45, True), (200, False), (5000, False)])
def test_deeper_ones_are_refused(tmp_path: Path, depth: int, *, as_list: bool) -> None:
    """The sentence names the cause, which is no damage."""
    path = tmp_path / "m.onnx"
    path.write_bytes(_nested(depth, as_list=as_list))
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(caught.value) == (
        f"{path} has subgraphs of If, Loop or Scan nested deeper than protobuf reads, about 30 deep. onnxruntime "
        "cannot read it either. Export it with fewer nested branches."
    )


def test_damaged_file_is_not_called_nested(tmp_path: Path) -> None:
    """A deep file that is cut short is refused as no model."""
    path = tmp_path / "m.onnx"
    path.write_bytes(_nested(20)[:-40])
    with pytest.raises(ModelError, match="is not an ONNX model"):
        load_model(path)
