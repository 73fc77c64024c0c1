"""The end of a module: right passes, a changed weight or a dropped bias does not."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject, Verdict
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.module_output_check import Float64Module
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.workflows.user_modules import Reciprocal, SelfAttention, WithoutAttention, hidden, seeded


def _ends(model: OnnxModel, source: nn.Module) -> list[AgreementRecord]:
    """Judgements of the module's end at a size never traced, with another module as the truth."""
    sizes = {axis: 3 if axis.startswith("batch") else 17 for axis in model.facts.axes}
    records = check_model(
        dataclasses.replace(model, source=source),
        get_runtime("ort-cpu"),
        CheckOptions(sizes=sizes),
        target="t",
        expectations=ExpectationCache(),
    )
    return [record for record in records if record.subject is Subject.OUTPUT]


def test_right_module_passes(module_model: OnnxModel) -> None:
    """The module that the graph came from agrees at every spread, with room to spare but not endlessly much."""
    ends = _ends(module_model, seeded(SelfAttention))
    assert [record.outcome for record in ends] == [Outcome.OK] * 3
    assert all(0.0 < record.max_bound_ratio < 1.0 for record in ends)
    assert {record.sizes.batch_size for record in ends} == {3}


def _changed_weight(module: nn.Module) -> None:
    module.out.weight[0, 0] += 1e-3  # type: ignore[index, union-attr]


def _dropped_bias(module: nn.Module) -> None:
    module.out.bias = None  # type: ignore[assignment]


def _rounded_weights(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.copy_(parameter.half().float())


def _other_bias_of_the_query(module: nn.Module) -> None:
    module.into.bias[:16] += 1e-2  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    "change", [_changed_weight, _dropped_bias, _rounded_weights, _other_bias_of_the_query], ids=lambda c: c.__name__
)
def test_other_parameters_are_suspicious(module_model: OnnxModel, change: object) -> None:
    """One weight off by a thousandth, a bias left out, weights rounded to float16: the end says so."""
    other = copy.deepcopy(seeded(SelfAttention))
    with torch.no_grad():
        change(other)  # type: ignore[operator]
    ends = _ends(module_model, other)
    assert Verdict.SUSPICIOUS in {record.verdict for record in ends}
    worst = max(ends, key=lambda record: record.max_bound_ratio)
    assert worst.outcome is Outcome.DISAGREES
    assert worst.max_bound_ratio > 1
    assert worst.reason.startswith("The largest error is ")


def test_another_module_of_other_width_is_no_silent_pass(module_model: OnnxModel) -> None:
    """A module that does not take these inputs cannot be compared, and the record warns."""
    ends = _ends(module_model, nn.Linear(8, 8))
    assert ends
    assert all(record.warnings for record in ends if record.outcome is Outcome.OK)


def _truth(module: nn.Module) -> Float64Module:
    return Float64Module.of(module.eval(), "float32")


def _output(module: nn.Module, x: torch.Tensor) -> np.ndarray:  # type: ignore[type-arg]
    with torch.inference_mode():
        array: np.ndarray = module(x).numpy()  # type: ignore[type-arg]
    return array


def test_judging_does_not_touch_the_module() -> None:
    """The float64 copy is a copy."""
    module = seeded(WithoutAttention)
    _truth(module).judge({"x": hidden().numpy()}, [_output(module, hidden())])
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_inside_and_outside_of_what_is_allowed() -> None:
    """An error just below eight times PyTorch's own plus one rounding passes, just above it does not."""
    module, x = seeded(WithoutAttention), hidden()
    exact = _output(copy.deepcopy(module).double(), x.double())
    own = float(np.abs(_output(module, x) - exact).max())
    allowed = 8 * own + 2.0**-24 * float(np.abs(exact).max())
    for factor, verdict in ((0.99, Verdict.OK), (1.01, Verdict.SUSPICIOUS)):
        actual = exact.copy()
        actual[0, 0, 0] += factor * allowed
        (agreement,) = _truth(module).judge({"x": x.numpy()}, [actual])
        assert agreement.verdict is verdict
        assert agreement.max_bound_ratio == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_is_wrong(value: float) -> None:
    """One element that is not finite where PyTorch's is finite is wrong."""
    module, x = seeded(WithoutAttention), hidden()
    actual = _output(module, x).copy()
    actual[1, 2, 3] = value
    (agreement,) = _truth(module).judge({"x": x.numpy()}, [actual])
    assert (agreement.verdict, agreement.not_finite) == (Verdict.WRONG, 1)
    assert agreement.diagnosis == "Places where only one of the output and PyTorch's is finite: 1."


def _with_a_zero() -> torch.Tensor:
    x = hidden().abs() + 0.5
    x[0, 0, 0] = 0.0
    return x


def test_infinity_where_the_truth_is_infinite_passes() -> None:
    """An output that is rightly infinite somewhere agrees."""
    module, x = Reciprocal(), _with_a_zero()
    (agreement,) = _truth(module).judge({"x": x.numpy()}, [_output(module, x)])
    assert agreement.verdict is Verdict.OK


@pytest.mark.parametrize("wrong", [np.nan, 7.0])
def test_infinity_in_the_truth_hides_nothing_else(wrong: float) -> None:
    """Beside a rightly infinite element a wrong one is still found."""
    module, x = Reciprocal(), _with_a_zero()
    actual = _output(module, x).copy()
    actual[1, 2, 3] = wrong
    (agreement,) = _truth(module).judge({"x": x.numpy()}, [actual])
    assert agreement.verdict is not Verdict.OK


def test_other_shape_is_wrong() -> None:
    """An output of another shape is told with both."""
    module, x = seeded(WithoutAttention), hidden()
    (agreement,) = _truth(module).judge({"x": x.numpy()}, [_output(module, x)[:, :5]])
    assert agreement.verdict is Verdict.WRONG
    assert agreement.diagnosis == "The output has shape (2, 5, 16), PyTorch returns (2, 10, 16)."


def test_missing_output_is_not_passed_over() -> None:
    """A graph that gives fewer outputs than the module is not compared as if all were there."""

    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, x + 2

    agreements = _truth(Two()).judge({"x": hidden().numpy()}, [_output(nn.Identity(), hidden() + 1)])
    assert len(agreements) == 2 or any(agreement.verdict is not Verdict.OK for agreement in agreements)


class _Raises(SelfAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("too long")


def test_a_module_that_raises_accuses_no_file(module_model: OnnxModel) -> None:
    """Nothing is judged, and the records are failures of the comparison with the error of the module."""
    ends = _ends(module_model, seeded(_Raises))
    assert {(one.outcome, one.verdict) for one in ends} == {(Outcome.FAILED, None)}
    assert {one.reason for one in ends} == {
        "The output could not be compared: The module does not run at these sizes: ValueError: too long."
    }
