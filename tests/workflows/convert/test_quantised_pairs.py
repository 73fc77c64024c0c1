"""The decomposed form keeps the pairs of QuantizeLinear and DequantizeLinear of a file, and the proof sees each one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement
from sdpa_onnx.core.attention.score_quantisers import Quantiser, ScoreQuantisers
from sdpa_onnx.core.records.records import Outcome, Subject
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.lower import lower, refusal
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.check.lifted_model import lift, with_lifted_sites
from sdpa_onnx.workflows.convert.convert_file import Conversion, ProofOptions, convert_and_prove
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from tests.workflows.quantised_files import block, static
from tests.workflows.verify.test_quantised_files import BLOCKS, STATIC

_TEXT = """
<ir_version: 9, opset_import: ["" : OPSET, "com.microsoft" : 1]>
attention (TYPE[B,4,L,8] q, TYPE[B,KV,S,8] k, TYPE[B,KV,S,8] v, TYPE[B,1,L,S] m) => (TYPE[B,4,L,8] y)
<TYPE step = {STEP}, TYPE small = {SMALL}, TYPE rule = {RULE}, uint8 middle = {100}, uint8 none = {0},
 int8 zero = {0}, int8 below = {-128}, int16 wide = {0}, int64[1] two = {2}, int64[4] apart = {0, 4, -1, 8},
 int64[5] repeats = {1, 1, 2, 1, 1}>
{
  STEPS
}
"""


def _pair(source: str, target: str, parameters: str, domain: str = "") -> str:
    return (
        f"{target}i = {domain}QuantizeLinear ({source}, {parameters}) "
        f"{target} = {domain}DequantizeLinear ({target}i, {parameters})"
    )


_SYMMETRIC, _ASYMMETRIC, _WEIGHTS = "step, zero", "step, middle", "small, none"
_TURN = "kt = Transpose <perm = [0, 1, 3, 2]> (k)"
_OPERANDS = " ".join(_pair(name, f"{name}n", _SYMMETRIC) for name in "qkv")
_REPEAT = " ".join(
    f"{name}1 = Unsqueeze ({name}, two) {name}2 = Tile ({name}1, repeats) {name}4 = Reshape ({name}2, apart)"
    for name in "kv"
)
# Name: element type, opset, key heads, nodes.
SOURCES: dict[str, tuple[str, int, int, str]] = {
    "symmetric int8": (
        "float",
        17,
        4,
        (
            f"{_TURN} s = MatMul (q, kt) {_pair('s', 'a', _SYMMETRIC)} b = Mul (a, rule) {_pair('b', 'd', _SYMMETRIC)} "
            f"p = Softmax (d) {_pair('p', 'w', 'small, below')} y = MatMul (w, v)"
        ),
    ),
    "asymmetric uint8": (
        "float",
        17,
        4,
        (
            f"{_TURN} s = MatMul (q, kt) {_pair('s', 'a', _ASYMMETRIC)} b = Mul (a, rule) p = Softmax (b) "
            f"{_pair('p', 'w', _WEIGHTS)} y = MatMul (w, v)"
        ),
    ),
    "operands only": (
        "float",
        17,
        4,
        (
            f"{_OPERANDS} kt = Transpose <perm = [0, 1, 3, 2]> (kn) s = MatMul (qn, kt) b = Mul (s, rule) "
            "p = Softmax (b) y = MatMul (p, vn)"
        ),
    ),
    "scores only": (
        "float",
        13,
        4,
        (
            f"{_TURN} s = MatMul (q, kt) b = Mul (s, rule) {_pair('b', 'd', _ASYMMETRIC)} p = Softmax (d) "
            "y = MatMul (p, v)"
        ),
    ),
    "weights only": (
        "float",
        17,
        4,
        f"{_TURN} s = MatMul (q, kt) b = Mul (s, rule) p = Softmax (b) {_pair('p', 'w', _WEIGHTS)} y = MatMul (w, v)",
    ),
    "mask": (
        "float",
        17,
        4,
        (
            f"{_TURN} s = MatMul (q, kt) {_pair('s', 'a', _ASYMMETRIC)} b = Mul (a, rule) e = Add (b, m) "
            f"{_pair('e', 'd', _ASYMMETRIC)} p = Softmax (d) {_pair('p', 'w', _WEIGHTS)} y = MatMul (w, v)"
        ),
    ),
    "grouped heads": (
        "float",
        17,
        2,
        (
            f"{_REPEAT} kt = Transpose <perm = [0, 1, 3, 2]> (k4) s = MatMul (q, kt) {_pair('s', 'a', _SYMMETRIC)} "
            f"b = Mul (a, rule) p = Softmax (b) {_pair('p', 'w', _WEIGHTS)} y = MatMul (w, v4)"
        ),
    ),
    "int16 of onnxruntime": (
        "float",
        17,
        4,
        (
            f"{_TURN} s = MatMul (q, kt) {_pair('s', 'a', 'step, wide', 'com.microsoft.')} b = Mul (a, rule) "
            "p = Softmax (b) y = MatMul (p, v)"
        ),
    ),
    "int16 of the standard": (
        "float",
        21,
        4,
        (
            f"{_TURN} s = MatMul (q, kt) {_pair('s', 'a', 'step, wide')} b = Mul (a, rule) p = Softmax (b) "
            "y = MatMul (p, v)"
        ),
    ),
    "float16": (
        "float16",
        19,
        4,
        (
            f"{_TURN} s = MatMul (q, kt) {_pair('s', 'a', _ASYMMETRIC)} b = Mul (a, rule) p = Softmax (b) "
            f"{_pair('p', 'w', _WEIGHTS)} y = MatMul (w, v)"
        ),
    ),
}


_NUMBERS = {"STEP": 0.0625, "SMALL": 0.00390625, "RULE": 0.35355338}


def _source(name: str) -> onnx.ModelProto:
    element, opset, heads, steps = SOURCES[name]
    text = _TEXT.replace("STEPS", steps).replace("OPSET", str(opset)).replace("KV", str(heads))
    for word, number in _NUMBERS.items():  # the parser takes the bits of a float16
        text = text.replace(word, str(number if element == "float" else np.float16(number).view(np.uint16)))
    return onnx.parser.parse_model(text.replace("TYPE", element))


def _converted(tmp_path: Path, source: onnx.ModelProto, *, opset: int | None = None) -> Conversion:
    onnx.save(source, tmp_path / "source.onnx")
    return convert_and_prove(
        tmp_path / "source.onnx",
        tmp_path / "result.onnx",
        Form.DECOMPOSED,
        again=True,
        opset=opset,
        proof=ProofOptions(effort=RunEffort(count=3)),
    )


def _against(done: Conversion) -> list[str]:
    return [one.reason for one in done.proof.records if one.outcome is not Outcome.OK] if done.proof else ["no proof"]


def _pairs_in(model: ir.Model) -> list[tuple[str, str, float, int, str]]:
    """Each node of a pair: domain, operator, scale, zero point and integer type."""
    facts = []
    for node in model.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            numbers = [ir.convenience.get_const_tensor(value) for value in node.inputs[1:3] if value is not None]
            scale, zero = (number.numpy() for number in numbers if number is not None)
            facts.append((node.domain, node.op_type, float(scale), int(zero), zero.dtype.name))
    return sorted(facts)


@pytest.mark.parametrize("name", SOURCES)
def test_pairs_are_kept_and_proved(tmp_path: Path, name: str) -> None:
    """The result has the same pairs, is proved, and is read back with the same description."""
    source = _source(name)
    done = _converted(tmp_path, source)
    assert _against(done) == []
    assert done.path is not None
    result = load_model(done.path)
    assert _pairs_in(result.ir) == _pairs_in(ir.from_proto(source))
    (before,), (after,) = (with_lifted_sites(one).model.sites for one in (load_model(source), result))
    assert (after.spec, after.quantisers) == (before.spec, before.quantisers)
    assert before.spec.kv_num_heads == SOURCES[name][2]


@pytest.mark.parametrize("name", ["asymmetric uint8", "mask", "grouped heads"])
def test_pairs_are_kept_at_a_newer_opset(tmp_path: Path, name: str) -> None:
    """Raising the opset keeps the numbers of the pairs."""
    source = _source(name)
    done = _converted(tmp_path, source, opset=21)
    assert _against(done) == []
    assert done.path is not None
    assert _pairs_in(load_model(done.path).ir) == _pairs_in(ir.from_proto(source))


@pytest.mark.slow
@pytest.mark.parametrize("options", STATIC)
@pytest.mark.parametrize("name", BLOCKS)
def test_files_of_the_quantizer(tmp_path: Path, name: str, options: str) -> None:
    """20 files of onnxruntime's static quantizer are written with their pairs and proved."""
    onnx.save(block(**BLOCKS[name]), tmp_path / "plain.onnx")
    static(tmp_path / "plain.onnx", tmp_path / "quantised.onnx", **STATIC[options])
    done = _converted(tmp_path, onnx.load(tmp_path / "quantised.onnx"))
    assert _against(done) == []


