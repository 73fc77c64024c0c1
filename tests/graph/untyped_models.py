"""Models whose values between inputs and attention have types or ranks that no shape inference knows; no tests."""

import onnx
from onnx import parser

__all__ = ["UNTYPED_MODELS", "untyped_proto"]

_ATTEND = """hs = Reshape ({h}, split)  q = Transpose <perm = [0, 2, 1, 3]> (hs)
  kt = Transpose <perm = [0, 2, 3, 1]> (hs)  s0 = MatMul (q, kt)  s = Mul (s0, sc)
  w = Softmax <axis = -1> (s)  a = MatMul (w, q)
  t = Transpose <perm = [0, 2, 1, 3]> (a)  y = Reshape (t, flat)"""
_BARE = """kt = Transpose <perm = [0, 1, 3, 2]> ({h})  s0 = MatMul ({h}, kt)  s = Mul (s0, sc)
  w = Softmax <axis = -1> (s)  a = MatMul (w, {h})  y = Neg (a)"""
_CONSTANTS = """<float sc = {SCALE}, int64[4] split = {0, 0, 2, 8}, int64[3] flat = {0, 0, 16},
  int64 zero = {0}, int64 two = {2}, int64[1] none = {0}, int64[4] turned = {0, 2, 1, 3}>"""
_X = "float[B,L,16] x"
_HEADS = "float[B,2,L,8] x"
# Inputs, output, nodes.
_MODELS = {
    "an operator of onnx.ml": (
        _X,
        "B,L,16",
        f"""two1 = Constant <value = int64[2] {{-1, 16}}> ()  o = Reshape (x, two1)
        n = ai.onnx.ml.Normalizer <norm = "L2"> (o)  sx = Shape (x)  h = Reshape (n, sx) {_ATTEND.format(h="h")}""",
    ),
    "an element of a sequence that grows": (
        _HEADS,
        "B,2,L,8",
        f"""q0 = SequenceEmpty <dtype = 1> ()  q1 = SequenceInsert (q0, x)  h = SequenceAt (q1, zero)
        {_BARE.format(h="h")}""",
    ),
    "the result of a branch": (
        "float[B,2,8,8] x, bool c",
        "B,2,8,8",
        f"""h = If (c) <then_branch = yes () => (float[] r) {{ r = com.microsoft.Inverse (x) }},
          else_branch = no () => (float[] r) {{ r = Neg (x) }}> {_BARE.format(h="h")}""",
    ),
    "the result of a loop": (
        _HEADS,
        "B,2,L,8",
        f"""n = Constant <value = int64 {{2}}> ()  go = Constant <value = bool {{1}}> ()
        h = Loop (n, go, x) <body = turn (int64 i, bool c, float[] g) => (bool co, float[] gn) {{
          co = Identity (c)  gn = com.microsoft.QuickGelu (g) }}> {_BARE.format(h="h")}""",
    ),
    "entries that are not zero": (
        "float[L,16] x, bool[L] keep",
        "M,16",
        f"""places = NonZero (keep)  p1 = Transpose (places)  o = GatherND (x, p1)
        n = ai.onnx.ml.Normalizer <norm = "L2"> (o)  h1 = Unsqueeze (n, none)
        {_ATTEND.format(h="h1").replace("y =", "y1 =")}  y = Squeeze (y1, none)""",
    ),
    "an inverse": (
        "float[B,2,8,8] x",
        "B,2,8,8",
        f"e = EyeLike (row)  e4 = Add (x, e)  h = com.microsoft.Inverse (e4) {_BARE.format(h='h')}",
    ),
}
_MODELS["an inverse"] = (
    *_MODELS["an inverse"][:2],
    "row = ConstantOfShape <value = float[1] {20.0}> (eights) " + _MODELS["an inverse"][2],
)

UNTYPED_MODELS = tuple(_MODELS)


def untyped_proto(name: str, *, scale: str = "0.35355338") -> onnx.ModelProto:
    """One of the models.

    Args:
        name: One of `UNTYPED_MODELS`.
        scale: The scale that its attention multiplies by.
    """
    inputs, output, nodes = _MODELS[name]
    constants = _CONSTANTS.replace("SCALE", scale).replace("int64[1] none", "int64[2] eights = {8, 8}, int64[1] none")
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1, "ai.onnx.ml" : 3]>'
        f" g ({inputs}) => (float[{output}] y) {constants} {{ {nodes} }}"
    )
