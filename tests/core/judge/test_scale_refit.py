"""A wrong scale is measured where it is linear: its interval holds the true one."""

import re
from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.precision import PRECISIONS
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.faults.planted_faults import right_output
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from tests.core.attentions import case


def _judged(factor: float, spread: float, *, softcap: float = 0.0, dtype: Dtype = Dtype.FLOAT32) -> Agreement:
    asked = replace(case("2x16x40", head_dim=32, softcap=softcap), dtype=dtype)
    inputs = draw_inputs(asked, spread=spread)
    actual = right_output(replace(asked.spec, scale=factor * asked.spec.scale_value), inputs)
    return judge(expect(asked.spec, inputs, precision=PRECISIONS[dtype.value]), actual)


@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize("factor", [0.7, 0.88, 0.97, 1.001, 1.12, 1.5])
def test_interval_holds_the_true_scale(factor: float, spread: float) -> None:
    """At 12 % the first-order estimate is several percent off; the refit is within its own interval."""
    finding = next(one for one in _judged(factor, spread).findings if one.name == "scale")
    assert finding.is_refitted
    assert abs(finding.estimate - (factor - 1.0)) <= 6.0 * finding.standard_error + 1e-6
    assert abs(finding.estimate - (factor - 1.0)) <= 0.01 * abs(factor - 1.0) + 1e-5


@pytest.mark.parametrize(("softcap", "dtype"), [(5.0, Dtype.FLOAT32), (0.0, Dtype.FLOAT16), (0.0, Dtype.FLOAT64)])
def test_other_types_and_a_softcap(softcap: float, dtype: Dtype) -> None:
    """The refit knows softcap and element type."""
    finding = next(one for one in _judged(0.88, 2.0, softcap=softcap, dtype=dtype).findings if one.name == "scale")
    assert finding.is_refitted
    assert finding.estimate == pytest.approx(-0.12, abs=2e-3)


def test_what_is_no_scale_has_no_interval() -> None:
    """Errors along the scale that no scale explains are described as roughly that, without a false interval."""
    asked = case("2x16x40", head_dim=32)
    inputs = draw_inputs(asked, spread=2.0)
    right = right_output(asked.spec, inputs).astype(np.float64)
    other = right_output(replace(asked.spec, scale=1.1 * asked.spec.scale_value), inputs).astype(np.float64)
    noise = np.random.default_rng(0).standard_normal(right.shape) * np.abs(other - right).max() * 0.5
    agreement = judge(expect(asked.spec, inputs, precision=PRECISIONS["float32"]), (other + noise).astype(np.float32))
    for finding in agreement.findings:
        if finding.name == "scale":
            assert not finding.is_refitted
            assert re.fullmatch(r"The errors resemble a scale that is off by roughly .* %\.", finding.says)