Fault = Callable[[ScoreQuantisers], ScoreQuantisers]


def _changed(stage: str, **changes: Any) -> Fault:
    """One parameter of the only pair of a stage."""
    return lambda right: replace(right, **{stage: tuple(replace(one, **changes) for one in getattr(right, stage))})


def _times(stage: str, factor: float) -> Fault:
    return lambda right: _changed(stage, scale=getattr(right, stage)[0].scale * factor)(right)


def _dropped(stage: str) -> Fault:
    return lambda right: replace(right, **{stage: ()})


_FAULTS: dict[str, tuple[str, Fault]] = {
    "scale of the product": ("asymmetric uint8", _times("product", 1.05)),
    "scale of the weights": ("asymmetric uint8", _times("weights", 1.05)),
    "zero point of the product": ("asymmetric uint8", _changed("product", zero_point=200)),
    "zero point of the weights": ("weights only", _changed("weights", zero_point=1)),
    "signed for unsigned": ("weights only", _changed("weights", lowest=-128, highest=127)),
    "dropped from the product": ("asymmetric uint8", _dropped("product")),
    "dropped from the weights": ("asymmetric uint8", _dropped("weights")),
    "dropped from the scaled scores": ("scores only", _dropped("scaled")),
    "dropped from the masked scores": ("mask", _dropped("masked")),
    "another stage": ("scores only", lambda right: ScoreQuantisers(product=right.scaled)),
    "added to the weights": (
        "scores only",
        lambda right: replace(right, weights=(Quantiser(scale=1 / 256, zero_point=0, lowest=0, highest=255),)),
    ),
}


