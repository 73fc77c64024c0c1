"""Contrib operators and decomposed forms: masks, layouts and caches have the format of the documentation."""

import numpy as np
import pytest

from sdpa_onnx.core.attention.masks import views_by_kv_head
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.conformance import conformance, trials
from sdpa_onnx.workflows.conformance.drawing import draw_cases
from sdpa_onnx.workflows.conformance.feature import Feature, MaskRows, Operator, Poison
from sdpa_onnx.workflows.conformance.judging import visible_pairs
from sdpa_onnx.workflows.conformance.operators import build_case
from sdpa_onnx.workflows.conformance.row import run_row
from sdpa_onnx.workflows.conformance.table import FeatureRow, features, find_feature

_CONTRIB = [feature for feature in features() if feature.operator.value.startswith("com.microsoft")]
_FORMULAS = [feature for feature in features() if feature.operator in (Operator.BODY, Operator.DECOMPOSED)]
# onnxruntime 1.32.0 lets the last query attend to every key, which no alignment does.
_WRONG = {"mha-causal-lengths-differ", "mha-causal-past-lengths-differ"}


@pytest.mark.parametrize("feature", _CONTRIB, ids=lambda feature: feature.slug)
def test_contrib_operators_are_right_but_for_the_known_fault(feature: Feature) -> None:
    """The com.microsoft operators agree with the oracle's interpretation of their documentation."""
    record = run_row(FeatureRow(feature=feature, opset=18, dtype=Dtype.FLOAT32), get_runtime("ort-cpu"))
    right = Conformity.WRONG if feature.slug in _WRONG else Conformity.RIGHT
    assert record.verdict is right, record.diagnosis or record.reason
    assert (record.path, record.path_nodes) == ("native", 1)


@pytest.mark.parametrize(
    "feature",
    [
        pytest.param(
            feature, id=feature.slug, marks=pytest.mark.slow if feature.operator is Operator.DECOMPOSED else ()
        )
        for feature in _FORMULAS
    ],
)
def test_formulas_are_right(feature: Feature) -> None:
    """The ONNX function body and the decomposed form agree with the oracle on onnxruntime, in several nodes."""
    record = run_row(
        FeatureRow(feature=feature, opset=feature.first_opset, dtype=Dtype.FLOAT32), get_runtime("ort-cpu")
    )
    assert record.verdict is Conformity.RIGHT, record.diagnosis or record.reason
    assert record.form == "decomposed"
    assert record.path_nodes > 5


@pytest.mark.parametrize(
    ("slug", "name", "shape"),
    [
        ("mha-mask-keys", "key_padding_mask", (2, 7)),
        ("mha-mask-lengths", "key_padding_mask", (2,)),
        ("mha-mask-queries", "key_padding_mask", (2, 5, 7)),
        ("packed-mask-ends-and-starts", "mask_index", (4,)),
        ("packed-mask-lengths", "mask_index", (2,)),
    ],
)
def test_masks_have_the_shape_of_their_kind(slug: str, name: str, shape: tuple[int, ...]) -> None:
    """Masks are int32, as the operators require, and not constant."""
    feature = find_feature(slug)
    operator_case = build_case(feature, next(draw_cases(feature, Dtype.FLOAT32, seed=0)), 18)
    mask = operator_case.feeds[name]
    assert (mask.shape, mask.dtype) == (shape, np.int32)
    assert mask.size == 2 or len(set(mask.ravel().tolist())) > 1


def test_mask_rows_have_their_pattern() -> None:
    """Hidden rows are fully masked, all others have a visible key."""
    for feature in features():
        if feature.mask_rows is MaskRows.HIDDEN and feature.operator is Operator.ATTENTION:
            drawn = next(draw_cases(feature, Dtype.FLOAT32, seed=0))
            empty = ~visible_pairs(drawn.case.spec, drawn.inputs).any(-1)
            assert empty[:, :, 1].all()
            assert not empty[:, :, 0].any()


@pytest.mark.parametrize("slug", ["poison-value", "softcap-mask", "lengths-poison"])
def test_poison_is_only_in_hidden_keys(slug: str) -> None:
    """The poison is in every key that no query attends to, and there is such a key."""
    feature = find_feature(slug)
    assert feature.poison is Poison.HUGE_VALUE
    drawn = next(draw_cases(feature, Dtype.FLOAT32, seed=0))
    hidden = views_by_kv_head(drawn.case.spec, drawn.inputs) == 0
    assert hidden.any()
    assert (np.abs(drawn.inputs.value[hidden]) == 1e6).all()
    assert np.abs(drawn.inputs.value[~hidden]).max() < 100.0


def test_the_same_seed_gives_the_same_cases() -> None:
    """The same seed draws the same arrays, another seed draws others."""
    feature = find_feature("mask-float-bhst")
    first, again, other = (
        [drawn.inputs.query.tobytes() for drawn in draw_cases(feature, Dtype.FLOAT16, seed=seed)] for seed in (3, 3, 4)
    )
    assert first == again != other


def test_an_internal_error_is_no_crash_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error outside the runtime ends the run with a message."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("boom.")

    monkeypatch.setattr(trials, "judge_case", broken)
    with pytest.raises(SdpaOnnxError) as caught:
        next(conformance("ort-cpu", only=["batch-one"], opsets=[23], dtypes=["float32"], isolate=False))
    assert str(caught.value) == "The row batch-one cannot be judged: ZeroDivisionError: boom."
