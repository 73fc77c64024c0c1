"""Constants, axis sizes and unique names of the graph being searched."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.sizes import SameSizes, SymbolicSize, stated


def searched(nodes: str, *, inputs: str = "float[B,L,12] x, float[B,4,3,8] z", opset: int = 17) -> GraphFacts:
    text = f"""<ir_version: 9, opset_import: ["" : {opset}]>
    g ({inputs}) => (float y)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}}, int64[1] rest = {{-1}},
     int64[1] last = {{100}}, int64 scalar = {{2}}, float root = {{16.0}}, float[2] pair = {{1.0, 2.0}}>
    {{ {nodes} }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.outputs[0].shape = None
    return GraphFacts(model)


def parsed(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}'))


def value_of(search: GraphFacts, name: str = "y") -> ir.Value:
    return next(value for node in search.graph for value in node.outputs if value.name == name)


CHAINS = {
    "width": ("s = Shape (x)  w = Slice (s, rest, last)  y = Cast <to = 1> (w)", [12.0]),
    "scale": (
        "s = Shape (z)  w = Slice (s, three, last)  f = Cast <to = 1> (w)  r = Sqrt (f)  y = Reciprocal (r)",
        [8**-0.5],
    ),
    "part": ("y = Shape <start = 1, end = 3> (z)", [4, 3]),
    "gathered": ("s = Shape (z)  y = Gather (s, two)", [3]),
    "product": ("s = Shape (z)  a = Gather (s, one)  b = Gather (s, two)  y = Mul (a, b)", [12]),
    "whole numbers are divided down": ("s = Shape (z)  a = Gather (s, three)  y = Div (a, three)", [2]),
    "joined": ("s = Shape (z)  a = Gather (s, one)  y = Concat <axis = 0> (a, two)", [4, 2]),
    "chosen": ("s = Shape <start = 2> (x)  e = Equal (s, rest)  y = Where (e, one, s)", [12]),
    "remainder": ("s = Shape (z)  a = Gather (s, three)  y = Mod (a, three)", [2]),
    "filled": ("y = ConstantOfShape <value = float {0.5}> (two)", [0.5, 0.5]),
    "shaped": ("a = Unsqueeze (pair, zero)  b = Squeeze (a, zero)  y = Reshape (b, two)", [1.0, 2.0]),
    "powers": ("a = Neg (pair)  b = Add (a, root)  c = Sub (b, pair)  y = Pow (c, root)", [14.0**16, 12.0**16]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_constants_and_sizes_is_a_constant(name: str) -> None:
    """Values that exporters compute from static sizes are folded."""
    nodes, expected = CHAINS[name]
    search = searched(nodes)
    found = search.constant_of(value_of(search))
    assert found is not None
    np.testing.assert_allclose(found, np.array(expected, found.dtype), rtol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [("axes = [0], starts = [1], ends = [3]", [4, 3]), ("starts = [-1], ends = [9]", [8])],
)
def test_slice_of_an_old_opset(attributes: str, expected: list[int]) -> None:
    """Before opset 10 its ends and axes are attributes."""
    search = searched(f"s = Shape (z)  y = Slice <{attributes}> (s)", opset=9)
    found = search.constant_of(value_of(search))
    assert found is not None
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "nodes",
    [
        "s = Shape (x)  y = Slice (s, zero, two)",  # two dynamic sizes
        "s = Shape (x)  w = Slice (s, zero, one)  y = Cast <to = 1> (w)",  # a dynamic size as a number
        "s = Shape (x)  e = Equal (s, two)  y = Cast <to = 7> (e)",  # a dynamic size may be 2
        "y = Relu (x)",
        "y = RandomNormal <shape = [1]> ()",
        "a = ConstantOfShape (last)  b = Unsqueeze (a, zero)  y = Slice (b, zero, last, two)",  # no such axis
    ],
)
def test_what_depends_on_more_is_none(nodes: str) -> None:
    """No number is invented."""
    search = searched(nodes)
    assert search.constant_of(value_of(search)) is None


DAMAGED = {
    "order": "y = Transpose <perm = [0, 7, 2]> (x)",
    "short order": "y = Transpose <perm = [1, 0]> (x)",
    "axis": "t = Concat <axis = 0> (last, last)  y = Unsqueeze (x, t)",
    "power": "s = Shape (z)  p = Pow (s, s)  q = Pow (p, p)  y = Pow (q, q)",
    "blow-up": """a = ConstantOfShape <value = int64[1] {3000000}> (one)
        b = ConstantOfShape (a)  c = Unsqueeze (b, one)  d = Unsqueeze (b, zero)  y = Add (c, d)""",
    "no inputs": "y = Reshape (x)",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_no_operator_allows_is_unknown(name: str) -> None:
    """Malformed or hostile nodes raise no error and take no time."""
    search = searched(DAMAGED[name])
    assert search.constant_of(value_of(search)) is None


def test_an_initializer_that_is_an_input_is_no_constant() -> None:
    """From IR version 4 on, a caller may override it."""
    model = parsed("g (float a, float b) => (float y) <float b = {2.0}> { y = Mul (a, b) }")
    for version, expected in ((9, None), (3, 2.0)):
        model.ir_version = version
        search = GraphFacts(model)
        assert search.scalar_of(search.graph.inputs[1]) == expected


SHAPES = {
    "left to the others": ("t = Concat <axis = 0> (zero, zero, rest, three)  y = Reshape (x, t)", ["B", "L", 4, 3]),
    "copied": (
        "s = Shape (x)  b = Slice (s, zero, one)  t = Concat <axis = 0> (b, rest, three)  y = Reshape (x, t)",
        ["B", None, 3],
    ),
    "expanded": (
        """u = Unsqueeze (z, two)  b = Shape <end = 1> (x)
        t = Concat <axis = 0> (b, one, three, one, one)  y = Expand (u, t)""",
        ["B", 4, 3, 3, 8],
    ),
    "tiled": ("t = Concat <axis = 0> (one, two, three)  y = Tile (x, t)", ["B", None, 36]),
    "picked": (
        "t = Concat <axis = 0> (rest, one, three)  a = Reshape (x, t)  y = Gather <axis = 1> (a, scalar)",
        [None, 3],
    ),
    "dropped": ("a = Unsqueeze (x, zero)  b = Unsqueeze (a, rest)  y = Squeeze (b, zero)", ["B", "L", 12, 1]),
    "swapped": ("y = Transpose <perm = [0, 2, 1]> (x)", ["B", 12, "L"]),
    "joined": ("y = Concat <axis = 1> (x, x)", ["B", None, 12]),
    "product": ("t = Transpose <perm = [0, 2, 1]> (x)  y = MatMul (x, t)", ["B", "L", "L"]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_follow_from_the_graph(name: str) -> None:
    """Static sizes are derived from computed target shapes, and axis names are kept."""
    nodes, expected = SHAPES[name]
    search = searched(nodes)
    sizes = search.sizes_of(value_of(search))
    assert sizes is not None
    assert [None if str(stated(size)).startswith("unk__") else stated(size) for size in sizes] == expected
    assert search.dims_of(value_of(search)) == tuple(size if isinstance(size, int) else None for size in expected)


def test_sizes_that_are_computed_alike_are_the_same() -> None:
    """Products and sums are equal for any order of operands; differences are not."""
    length, width = SymbolicSize(("axis", "L")), SymbolicSize(("axis", "W"))
    assert length * width == width * length
    assert length + 1 == 1 + length
    assert length - width != width - length
    assert 2 - length != length - 2
    assert length // 2 != 2 // length


def test_a_size_is_known_by_its_best_name() -> None:
    """Different names of one size resolve to its number, inside expressions too."""
    made_up, named, placed = (
        SymbolicSize(("axis", "unk__1")),
        SymbolicSize(("axis", "L")),
        SymbolicSize(("axis", "value", 0)),
    )
    same = SameSizes()
    same.note(placed, made_up)
    same.note(made_up, named)
    assert [same.known_as(size) for size in (made_up, named, placed)] == [named] * 3
    assert same.known_as(placed * 2) == named * 2
    same.note(named, 5)
    assert [same.known_as(size) for size in (placed, placed * 2, 3 - placed, placed // 2, placed + 1)] == [
        5,
        10,
        -2,
        2,
        6,
    ]


def test_the_searched_model_is_left_alone() -> None:
    """The search works on a copy whose nodes have names."""
    model = parsed("g (float[2] a) => (float[2] y) { y = Neg (a) }")
    search = GraphFacts(model)
    nodes = search.nodes_for(search.graph[0])
    nodes("Abs", search.graph.inputs[0])
    search.insert_before(search.graph[0], nodes)
    assert [node.op_type for node in search.graph] == ["Abs", "Neg"]
    assert [node.op_type for node in model.graph] == ["Neg"]
    assert (search.graph[1].name, model.graph[0].name) == ("Neg/y", "")


def test_names_are_given_once() -> None:
    """Prefixes and attention names are unique and no value has them."""
    search = searched("y = Neg (x)")
    node = search.graph[0]
    assert [search.prefix("y"), search.prefix("y"), search.prefix("new")] == ["y_1", "y_2", "new"]
    assert [search.attention_name(node), search.attention_name(node)] == ["Neg/y", "Neg/y#1"]


def test_numbers_of_large_tensors_are_not_read(tmp_path: Path) -> None:
    """A model whose external data file is missing can be searched."""
    tensor = ir.ExternalTensor(
        "weights", 0, 4 * 12 * 12, ir.DataType.FLOAT, shape=ir.Shape([12, 12]), name="w", base_dir=tmp_path
    )
    search_of = parsed("g (float[2,12] a, float[12,12] w) => (float[2,12] y) { y = MatMul (a, w) }")
    weights = search_of.graph.inputs.pop()
    weights.const_value = tensor
    search_of.graph.register_initializer(weights)
    search = GraphFacts(search_of)
    assert search.dims_of(value_of(search)) == (2, 12)
