"""Attentions of several kinds in bodies and functions of several kinds, as text; no tests.

Every attention has 2 query heads of 8 numbers over the values `q`, `k`, `v` of the place where it lies.
"""

import itertools

import onnx
from onnx import parser

__all__ = ["KINDS_INSIDE", "NESTED", "PLACES_INSIDE", "nested_proto"]

_PRODUCTS = "kt = Transpose <perm = [0, 1, 3, 2]> ({k})  s0 = MatMul (q, kt)  s1 = Mul (s0, sc)"
_WEIGHTS = "p = Softmax <axis = -1> ({s})  a = MatMul (p, {v})"
_PLAIN = f"{_PRODUCTS.format(k='k')}  {_WEIGHTS.format(s='s1', v='v')}"
# Keys and values of one head, for two heads of queries.
_GROUPED = """ks = Shape (k)  b1 = Slice (ks, zero1, one1)  s1_ = Slice (ks, two1, three1)
  wide = Concat <axis = 0> (b1, one1, two1, s1_, eight1)  flat = Concat <axis = 0> (b1, two1, s1_, eight1)
  k5 = Unsqueeze (k, two1)  ke = Expand (k5, wide)  kr = Reshape (ke, flat)
  v5 = Unsqueeze (v, two1)  ve = Expand (v5, wide)  vr = Reshape (ve, flat)"""
# By kind: the nodes, and the number of key heads.
_INSIDE: dict[str, tuple[str, int]] = {
    "plain": (_PLAIN, 2),
    "float mask": (f"{_PRODUCTS.format(k='k')}  s = Add (s1, m)  {_WEIGHTS.format(s='s', v='v')}", 2),
    "bool mask": (
        f"hide = Less (m, zf)  {_PRODUCTS.format(k='k')}  s = Where (hide, low, s1)  {_WEIGHTS.format(s='s', v='v')}",
        2,
    ),
    "grouped heads": (f"{_GROUPED}  {_PRODUCTS.format(k='kr')}  {_WEIGHTS.format(s='s1', v='vr')}", 1),
    "scaled on both sides": (
        f"""qs = Mul (q, half)  kt = Transpose <perm = [0, 1, 3, 2]> (k)  ks = Mul (kt, half)  s = MatMul (qs, ks)
        {_WEIGHTS.format(s="s", v="v")}""",
        2,
    ),
    "operator of onnxruntime": (
        """qt = Transpose <perm = [0, 2, 1, 3]> (q)  q3 = Reshape (qt, join)  kt = Transpose <perm = [0, 2, 1, 3]> (k)
        k3 = Reshape (kt, join)  vt = Transpose <perm = [0, 2, 1, 3]> (v)  v3 = Reshape (vt, join)
        a3 = com.microsoft.MultiHeadAttention <num_heads = 2> (q3, k3, v3)
        a4 = Reshape (a3, split)  a = Transpose <perm = [0, 2, 1, 3]> (a4)""",
        2,
    ),
}
_TURN = "n = Constant <value = int64 {{2}}> ()  go = Constant <value = bool {{1}}> ()"
_OTHER = "other () => (e) {{ e = Neg (q) }}"
# By place: the nodes of the graph around the nodes of an attention, and further inputs.
_PLACES: dict[str, tuple[str, str]] = {
    "If": (f"y = If (c) <then_branch = yes () => (a) {{{{ {{nodes}} }}}}, else_branch = {_OTHER}>", ", bool c"),
    "If in If": (
        f"""y = If (c) <then_branch = yes () => (b) {{{{ b = If (t) <then_branch = in () => (a) {{{{ {{nodes}} }}}},
          else_branch = in_other () => (f) {{{{ f = Abs (q) }}}}> }}}}, else_branch = {_OTHER}>""",
        ", bool c, bool t",
    ),
    "Loop that carries its queries": (
        f"""{_TURN}  y = Loop (n, go, q_in) <body = turn (int64 i, bool g, float[B,2,L,8] q)
          => (bool go_on, float[B,2,L,8] a) {{{{ go_on = Identity (g)  {{nodes}} }}}}>""",
        "",
    ),
    "Loop that stacks": (
        f"""{_TURN}  z = Loop (n, go) <body = turn (int64 i, bool g) => (bool go_on, float[B,2,L,8] a) {{{{
          go_on = Identity (g)  {{nodes}} }}}}>  y = ReduceSum <keepdims = 0> (z, zero1)""",
        "",
    ),
    "Loop that grows a cache": (
        f"""{_TURN}  k_last, v_last, y = Loop (n, go, k_in, v_in, q_in) <body = turn
          (int64 i, bool g, float[B,H,P,8] kc, float[B,H,P,8] vc, float[B,2,L,8] q)
          => (bool go_on, float[B,H,P1,8] k, float[B,H,P1,8] v, float[B,2,L,8] a) {{{{ go_on = Identity (g)
            k = Concat <axis = 2> (kc, k_in)  v = Concat <axis = 2> (vc, v_in)  {{nodes}} }}}}>""",
        "",
    ),
    "Scan over samples": (
        """y = Scan <num_scan_inputs = 4, body = step
          (float[2,L,8] qi, float[H,S,8] ki, float[H,S,8] vi, float[1,L,S] mi)
          => (float[2,L,8] one) {{ q = Unsqueeze (qi, zero1)  k = Unsqueeze (ki, zero1)  v = Unsqueeze (vi, zero1)
            m = Unsqueeze (mi, zero1)  {nodes}  one = Squeeze (a, zero1) }}> (q_in, k_in, v_in, m_in)""",
        "",
    ),
    "function called twice": ("h = own.Attend (q, k, v, m)  y = own.Attend (h, k, v, m)", ""),
    "function in If": (
        f"y = If (c) <then_branch = yes () => (b) {{{{ b = own.Attend (q, k, v, m) }}}}, else_branch = {_OTHER}>",
        ", bool c",
    ),
}
PLACES_INSIDE = tuple(_PLACES)
KINDS_INSIDE = tuple(_INSIDE)
_MASKED = ("float mask", "bool mask")
# The cache grows, so no mask of one width fits its turns.
NESTED = [
    (place, kind)
    for place, kind in itertools.product(_PLACES, _INSIDE)
    if not (place == "Loop that grows a cache" and kind in _MASKED)
]
_NUMBERS = {"zero1": "{0}", "one1": "{1}", "two1": "{2}", "three1": "{3}", "eight1": "{8}"}
_FLOATS = {"sc": "{SCALE}", "half": "{HALF}", "zf": "{0.0}", "low": "{-1e9}"}


