"""The reason why an attention cannot be read names the node; attention in subgraphs and functions is found too."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import FoundAttention

_BODY = """
<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1, "own" : 1]>
attention (QKV, float t, float[B,1,L,S] m, bool[B,1,L,S] c, float[B,4,L,8] w) => (float[B,HEADS,L,8] y)
<float five = {-5.0}, float lowest = {-1e9}, float two = {2.0}, float[1] half = {0.5},
 float zero = {0.0}, float infinite = {-1.0}, int32 whole = {1}, int32 eight = {8}, int64[1] last = {-1}>
{
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  STEPS
}
"""
_OPERANDS = "float[B,4,L,8] q, float[B,4,S,8] k, float[B,4,S,8] v"
_HIDDEN = "e0 = Equal (x, infinite)  i = Cast <to = 6> (e0)"
_SOFTMAX = "p = Softmax (x)  h = Where (b, zero, p)  y = MatMul (h, v)"
_GUARDED = f"b = Cast <to = 9> (r)  {_SOFTMAX}"
_TAIL = "p = Softmax (x)  y = MatMul (p, v)"


def parsed(steps: str, operands: str = _OPERANDS) -> ir.Model:
    text = _BODY.replace("QKV", operands).replace("HEADS", "N" if "N" in operands else "4").replace("STEPS", steps)
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.initializers["infinite"].const_value = ir.tensor(np.float32(-np.inf), name="infinite")
    return model


def only(model: ir.Model) -> FoundAttention:
    (found,) = find_attentions(model).found
    return found


_ZEROS = (
    "weights become 0, and it is not proved that only rows that the mask 'm' hides fully do: node Where/h (hide keys "
    "by the mask alone)"
)

REFUSED = {
    "axis": ("p = Softmax <axis = 1> (s)  y = MatMul (p, v)", "softmax over axis 1 at node Softmax/p"),
    "scale": (f"x = Mul (s, t)  {_TAIL}", "the scale is not constant: node Mul/x"),
    "inverse": (f"x = Div (two, s)  {_TAIL}", "a value is divided by the scores: node Div/x"),
    "fill": (
        f"x = Where (c, s, t)  {_TAIL}",
        (
            "the number that replaces scores under the mask 'c' is not constant: node Where/x (use -inf, or a constant "
            "of at most -1000)"
        ),
    ),
    "high fill": (
        f"x = Where (c, s, five)  {_TAIL}",
        "the mask 'c' replaces scores by -5, which does not hide them: node Where/x (use -inf, or at most -1000)",
    ),
    "late softcap": (
        f"a = Add (s, m)  x = Tanh (a)  {_TAIL}",
        "Tanh follows the mask 'm': node Tanh/x (apply the mask after Tanh)",
    ),
    "two softcaps": (f"a = Tanh (s)  x = Tanh (a)  {_TAIL}", "Tanh follows another Tanh: node Tanh/x"),
    "negated": (f"x = Sub (m, s)  {_TAIL}", "the scores are subtracted: node Sub/x"),
    "negative factor": (
        f"a = Add (s, m)  x = Mul (a, five)  {_TAIL}",
        "scores masked by 'm' are multiplied by -5: node Mul/x (apply the mask after it)",
    ),
    "high limit": (f"x = Clip (s, lowest, two)  {_TAIL}", "scores are limited from above: node Clip/x"),
    "limit that shows": (
        f"x = Max (s, five)  {_TAIL}",
        (
            "scores are limited from below by a value that is not known to hide them: node Max/x (use a constant of at "
            "most -1000)"
        ),
    ),
    "transposed scores": (
        f"x = Transpose <perm = [0, 1, 3, 2]> (s)  {_TAIL}",
        "there is a Transpose between the scores and the softmax: node Transpose/x",
    ),
    "eight bits": (
        f"i = Cast <to = 17> (s)  x = Cast <to = 1> (i)  {_TAIL}",
        "there is a Cast between the scores and the softmax: node Cast/i",
    ),
    "head mask": (
        "p = Softmax (s)  h = Mul (p, m)  y = MatMul (h, v)",
        "there is a Mul between the softmax and the product with the values: node Mul/h",
    ),
    "guard of something else": (
        "p = Softmax (s)  h = Where (c, p, five)  y = MatMul (h, v)",
        "there is a Where between the softmax and the product with the values: node Where/h",
    ),
    "guard of rows with a hidden key": (
        f"x = Add (s, m)  {_HIDDEN}  r = ReduceMax <axes = [-1]> (i)  {_GUARDED}",
        _ZEROS,
    ),
    "guard of rows with a seen key": (
        f"x = Add (s, m)  {_HIDDEN}  f = ReduceMin <axes = [-1]> (i)  r = Sub (whole, f)  {_GUARDED}",
        _ZEROS,
    ),
    "guard of rows with eight hidden keys": (
        f"x = Add (s, m)  {_HIDDEN}  f = ReduceSum (i, last)  e = Equal (f, eight)  r = Cast <to = 6> (e)  {_GUARDED}",
        _ZEROS,
    ),
    "guard of low rows": (
        f"x = Add (s, m)  g = ReduceMax <axes = [-1]> (x)  b = Less (g, lowest)  {_SOFTMAX}",
        _ZEROS,
    ),
    "guard by NaN of another value": (
        f"x = Add (s, m)  b = IsNaN (m)  {_SOFTMAX}",
        _ZEROS,
    ),
    "two products": (
        "p = Softmax (s)  a = MatMul (p, v)  b = MatMul (p, w)  y = Add (a, b)",
        "the weights enter several products: nodes MatMul/a, MatMul/b",
    ),
    "weights on the right": (
        "p = Softmax (s)  vt = Transpose <perm = [0, 1, 3, 2]> (v)  y = MatMul (vt, p)",
        "MatMul is not read as a product of weights and values: node MatMul/y",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_names_the_node(name: str) -> None:
    """A softmax between two products with an unsupported node on the path is reported with the reason."""
    steps, reason = REFUSED[name]
    found = only(parsed(steps))
    assert (found.attention, found.reason) == (None, reason)


SHAPES = {
    "heads": (
        "float[B,N,L,8] q, float[B,N,S,8] k, float[B,N,S,8] v",
        "the number or the width of the heads is not static: node MatMul/s (give it: verify --size N=SIZE)",
    ),
    "different heads": (
        "float[B,4,L,8] q, float[B,2,S,8] k, float[B,4,S,8] v",
        "key has 2 heads and value 4: node MatMul/s",
    ),
    "shared batch": (
        "float[B,4,L,8] q, float[1,4,S,8] k, float[1,4,S,8] v",
        "query, key and value have different batch sizes, which broadcast: node MatMul/s",
    ),
    "rank": (
        "float[B,4,L,8] q, float[B,4,S,8] k, float[4,S,8] v",
        "query, key and value have 4, 4 and 3 axes: node MatMul/s",
    ),
    "odd heads": (
        "float[B,4,L,8] q, float[B,3,S,8] k, float[B,3,S,8] v",
        "q_num_heads is 4, which kv_num_heads = 3 does not divide: node MatMul/s",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_mismatched_shapes_are_reported(name: str) -> None:
    """Head counts must be static and match, and the batch sizes must be equal."""
    operands, reason = SHAPES[name]
    found = only(parsed("p = Softmax (s)  y = MatMul (p, v)", operands))
    assert (found.attention, found.reason) == (None, reason)


def test_a_refused_reading_leaves_the_graph_alone() -> None:
    """Nodes built before a reading fails are not inserted into the copy and consume nothing."""
    model = parsed("p = Softmax (s)  h = Mul (p, m)  y = MatMul (h, v)")
    findings = find_attentions(model)
    assert [node.op_type for node in findings.model.graph] == [node.op_type for node in model.graph]
    assert all(user.graph is not None for value in findings.model.graph.inputs for user in value.consumers())


@pytest.mark.parametrize(("axis", "is_read"), [("", False), ("<axis = 3>", True)], ids=["default", "last"])
def test_the_default_axis_is_that_of_the_opset(axis: str, is_read: bool) -> None:
    """Below opset 13 a softmax without an axis runs over all axes from 1 on."""
    model = parsed(f"p = Softmax {axis} (s)  y = MatMul (p, v)")
    model.opset_imports[""] = 12
    found = only(model)
    assert (found.attention is not None, found.reason) == (
        (True, "") if is_read else (False, "softmax over axis 1 at node Softmax/p")
    )


def test_constant_weights_make_a_layer() -> None:
    """A softmax after a linear layer is not an attention."""
    model = parsed("a = MatMul (q, f)  p = Softmax (a)  y = MatMul (p, g)", f"{_OPERANDS}, float[8,5] f, float[5,8] g")
    weights = next(value for value in model.graph.inputs if value.name == "f")
    weights.const_value = ir.tensor(np.zeros((8, 5), np.float32), name="f")
    model.graph.inputs.remove(weights)
    model.graph.register_initializer(weights)
    assert find_attentions(model).found == ()


def test_a_projection_is_no_product_of_keys() -> None:
    """A classifier's softmax before another layer is distinguished by the ranks of the product's operands."""
    model = parsed("a = MatMul (q, f)  p = Softmax (a)  y = MatMul (p, g)", f"{_OPERANDS}, float[8,5] f, float[5,8] g")
    assert only(model).reason == "its operands have ranks 4 and 2, so it is a projection: node MatMul/a"


def test_a_softmax_without_products_is_no_attention() -> None:
    """Only a softmax between two products is an attention."""
    assert find_attentions(parsed("y = Softmax (q)")).found == ()


def test_attention_in_a_branch_is_refused_like_any_other() -> None:
    """The reason names the node in the branch; the scores are computed outside of it."""
    model = parsed(
        """o = Cast <to = 9> (t)
        y = If (o) <
          then_branch = yes () => (float[B,4,L,8] a) { p = Softmax <axis = 2> (s)  a = MatMul (p, v) },
          else_branch = no () => (float[B,4,L,8] b) { b = Identity (q) }
        >"""
    )
    found = only(model)
    assert found.dialect == "softmax between two products"
    assert found.reason == "softmax over axis 2 at node Softmax/p"
