"""Models with attention inside the bodies of If, Loop and Scan, as text; no tests."""

import onnx
import onnx_ir as ir
from onnx import parser

__all__ = ["BODY_MODELS", "PLACES", "body_model", "body_proto", "body_text"]

_ATTEND = """kt = Transpose <perm = [0, 1, 3, 2]> ({k})  s0 = MatMul ({q}, kt)  s = Mul (s0, {scale})
  {mask}p = Softmax <axis = -1> ({scores})  {out} = MatMul (p, {v})"""


def _attend(q: str, k: str, v: str, out: str, scale: str = "sc", mask: str = "") -> str:
    masked = f"sm = Add (s, {mask})  " if mask else ""
    return _ATTEND.format(q=q, k=k, v=v, out=out, scale=scale, mask=masked, scores="sm" if mask else "s")


_SC = "sc = Constant <value = float {0.35355338}> ()"
_QKV = "float[B,2,L,8] q, float[B,2,S,8] k, float[B,2,S,8] v"
_OTHER = "other () => (e) { e = Neg (q) }"

# Inputs of the graph, its output, its nodes.
_TEXTS = {
    # The condition is an input; the other branch has no attention.
    "if-on-an-input": (
        f"{_QKV}, bool c",
        "float[B,2,L,8] y",
        f"""{_SC}
        y = If (c) <then_branch = yes () => (a) {{ {_attend("q", "k", "v", "a")} }}, else_branch = {_OTHER}>""",
    ),
    # Never false.
    "if-on-a-constant": (
        _QKV,
        "float[B,2,L,8] y",
        f"""{_SC} c = Constant <value = bool {{1}}> ()
        y = If (c) <then_branch = yes () => (a) {{ {_attend("q", "k", "v", "a")} }}, else_branch = {_OTHER}>""",
    ),
    # Always false: no run of the model takes the branch with the attention.
    "if-never-taken": (
        _QKV,
        "float[B,2,L,8] y",
        f"""{_SC} c = Constant <value = bool {{0}}> ()
        y = If (c) <then_branch = yes () => (a) {{ {_attend("q", "k", "v", "a")} }}, else_branch = {_OTHER}>""",
    ),
    # One branch for long inputs, another one for short ones; the names in both are the same.
    "attention-in-both-branches": (
        _QKV,
        "float[B,2,L,8] y",
        f"""{_SC} n = Shape <start = 2, end = 3> (q) four = Constant <value = int64[1] {{4}}> ()
        cs = Greater (n, four)  none = Constant <value = int64[1] {{0}}> ()  c = Squeeze (cs, none)
        y = If (c) <then_branch = yes () => (a) {{ {_attend("q", "k", "v", "a")} }},
          else_branch = no () => (a) {{ {_attend("q", "k", "v", "a")} }}>""",
    ),
    # Query, key, value, mask and scale are all computed outside.
    "captured-values": (
        f"{_QKV}, float[B,1,L,S] m, bool c",
        "float[B,2,L,8] y",
        f"""{_SC} root = Sqrt (sc)  q1 = Neg (q)  k1 = Abs (k)  v1 = Neg (v)  m1 = Mul (m, sc)
        y = If (c) <then_branch = yes () => (a) {{ {_attend("q1", "k1", "v1", "a", "root", "m1")} }},
          else_branch = {_OTHER}>""",
    ),
    # Each turn adds a key and a value to the cache that it carries, and attends to it.
    "loop-with-a-cache": (
        "float[B,2,T,8] q, float[B,2,P,8] k, float[B,2,P,8] v",
        "float[N,B,2,1,8] y, float[B,2,S,8] k_last",
        f"""{_SC} n1 = Shape <start = 2, end = 3> (q)  none = Constant <value = int64[1] {{0}}> ()
        n = Squeeze (n1, none)  go = Constant <value = bool {{1}}> ()
        two = Constant <value = int64[1] {{2}}> ()  one = Constant <value = int64[1] {{1}}> ()
        k_last, v_last, y = Loop (n, go, k, v) <body = turn (int64 i, bool c, float[B,2,P0,8] kc, float[B,2,P0,8] vc)
          => (bool co, float[B,2,P1,8] kn, float[B,2,P1,8] vn, float[B,2,1,8] a) {{
          co = Identity (c)  i1 = Unsqueeze (i, none)  i2 = Add (i1, one)
          qi = Slice (q, i1, i2, two)  ki = Tanh (qi)
          kn = Concat <axis = 2> (kc, ki)  vn = Concat <axis = 2> (vc, qi)
          {_attend("qi", "kn", "vn", "a")} }}>""",
    ),
    # Layers in a loop: the weights are picked by the number of the turn.
    "loop-over-layers": (
        "float[B,L,16] x",
        "float[B,L,16] y",
        f"""{_SC} n = Constant <value = int64 {{3}}> ()  go = Constant <value = bool {{1}}> ()
        w = ConstantOfShape <value = float[1] {{0.1}}> (ws)  heads = Constant <value = int64[4] {{0, 0, 2, 8}}> ()
        flat = Constant <value = int64[3] {{0, 0, 16}}> ()
        y = Loop (n, go, x) <body = layer (int64 i, bool c, float[B,L,16] h) => (bool co, float[B,L,16] hn) {{
          co = Identity (c)  wi = Gather (w, i)  hw = MatMul (h, wi)  hs = Add (h, hw)  hr = Reshape (hs, heads)
          ht = Transpose <perm = [0, 2, 1, 3]> (hr)
          {_attend("ht", "ht", "ht", "a")}
          at = Transpose <perm = [0, 2, 1, 3]> (a)  ar = Reshape (at, flat)  hn = Add (h, ar) }}>""",
    ),
    # One query a step over captured keys.
    "scan-over-time": (
        "float[T,B,2,1,8] q, float[B,2,S,8] k, float[B,2,S,8] v",
        "float[B,2,1,8] last, float[T,B,2,1,8] y",
        f"""{_SC} zero = Constant <value = float {{0}}> ()  none = Constant <value = int64 {{0}}> ()
        q0 = Gather (q, none)  start = Mul (q0, zero)
        last, y = Scan <num_scan_inputs = 1, body = step (float[B,2,1,8] h, float[B,2,1,8] qi)
          => (float[B,2,1,8] hn, float[B,2,1,8] a) {{
          qh = Add (h, qi)  {_attend("qh", "k", "v", "a")}  hn = Tanh (a) }}> (start, q)""",
    ),
    # A branch inside a loop.
    "if-in-a-loop": (
        f"{_QKV}, bool t",
        "float[B,2,L,8] y",
        f"""{_SC} n = Constant <value = int64 {{2}}> ()  go = Constant <value = bool {{1}}> ()
        y = Loop (n, go, q) <body = turn (int64 i, bool c, float[B,2,L,8] h) => (bool co, float[B,2,L,8] hn) {{
          co = Identity (c)  h1 = Tanh (h)
          hn = If (t) <then_branch = yes () => (a) {{ {_attend("h1", "k", "v", "a")} }},
            else_branch = no () => (e) {{ e = Neg (h1) }}> }}>""",
    ),
    # A branch inside a branch.
    "if-in-an-if": (
        f"{_QKV}, bool c, bool t",
        "float[B,2,L,8] y",
        f"""{_SC}
        y = If (c) <then_branch = yes () => (b) {{ q1 = Tanh (q)
            b = If (t) <then_branch = inner () => (a) {{ {_attend("q1", "k", "v", "a")} }},
              else_branch = in_other () => (e) {{ e = Neg (q1) }}> }},
          else_branch = {_OTHER}>""",
    ),
    # The main graph has an attention too.
    "one-outside-one-inside": (
        f"{_QKV}, bool c",
        "float[B,2,L,8] y",
        f"""{_SC} {
            _attend("q", "k", "v", "o")
            .replace("kt", "kto")
            .replace("s0", "s0o")
            .replace(" p ", " po ")
            .replace("(p,", "(po,")
            .replace("(s)", "(so)")
            .replace(" s ", " so ")
        }
        y = If (c) <then_branch = yes () => (a) {{ {_attend("o", "k", "v", "a")} }}, else_branch = {_OTHER}>""",
    ),
}
_TEXTS["loop-over-layers"] = (
    *_TEXTS["loop-over-layers"][:2],
    "ws = Constant <value = int64[3] {3, 16, 16}> () " + _TEXTS["loop-over-layers"][2],
)