def _constants(*, scale: float) -> str:
    numbers = "".join(f" {name} = Constant <value = int64[1] {text}> ()" for name, text in _NUMBERS.items())
    floats = "".join(
        f" {name} = Constant <value = float {text.replace('SCALE', repr(scale)).replace('HALF', repr(scale**0.5))}> ()"
        for name, text in _FLOATS.items()
    )
    shapes = " join = Constant <value = int64[3] {0, 0, 16}> ()  split = Constant <value = int64[4] {0, 0, 2, 8}> ()"
    return numbers + floats + shapes


def nested_proto(place: str, kind: str, *, scale: float = 0.35355338, masked: bool = True) -> onnx.ModelProto:
    """One model.

    Args:
        place: One of `PLACES_INSIDE`.
        kind: One of `KINDS_INSIDE`.
        scale: The scale of its attention, where that is not the operator's own.
        masked: Whether a mask hides anything; if not, its place is taken by zeros.
    """
    around, more = _PLACES[place]
    nodes, heads = _INSIDE[kind]
    if not masked:
        nodes = nodes.replace("Add (s1, m)", "Identity (s1)").replace("Where (hide, low, s1)", "Identity (s1)")
    inputs = f"float[B,2,L,8] q_in, float[B,{heads},S,8] k_in, float[B,{heads},S,8] v_in, float[B,1,L,S] m_in{more}"
    own = [name for name in "qkvm" if f"] {name})" in around or f"] {name}," in around or f" {name} = " in around]
    renames = " ".join(f"{name} = Identity ({name}_in)" for name in "qkvm" if name not in own)
    body = around.replace("[B,H,", f"[B,{heads},").replace("[H,", f"[{heads},").format(nodes=nodes)
    text = (
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1, "own" : 1]>'
        f" g ({inputs}) => (float[B,2,L,8] y) {{ {_constants(scale=scale)} {renames} {body} }}"
    )
    proto = parser.parse_model(text)
    if "function" in place:
        function = parser.parse_function(
            '<opset_import: ["" : 18, "com.microsoft" : 1], domain: "own">'
            f" Attend (q, k, v, m) => (a) {{ {_constants(scale=scale)} {nodes} }}"
        )
        proto.functions.append(function)
    return proto