@pytest.mark.parametrize("name", _FAULTS)
def test_wrong_pair_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A pair with a wrong scale, a wrong zero point or at a wrong place, and one that is dropped, is not written."""
    source, fault = _FAULTS[name]

    def faulty(
        model: ir.Model, attention: GraphAttention, form: Form, options: LowerOptions, *, edits: object
    ) -> GraphAttention:
        written = lower(model, replace(attention, quantisers=fault(attention.quantisers)), form, options)
        return replace(attention, output=written.output)

    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.form_strategy.lower", faulty)
    done = _converted(tmp_path, _source(source))
    assert done.path is None
    assert done.proof is not None
    assert {one.subject for one in done.proof.records if one.outcome is not Outcome.OK} >= {Subject.ATTENTION}


@pytest.mark.parametrize("placement", [ScalePlacement.QUERY, ScalePlacement.BOTH])
def test_scale_before_a_rounded_product_is_refused(placement: ScalePlacement) -> None:
    """Integers of the unscaled product cannot be those of a scaled one; scores that are scaled first may be either."""
    (rounded,) = lift(load_model(_source("asymmetric uint8"))).read
    assert refusal(rounded, Form.DECOMPOSED, opset=17, options=LowerOptions(scale_placement=placement)) == (
        "The product of query and key is quantized before it is scaled, so the scale has to stay on the scores: leave "
        "out --scale-placement, or use --scale-placement scores."
    )
    (scaled,) = lift(load_model(_source("scores only"))).read
    assert refusal(scaled, Form.DECOMPOSED, opset=17, options=LowerOptions(scale_placement=placement)) is None


def test_scale_that_half_precision_has_not() -> None:
    """A step that the element type does not have is refused by its number."""
    (attention,) = lift(load_model(_source("float16"))).read
    pair = replace(attention.quantisers.product[0], scale=0.1)
    other = replace(attention, quantisers=replace(attention.quantisers, product=(pair,)))
    assert refusal(other, Form.DECOMPOSED, opset=19) == (
        "The scale 0.1 of a QuantizeLinear between its products has no exact value in float16."
    )