BODY_MODELS = tuple(_TEXTS)

# Where the attentions are, outermost body first; "" = the main graph.
PLACES = {
    "if-on-an-input": ("then_branch",),
    "if-on-a-constant": ("then_branch",),
    "if-never-taken": ("then_branch",),
    "attention-in-both-branches": ("then_branch", "else_branch"),
    "captured-values": ("then_branch",),
    "loop-with-a-cache": ("body",),
    "loop-over-layers": ("body",),
    "scan-over-time": ("body",),
    "if-in-a-loop": ("body/then_branch",),
    "if-in-an-if": ("then_branch/then_branch",),
    "one-outside-one-inside": ("", "then_branch"),
}


def body_proto(name: str, opset: int = 18, *, scale: str = "0.35355338") -> onnx.ModelProto:
    """One of the models.

    Args:
        name: One of `BODY_MODELS`.
        opset: Of its default domain.
        scale: The scale that its attentions multiply by.
    """
    return parser.parse_model(body_text(name, opset).replace("{0.35355338}", f"{{{scale}}}"))


def body_text(name: str, opset: int = 18) -> str:
    inputs, outputs, nodes = _TEXTS[name]
    return f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {nodes} }}'


def body_model(name: str, opset: int = 18) -> ir.Model:
    return ir.from_proto(body_proto(name, opset))
