"""Graphs whose integer inputs have a meaning, as text of ONNX and with the sizes that they are drawn at."""

from dataclasses import dataclass

import onnx
from onnx import parser

from sdpa_onnx.graph.model import OnnxModel, load_model

__all__ = ["GRAPHS", "IntegerCase", "graph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerCase:
    """A graph and size sets at which it has legal inputs."""

    body: str
    sizes: tuple[dict[str, int], ...]
    opset: int = 24


def graph(body: str, opset: int = 24) -> OnnxModel:
    """Parse a graph; com.microsoft is imported too."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    proto: onnx.ModelProto = parser.parse_model(f"{header}\n{body}")
    return load_model(proto)


_GQA = """
g (float[b,s,64] q, float[b,s,32] k, float[b,s,32] v, float[b,2,p,16] pk, float[b,2,p,16] pv, int32[b] lens,
   int32[1] total{inputs}) => (float[b,s,64] y)
{{ y = com.microsoft.GroupQueryAttention <num_heads: int = 4, kv_num_heads: int = 2{attributes}>
       (q, k, v, pk, pv, lens, total{names}) }}
"""
_ROTARY = ", do_rotary: int = 1"
_TABLES = ", float[16,8] cos, float[16,8] sin"
_DECODE = {"b": 3, "s": 1, "p": 6}
_PROMPT = {"b": 3, "s": 5, "p": 0}
_CHUNK = {"b": 1, "s": 3, "p": 6}
_MHA = """
g (float[b,s,32] q, float[b,t,32] k, float[b,t,32] v, int32[{shape}] mask) => (float[b,s,32] y)
{{ y = com.microsoft.MultiHeadAttention <num_heads: int = 4> (q, k, v, , mask) }}
"""
_OWN = """
g (float[b,s,8] x, float[8,24] w, float[24] bias, int32[{shape}] mask) => (float[b,s,8] y)
{{ y = com.microsoft.Attention <num_heads: int = 2> (x, w, bias, mask) }}
"""

GRAPHS: dict[str, IntegerCase] = {
    "gqa": IntegerCase(
        body=_GQA.format(inputs="", attributes="", names=""),
        sizes=(_DECODE, _PROMPT, _CHUNK, {"b": 2, "s": 5, "p": 8}, {"b": 1, "s": 1, "p": 4}),
    ),
    "gqa-rotary": IntegerCase(
        body=_GQA.format(inputs=_TABLES, attributes=_ROTARY, names=", cos, sin"),
        sizes=(_DECODE, _PROMPT, _CHUNK, {"b": 2, "s": 1, "p": 20}),
    ),
    "gqa-positions": IntegerCase(
        body=_GQA.format(inputs=f"{_TABLES}, int64[b,s] ids", attributes=_ROTARY, names=", cos, sin, ids"),
        sizes=(_DECODE, _PROMPT, _CHUNK),
    ),
    "gqa-bias": IntegerCase(
        body=_GQA.format(inputs=", float[1,4,s,t] bias", attributes="", names=", , , , bias"),
        sizes=({**_DECODE, "t": 7}, {**_DECODE, "t": 4}, {**_PROMPT, "t": 5}),
    ),
    "mha-lengths": IntegerCase(body=_MHA.format(shape="b"), sizes=({"b": 3, "s": 4, "t": 9},)),
    "mha-offsets": IntegerCase(body=_MHA.format(shape="11"), sizes=({"b": 3, "s": 4, "t": 9},)),
    "mha-mask": IntegerCase(body=_MHA.format(shape="b,t"), sizes=({"b": 3, "s": 4, "t": 9},)),
    "mha-mask-queries": IntegerCase(body=_MHA.format(shape="b,s,t"), sizes=({"b": 3, "s": 4, "t": 9},)),
    "own-lengths": IntegerCase(body=_OWN.format(shape="b"), sizes=({"b": 3, "s": 9},)),
    "own-bounds": IntegerCase(body=_OWN.format(shape="6"), sizes=({"b": 3, "s": 9},)),
    "own-mask": IntegerCase(body=_OWN.format(shape="b,s"), sizes=({"b": 3, "s": 9},)),
    "lengths": IntegerCase(
        body="""g (float[b,2,s,8] q, float[b,2,t,8] k, float[b,2,t,8] v, float[b,1,s,m] mask, int64[b] n, float[1] one)
             => (float[b,2,s,8] y) { p = Mul(q, one)  y = Attention(p, k, v, mask, , , n) }""",
        sizes=({"b": 3, "s": 4, "t": 9, "m": 9}, {"b": 2, "s": 1, "t": 9, "m": 5}),
    ),
    "scatter": IntegerCase(
        body="""g (float[b,2,12,8] cache, float[b,2,n,8] new, int64[b] at) => (float[b,2,12,8] y)
             { y = TensorScatter <axis: int = 2> (cache, new, at) }""",
        sizes=({"b": 3, "n": 5}, {"b": 3, "n": 12}, {"b": 1, "n": 1}),
    ),
    "scatter-circular": IntegerCase(
        body="""g (float[b,2,12,8] cache, float[b,2,n,8] new, int64[b] at) => (float[b,2,12,8] y)
             { y = TensorScatter <axis: int = 2, mode: string = "circular"> (cache, new, at) }""",
        sizes=({"b": 3, "n": 5},),
    ),
    "scatter-nd": IntegerCase(
        body="""g (float[12,8] cache, float[n,8] new, int64[n] at) => (float[12,8] y)
             <int64 axis = {-1}> { i = Unsqueeze(at, axis)  y = ScatterND(cache, i, new) }""",
        sizes=({"n": 5}, {"n": 12}),
    ),
    "table": IntegerCase(
        body="""g (int64[b,s] ids, float[11,4] table) => (float[b,s,4] y) <int64 two = {2}>
             { i = Add(ids, two)  y = Gather(table, i) }""",
        sizes=({"b": 3, "s": 7},),
    ),
    "genai": IntegerCase(
        body="""g (float[b,s,64] q, float[b,s,32] k, float[b,s,32] v, float[b,2,p,16] pk, float[b,2,p,16] pv,
                int64[b,t] attention_mask) => (float[b,s,64] y) <int64 one = {1}, int64[1] ones = {1}>
             { sums = ReduceSum <keepdims: int = 0> (attention_mask, ones)  less = Sub(sums, one)
               lens = Cast <to: int = 6> (less)  shape = Shape(attention_mask)  long = Gather(shape, one)
               total = Cast <to: int = 6> (long)
               y = com.microsoft.GroupQueryAttention <num_heads: int = 4, kv_num_heads: int = 2>
                   (q, k, v, pk, pv, lens, total) }""",
        sizes=({**_DECODE, "t": 7}, {**_PROMPT, "t": 5}, {**_CHUNK, "t": 9}),
    ),
    "rotary": IntegerCase(
        body="""g (float[b,2,s,16] x, float[20,8] cos, float[20,8] sin, int64[b,s] ids) => (float[b,2,s,16] y)
             { y = RotaryEmbedding(x, cos, sin, ids) }""",
        sizes=({"b": 3, "s": 7},),
    ),
    "rotary-offset": IntegerCase(
        body="""g (float[b,s,32] x, int64[1] ids, float[20,8] cos, float[20,8] sin) => (float[b,s,32] y)
             { y = com.microsoft.RotaryEmbedding <num_heads: int = 2> (x, ids, cos, sin) }""",
        sizes=({"b": 3, "s": 7},),
    ),
    "one-hot": IntegerCase(
        body="""g (int64[b,s] ids, float[2] values) => (float[b,s,d] y) <int64[1] depth = {5}>
             { y = OneHot(ids, depth, values) }""",
        sizes=({"b": 3, "s": 7},),
    ),
}
