"""The float64 run of a module is checked before it accuses: where it breaks, PyTorch in the module's type judges."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.records import Verdict
from sdpa_onnx.workflows.check.module_output_check import Float64Module

_LEFT_PADDED = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]])


class _Eager(nn.Module):
    """Causal self attention written out, with a padding mask; the subclasses differ in how keys are hidden."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.into(x).chunk(3, -1)
        scores = query @ key.transpose(1, 2) / 4
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril() & (mask[:, None] > 0)
        result: Tensor = self.out(self.hide(scores, visible).to(value.dtype) @ value)
        return result


class LowestThenFloat32(_Eager):
    """Llama of transformers: the lowest number of the scores' type, then a softmax in float32."""

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        scores = scores + torch.where(visible, 0.0, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, -1, dtype=torch.float32)


class Float32ByMethod(_Eager):
    """The same with `.float()`."""

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).float().softmax(-1)


class Float32ByTo(_Eager):
    """The same with `.to(torch.float32)`, and a mask that is a buffer in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("lowest", torch.tensor(torch.finfo(torch.float32).min))

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        return (scores.to(torch.float32) + torch.where(visible, 0.0, self.lowest).to(torch.float32)).softmax(-1)


class LowestOfHalf(_Eager):
    """Rows without keys keep scores of -65504 plus something: float32 rounds them to 2^-8."""

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        return (scores + torch.where(visible, 0.0, torch.finfo(torch.float16).min)).softmax(-1)


class Infinite(_Eager):
    """Rows without keys are NaN in every type."""

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        return scores.masked_fill(~visible, float("-inf")).softmax(-1)


@torch.jit.script
def _softmax_in_float32(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1, dtype=torch.float32)


class Scripted(_Eager):
    """A compiled function computes in float32 whatever the module is converted to: only its float64 run is NaN."""

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        return _softmax_in_float32(scores + torch.where(visible, 0.0, torch.finfo(scores.dtype).min))


class AssertsItsType(_Eager):
    """A module that refuses float64."""

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        if scores.dtype != torch.float32:
            raise TypeError("only float32")
        return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)


class MeansSomethingElse(_Eager):
    """In float64 this module hides nothing: its float64 run is finite, and another function."""

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        if scores.dtype == torch.float64:
            return scores.softmax(-1)
        return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)


_EVERY = (
    LowestThenFloat32,
    Float32ByMethod,
    Float32ByTo,
    LowestOfHalf,
    Infinite,
    Scripted,
    AssertsItsType,
    MeansSomethingElse,
)


def _feeds() -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
    return {"x": x.numpy(), "mask": _LEFT_PADDED.numpy()}


def _own(module: nn.Module) -> np.ndarray:  # type: ignore[type-arg]
    with torch.inference_mode():
        found: np.ndarray = module(*map(torch.from_numpy, _feeds().values())).numpy()  # type: ignore[type-arg]
    return found


def _judged(module: nn.Module, actual: np.ndarray) -> Agreement:  # type: ignore[type-arg]
    (found,) = Float64Module.of(module.eval(), "float32").judge(_feeds(), [actual])
    return found


@pytest.mark.parametrize("kind", _EVERY, ids=lambda kind: kind.__name__)
def test_right_output_agrees(kind: type[_Eager]) -> None:
    """An output with rounding errors of its own is right, however the float64 run of the module fails."""
    right = _own(kind())
    rounding = 1.0 + 2.0**-23 * np.random.default_rng(0).choice([-1.0, 0.0, 1.0], right.shape)
    assert _judged(kind(), (right * rounding).astype(np.float32)).verdict is Verdict.OK


@pytest.mark.parametrize("kind", _EVERY, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("place", [(0, 3, 5), (1, 5, 2)])
def test_error_is_found(kind: type[_Eager], place: tuple[int, ...]) -> None:
    """An error of a thousandth is found, and is no more than suspicious: the limit is no proof."""
    wrong = _own(kind()).copy()
    wrong[place] += 1e-3
    assert _judged(kind(), wrong).verdict is Verdict.SUSPICIOUS


@pytest.mark.parametrize("kind", [k for k in _EVERY if k not in (LowestOfHalf, Infinite)], ids=lambda k: k.__name__)
def test_error_in_a_row_without_keys_is_found(kind: type[_Eager]) -> None:
    """Rows in which float64 breaks are compared, not passed over."""
    wrong = _own(kind()).copy()
    wrong[1, 0, 0] += 1e-3
    assert _judged(kind(), wrong).verdict is Verdict.SUSPICIOUS


def test_what_float64_could_not_judge_is_reported() -> None:
    """Each way in which the float64 run fails has its sentence; a float64 run that holds has none."""
    said = {kind.__name__: _judged(kind(), _own(kind())).warnings for kind in _EVERY}
    own = "there compared with PyTorch in the module's own type."
    assert said.pop("Scripted") == (f"float64 of the module is not finite in 3 rows, {own}",)
    why = "the module does not run in float64: TypeError: only float32"
    assert said.pop("AssertsItsType") == (f"Compared with PyTorch in float32, not in float64: {why}.",)
    far = "by more than one rounding of inputs and weights explains"
    assert said.pop("MeansSomethingElse") == (f"float64 of the module differs in 11 rows {far}, {own}",)
    assert said.pop("LowestOfHalf") == (f"float64 of the module differs in 2 rows {far}, {own}",)
    assert set(said.values()) == {()}


def test_nan_where_pytorch_overflows_is_no_proof() -> None:
    """Where PyTorch itself overflows and float64 does not, the output may be either."""

    class Huge(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            del mask
            return x * 1e30 * 1e30 * 1e-30

    feeds = _feeds()
    infinite = np.where(feeds["x"] > 0, np.float32(np.inf), np.float32(-np.inf))
    exact = (feeds["x"].astype(np.float64) * 1e30).astype(np.float32)
    for actual in (infinite, exact):
        (found,) = Float64Module.of(Huge(), "float32").judge(feeds, [actual])
        assert found.verdict is Verdict.OK


def test_integer_that_rounding_changes_is_no_proof() -> None:
    """The index of the larger of two sums that are equal but for rounding is suspicious; another index is wrong."""

    class Larger(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            del mask
            total = x.sum(-1)
            return torch.stack([total, x.flip(-1).sum(-1), total - 1], -1).argmax(-1)

    truth = Float64Module.of(Larger(), "float32")
    (right,) = (Larger()(*map(torch.from_numpy, _feeds().values())).numpy(),)
    assert [one.verdict for one in truth.judge(_feeds(), [right])] == [Verdict.OK]
    assert [one.verdict for one in truth.judge(_feeds(), [1 - right])] != [Verdict.OK]
    assert [one.verdict for one in truth.judge(_feeds(), [np.full_like(right, 2)])] == [Verdict.WRONG]
