"""Every form computes every attention that it does not refuse: spec x form x opset, compared with the oracle."""

import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement, Workaround
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.lower.lower import refusal
from tests.graph.lower.canonical import HARD_SPECS, SELF_SIZES, SIZES, Bare, Trials, all_inputs, drawn
from tests.graph.models import SPECS

ALL_SPECS = {**SPECS, **HARD_SPECS}
ALL_WORKAROUNDS = LowerOptions(workarounds=frozenset(Workaround))
FINITE = LowerOptions(workarounds=frozenset({Workaround.FINITE_MASK}))
# onnx.reference has every feature of the operator; onnxruntime's kernels need workarounds.
_WAYS = [
    (Form.DECOMPOSED, 13, "ort-cpu", None),
    (Form.DECOMPOSED, 18, "ort-cpu", LowerOptions(scale_placement=ScalePlacement.BOTH)),
    (Form.DECOMPOSED, 23, "ort-cpu", LowerOptions(scale_placement=ScalePlacement.SCORES)),
    (Form.DECOMPOSED, 18, "onnx-reference", None),
    (Form.DECOMPOSED, 18, "openvino", None),
    *((Form.ATTENTION, opset, "onnx-reference", None) for opset in (23, 24, 25)),
    *((Form.ATTENTION, opset, "ort-cpu", ALL_WORKAROUNDS) for opset in (23, 24, 25)),
    (Form.ORT_MHA, 13, "ort-cpu", None),
    (Form.ORT_MHA, 18, "ort-cpu", None),
    (Form.ORT_GQA, 13, "ort-cpu", FINITE),
    (Form.ORT_GQA, 18, "ort-cpu", FINITE),
]
# The other cases run with the slow tests.
_DEFAULT_WAYS = (_WAYS[0], _WAYS[8], _WAYS[12], _WAYS[14])
_TELLING = ("gqa", "window", "causal-lengths", "causal-past-bool", "window-float", "scale-0", "scale-negative")


def _bare(spec: AttentionSpec, form: Form, opset: int, dtype: Dtype = Dtype.FLOAT32) -> Bare:
    return Bare(spec=spec, opset=opset, dtype=dtype, is_self=form is Form.ORT_GQA)


def _is_refused(spec: AttentionSpec, form: Form, opset: int, dtype: Dtype = Dtype.FLOAT32) -> bool:
    return refusal(_bare(spec, form, opset, dtype).build()[1], form, opset=opset) is not None


_CELLS = [
    pytest.param(spec, *way, id=f"{name}-{way[0]}-{way[1]}-{way[2]}", marks=pytest.mark.slow)
    for name, spec in ALL_SPECS.items()
    for way in _WAYS
    if not _is_refused(spec, way[0], way[1])
]
_DEFAULT_CELLS = [
    pytest.param(spec, *way, id=f"{name}-{way[0]}-{way[1]}")
    for name, spec in ALL_SPECS.items()
    for way in _DEFAULT_WAYS
    if (name in _TELLING or way is _WAYS[0]) and not _is_refused(spec, way[0], way[1])
]
# Features that the contrib operators do not have; the standard forms refuse none.
_REFUSED = {
    Form.ORT_MHA: {"softcap", "much", "mqa-causal-softcap"},
    Form.ORT_GQA: {"mqa", "dv", "past", "bsh", "much", "wide", "bsh-past"},
}


def test_what_is_refused_is_known() -> None:
    """Guards against a form that refuses too much, which would pass all other tests here."""
    opsets = {Form.DECOMPOSED: 13, Form.ATTENTION: 23, Form.ORT_MHA: 13, Form.ORT_GQA: 13}
    refused = {
        form: {name for name, spec in ALL_SPECS.items() if _is_refused(spec, form, opset)}
        for form, opset in opsets.items()
    }
    assert refused == {Form.DECOMPOSED: set(), Form.ATTENTION: set()} | _REFUSED


@pytest.mark.parametrize(("spec", "form", "opset", "runtime", "options"), _DEFAULT_CELLS)
def test_form_is_right(spec: AttentionSpec, form: Form, opset: int, runtime: str, options: LowerOptions | None) -> None:
    """Outputs for random inputs at ragged sizes agree with the oracle."""
    bare = _bare(spec, form, opset)
    sizes = SELF_SIZES[:1] if bare.is_self else SIZES[:2]
    trials = Trials(bare=bare, model=bare.written(form, options), runtime=runtime)
    assert trials.judge(drawn(spec, sizes)) == []


@pytest.mark.parametrize(("spec", "form", "opset", "runtime", "options"), _CELLS)
def test_form_answers_every_probe(
    spec: AttentionSpec, form: Form, opset: int, runtime: str, options: LowerOptions | None
) -> None:
    """The structural probes at every size, an empty cache and one query with several new keys among them."""
    if runtime == "openvino":
        pytest.importorskip("openvino", reason="openvino is an extra")
    bare = _bare(spec, form, opset)
    sizes = SELF_SIZES if bare.is_self else SIZES
    trials = Trials(bare=bare, model=bare.written(form, options), runtime=runtime)
    assert trials.judge(all_inputs(spec, sizes)) == []


_TYPED = [
    (Form.DECOMPOSED, 13, "ort-cpu", Dtype.FLOAT16),
    (Form.DECOMPOSED, 18, "ort-cpu", Dtype.FLOAT64),
    (Form.DECOMPOSED, 16, "onnx-reference", Dtype.BFLOAT16),
    (Form.ATTENTION, 23, "ort-cpu", Dtype.FLOAT16),
    (Form.ORT_MHA, 18, "ort-cpu", Dtype.FLOAT16),
    (Form.ORT_GQA, 18, "ort-cpu", Dtype.FLOAT16),
]


_TYPED_CELLS = [
    pytest.param(spec, *way, id=f"{name}-{way[0]}-{way[1]}-{way[2]}-{way[3]}", marks=pytest.mark.slow)
    for name, spec in ALL_SPECS.items()
    for way in _TYPED
    if not _is_refused(spec, way[0], way[1], way[3])
]


@pytest.mark.parametrize(("spec", "form", "opset", "runtime", "dtype"), _TYPED_CELLS)
def test_form_is_right_in_other_types(spec: AttentionSpec, form: Form, opset: int, runtime: str, dtype: Dtype) -> None:
    """float16, float64 and bfloat16 meet their own bounds, including unusual scales and -inf."""
    bare = _bare(spec, form, opset, dtype)
    options = {Form.ATTENTION: ALL_WORKAROUNDS, Form.ORT_GQA: FINITE}.get(form)
    sizes = SELF_SIZES if bare.is_self else SIZES
    trials = Trials(bare=bare, model=bare.written(form, options), runtime=runtime)
    assert trials.judge(all_inputs(spec, sizes, dtype)) == []
