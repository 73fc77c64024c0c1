"""A module that cannot be what a file came from is refused before anything is judged or timed."""

import dataclasses
import sys
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.check.module_fit import require_fit
from tests.workflows.user_modules import SelfAttention, seeded

_SHORT, _LONG = 3, 9


class _Other(nn.Module):
    """A module whose forward is replaced, with those of the file's module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.right = seeded(SelfAttention)

    def forward(self, x: Tensor) -> object:
        return self.right(x)


class _TwoOutputs(_Other):
    def forward(self, x: Tensor) -> object:
        return self.right(x), {"twice": 2 * self.right(x)}


class _NoOutput(_Other):
    def forward(self, x: Tensor) -> object:
        return None


class _OtherShape(_Other):
    def forward(self, x: Tensor) -> object:
        return self.right(x)[:, :1]


class _Raises(_Other):
    def forward(self, x: Tensor) -> object:
        raise RuntimeError("boom\nsecond line")


class _Exits(_Other):
    def forward(self, x: Tensor) -> object:
        raise SystemExit(3)


class _OnlyShort(_Other):
    def forward(self, x: Tensor) -> object:
        if x.shape[1] > _SHORT:
            raise ValueError("too long")
        return self.right(x)


class _ShortAndWrong(_OnlyShort):
    def forward(self, x: Tensor) -> object:
        return torch.stack([super().forward(x)])  # type: ignore[list-item]


class _Counts(_Other):
    def forward(self, x: Tensor) -> object:
        self.calls = getattr(self, "calls", 0) + 1
        sys.stdout.write("called")
        return self.right(x)


def _sizes(model: OnnxModel, length: int) -> Mapping[str, int]:
    return {axis: 2 if axis.startswith("batch") else length for axis in model.facts.axes}


def _fit(model: OnnxModel, module: nn.Module | None, *lengths: int) -> None:
    trials = (
        (sizes, draw_feeds(model, sizes, spread=1.0, seed=0))
        for sizes in (_sizes(model, length) for length in lengths or (_LONG,))
    )
    require_fit(dataclasses.replace(model, source=module), "m.py:M", "f.onnx", trials)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (_TwoOutputs, ["m.py:M returns 2 outputs, f.onnx has 1 output: "]),
        (_NoOutput, ["m.py:M returns 0 outputs, f.onnx has 1 output: "]),
        (_OtherShape, ["m.py:M returns shape (2, 1, 16) where output '", "' of f.onnx has (2, 9, 16) (batch"]),
        (_Raises, ["m.py:M does not run on the inputs of f.onnx (batch", "RuntimeError at ", ": boom."]),
        (_Exits, ["m.py:M does not run on the inputs of f.onnx (batch", "SystemExit at "]),
    ],
)
def test_another_module(module_model: OnnxModel, kind: type[nn.Module], parts: list[str]) -> None:
    """The error is one sentence with what differs, and the question that it raises."""
    with pytest.raises(PlanError) as caught:
        _fit(module_model, kind())
    assert [part in str(caught.value) for part in parts] == [True] * len(parts), caught.value
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("Is it the right module?")


def test_sizes_at_which_it_raises(module_model: OnnxModel) -> None:
    """A module that runs at one of the sizes is compared there; one that runs at none is refused for the first."""
    _fit(module_model, _OnlyShort(), _LONG, _SHORT)
    with pytest.raises(PlanError, match="returns shape"):
        _fit(module_model, _ShortAndWrong(), _LONG, _SHORT)
    with pytest.raises(PlanError, match=f"seq_len {_LONG}.*too long"):
        _fit(module_model, _OnlyShort(), _LONG, _LONG + 1)


def test_the_right_module(module_model: OnnxModel, capsys: pytest.CaptureFixture[str]) -> None:
    """It is accepted, runs once at one size, prints nothing and remembers nothing; no module is accepted too."""
    module = _Counts()
    _fit(module_model, module, _LONG, _SHORT)
    _fit(module_model, None)
    assert not hasattr(module, "calls")
    assert capsys.readouterr().out == ""


def test_an_output_without_a_shape(module_model: OnnxModel) -> None:
    """What the graph does not declare is not compared here."""
    copy = module_model.ir.clone()
    for value in copy.graph.outputs:
        value.shape = None
    _fit(dataclasses.replace(module_model, ir=copy), _OtherShape())
