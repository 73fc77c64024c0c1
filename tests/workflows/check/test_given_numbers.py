"""Attention whose head count or width is the contents of an input is read at the number that is given for it."""

import numpy as np
import onnx.parser
import pytest

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, PlantedRecord
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.given_heads import with_given_heads
from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file

_CONSTANTS = """<float sc = {0.35355338}, int64[1] first = {0}, int64[1] minus = {-1}, int64[1] eight = {8},
  int64[1] width = {32}, int64[3] flat = {0, 0, -1}>"""
_LENGTHS = "b = Shape <start = 0, end = 1> (x)  l = Shape <start = 1, end = 2> (x)"
_ATTEND = """apart = Reshape (x, shape)
  q = Transpose <perm = [0, 2, 1, 3]> (apart)  kt = Transpose <perm = [0, 2, 3, 1]> (apart)
  s0 = MatMul (q, kt)  s = Mul (s0, sc)  w = Softmax <axis = -1> (s)  a = MatMul (w, q)
  t = Transpose <perm = [0, 2, 1, 3]> (a)  y = Reshape (t, flat)"""
_X = "float[B, L, 32] x"
# Inputs, nodes, the input that decides, and its contents.
KINDS: dict[str, tuple[str, str, str, list[int] | int]] = {
    "a scalar of heads": (
        f"{_X}, int64 heads",
        f"{_LENGTHS} h = Unsqueeze (heads, first)  shape = Concat <axis = 0> (b, l, h, minus) {_ATTEND}",
        "heads",
        4,
    ),
    "heads of one entry": (
        f"{_X}, int64[1] heads",
        f"{_LENGTHS} shape = Concat <axis = 0> (b, l, heads, minus) {_ATTEND}",
        "heads",
        [4],
    ),
    "an int32 width": (
        f"{_X}, int32 width_of",
        f"""{_LENGTHS} w64 = Cast <to = 7> (width_of)  d = Unsqueeze (w64, first)
        shape = Concat <axis = 0> (b, l, minus, d) {_ATTEND}""",
        "width_of",
        8,
    ),
    "a width divided by heads": (
        f"{_X}, int64[1] heads",
        f"{_LENGTHS} d = Div (width, heads)  shape = Concat <axis = 0> (b, l, minus, d) {_ATTEND}",
        "heads",
        [4],
    ),
    "a loop": (
        f"{_X}, int64[1] heads",
        f"""{_LENGTHS} n = Constant <value = int64 {{2}}> ()  go = Constant <value = bool {{1}}> ()
        y = Loop (n, go, x) <body = turn (int64 i, bool c, float[B,L,32] h0) => (bool co, float[B,L,32] hn) {{
          co = Identity (c)  shape = Concat <axis = 0> (b, l, heads, minus)
          {_ATTEND.replace("Reshape (x", "Reshape (h0").replace("y =", "hn =")} }}>""",
        "heads",
        [4],
    ),
}
_SHAPE = (f"{_X}, int64[4] shape", _ATTEND)


def _load(inputs: str, nodes: str) -> OnnxModel:
    text = f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => (float[B, L, 32] y) {_CONSTANTS} {{ {nodes} }}'
    return load_model(onnx.parser.parse_model(text))


def _verified(model: OnnxModel, check: CheckOptions, *, prove: bool = False) -> list[object]:
    return list(verify_file(model, ["ort-cpu"], check, target="t", extras=VerifyExtras(axes=not prove, prove=prove)))


@pytest.mark.parametrize("kind", KINDS)
def test_right_at_the_given_number(kind: str) -> None:
    """`--size` of an input that is one integer: 4 heads of 8, and every run is fed with it."""
    inputs, nodes, name, number = KINDS[kind]
    model, check = _load(inputs, nodes), CheckOptions(sizes={name: int(np.ravel(number)[0])})
    lifted, rest = with_given_heads(model, check)
    (site,) = (*lifted.model.sites, *lifted.model.body_sites)
    assert (site.spec.q_num_heads, site.spec.head_dim, dict(rest.sizes)) == (4, 8, {})
    judged = [record for record in _verified(model, check) if isinstance(record, AgreementRecord)]
    assert len(judged) >= 3
    assert {record.outcome for record in judged} == {Outcome.OK}


@pytest.mark.parametrize("kind", KINDS)
def test_read_by_given_inputs(kind: str) -> None:
    """`--inputs` has the number."""
    inputs, nodes, name, number = KINDS[kind]
    dtype = np.int32 if "int32" in kind else np.int64
    arrays = {"x": np.random.default_rng(1).normal(size=(2, 5, 32)).astype(np.float32), name: np.array(number, dtype)}
    lifted, _ = with_given_heads(_load(inputs, nodes), CheckOptions(sizes={}, inputs=arrays))
    (site,) = (*lifted.model.sites, *lifted.model.body_sites)
    assert (site.spec.q_num_heads, site.spec.head_dim) == (4, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_number_it_is_refused_with_the_option(kind: str) -> None:
    """The reason names the input."""
    inputs, nodes, name, _ = KINDS[kind]
    with pytest.raises(ModelError) as raised:
        _verified(_load(inputs, nodes), CheckOptions(sizes={}))
    option = f"(it is the contents of the input '{name}'; give it: verify --size {name}=NUMBER)"
    assert option in str(raised.value)


def test_a_shape_is_given_with_the_inputs() -> None:
    """It is more than one number, so no size."""
    model = _load(*_SHAPE)
    with pytest.raises(ModelError, match="contents of the input 'shape'; give it: verify --inputs"):
        _verified(model, CheckOptions(sizes={}))
    x = np.random.default_rng(1).normal(size=(2, 5, 32)).astype(np.float32)
    records = _verified(model, CheckOptions(sizes={}, inputs={"x": x, "shape": np.array([2, 5, 4, 8])}))
    assert {record.outcome for record in records if isinstance(record, AgreementRecord)} == {Outcome.OK}


@pytest.mark.slow
def test_planted_faults_are_found() -> None:
    """`--prove` at a given number."""
    inputs, nodes, _, _ = KINDS["a scalar of heads"]
    records = _verified(_load(inputs, nodes), CheckOptions(sizes={"heads": 4}), prove=True)
    planted = {record.fault: record.outcome for record in records if isinstance(record, PlantedRecord)}
    # Its logits are small: a softmax that overflows without its maximum does not here.
    unseen = {fault for fault, outcome in planted.items() if outcome is not Outcome.OK}
    assert unseen <= {"maximum-not-subtracted", "key-blocks-reversed-16", "nan-swallowed"}
    assert planted["scale-half-applied"] is Outcome.OK
