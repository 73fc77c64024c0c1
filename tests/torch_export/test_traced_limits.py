"""The sizes that a trace allows are noted with their line, in the names of the axes."""

import pytest
import torch
from torch import Tensor, nn

from sdpa_onnx.errors import ExportError
from sdpa_onnx.torch_export.exporter import export_module


class _Of(nn.Module):
    """Attention over x, with a condition on its length in `check`, and a memory that is put before it."""

    def check(self, x: Tensor, memory: Tensor) -> None:
        """Ask for a condition."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        self.check(x, memory)
        keys = torch.cat([memory, x], dim=1)
        return nn.functional.scaled_dot_product_attention(x, keys, keys)


class _Long(_Of):
    def check(self, x: Tensor, memory: Tensor) -> None:
        if x.shape[1] > 300:
            raise ValueError("too long")


class _Short(_Of):
    def check(self, x: Tensor, memory: Tensor) -> None:
        if x.shape[1] < 5:
            raise ValueError("too short")


class _Both(_Of):
    def check(self, x: Tensor, memory: Tensor) -> None:
        assert x.shape[1] + memory.shape[1] <= 64


class _Order(_Of):
    def check(self, x: Tensor, memory: Tensor) -> None:
        assert memory.shape[1] >= x.shape[1]


class _Multiple(_Of):
    def check(self, x: Tensor, memory: Tensor) -> None:
        assert x.shape[1] % 4 == 0


class _NoMultiple(_Of):
    def check(self, x: Tensor, memory: Tensor) -> None:
        assert x.shape[1] % 3 != 0


class _Frames(_Of):
    def check(self, x: Tensor, memory: Tensor) -> None:
        torch.cat([x[:, :2], torch.zeros(7, 4).repeat((memory.shape[1] - 2) // 7, 1)[None] + memory[:, 2:]], dim=1)


class _Table(_Of):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, 40, 4))

    def check(self, x: Tensor, memory: Tensor) -> None:
        x + self.table[:, : x.shape[1]]


class _Free(_Of):
    """No condition; torch asks for some by itself, to know how tensors lie in memory."""

    def check(self, x: Tensor, memory: Tensor) -> None:
        x[:, 2:].transpose(1, 2).reshape(-1, x.shape[1] - 2)


@pytest.mark.parametrize(
    ("module", "limit"),
    [
        (_Long, "x_seq_len <= 300"),
        (_Short, "x_seq_len >= 5"),
        (_Both, "x_seq_len + memory_seq_len <= 64"),
        (_Order, "memory_seq_len - x_seq_len >= 0"),
        (_Multiple, "x_seq_len = 4*n"),
        (_NoMultiple, "x_seq_len % 3 >= 1"),
        (_Frames, "memory_seq_len = 7*n + 2"),
        (_Table, "x_seq_len <= 40"),
        (_Free, ""),
    ],
)
def test_limit_of_a_trace(module: type[_Of], limit: str) -> None:
    """A comparison, a sum, a multiple and the length of a table are stated with the line that asks for them."""
    model = export_module(module().eval(), (torch.randn(2, 8, 4), torch.randn(2, 16, 4)), opset=18)
    assert model.facts.axes == ("batch_size", "x_seq_len", "memory_seq_len")
    assert "; ".join(str(one) for one in model.facts.limits) == limit
    assert all("test_traced_limits.py:" in one.source for one in model.facts.limits)


def test_range_as_torch_states_it() -> None:
    """Next to the line; torch itself begins at 2 where the code states nothing."""
    model = export_module(_Long().eval(), (torch.randn(2, 8, 4), torch.randn(2, 16, 4)), opset=18)
    (limit,) = model.facts.limits
    assert limit.source.endswith("`if x.shape[1] > 300:`; torch.export states 2 <= x_seq_len <= 300")


class _Context(nn.Module):
    """Cached and new tokens always fill a context of 32."""

    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        keys = torch.cat([past, x], dim=1)
        return nn.functional.scaled_dot_product_attention(x, keys, keys, attn_mask=torch.zeros(1, 32))


def test_relation_of_two_axes() -> None:
    """An axis of 32 - x moves with x, is in no way a size of its own, and limits x."""
    model = export_module(_Context().eval(), (torch.randn(2, 10, 4), torch.randn(2, 22, 4)), opset=18)
    assert model.facts.axes == ("batch_size", "x_seq_len")
    assert [str(size) for size in model.input_value("past").shape or ()] == ["batch_size", "32 - x_seq_len", "4"]
    (limit,) = model.facts.limits
    assert str(limit) == "x_seq_len <= 32"
    assert "attn_mask=torch.zeros(1, 32)" in limit.source
    assert limit.source.endswith("; torch.export states an axis of 32 - x_seq_len")


class _IntegerOfSizes(nn.Module):
    """Puts windows of an image together again; the number of images is computed by a float."""

    def forward(self, image: Tensor) -> Tensor:
        cut = image.view(-1, 4, 4)
        images = int(cut.shape[0] / 2)
        mixed = nn.functional.scaled_dot_product_attention(cut, cut, cut)
        return mixed.view(images, 8, 4)


def test_the_line_that_makes_a_size_a_number() -> None:
    """It is named, and not a later one where that number meets the size."""
    with pytest.raises(
        ExportError, match=r"axis 0 of 'image' is fixed to 3 by .*`images = int\(cut\.shape\[0\] / 2\)`"
    ):
        export_module(_IntegerOfSizes().eval(), (torch.randn(3, 8, 4),), opset=18, dynamic_axes={"image": (0,)})


class _Complex(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.unflatten(2, (-1, 2)))
        return torch.view_as_real(
            turned * torch.polar(torch.ones(1, 2), torch.ones(1, 2)).repeat(x.shape[1], 1)
        ).flatten(2)


def test_complex_numbers_are_named() -> None:
    """They are the reason, not the operator that torch.onnx happens to meet first."""
    with pytest.raises(ExportError) as caught:
        export_module(_Complex().eval(), (torch.randn(2, 8, 4),), opset=18)
    text = str(caught.value)
    assert text.startswith("_Complex computes with complex numbers at ")
    assert "torch.onnx has no translation of aten.repeat for them at opset 18." in text
    assert "test_traced_limits.py:" in text
