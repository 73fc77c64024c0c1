"""Every error of an export, compared as the whole text that the user reads."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import sdpa_onnx
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import ExportError
from sdpa_onnx.torch_export.exporter import export_module
from tests.torch_export import user_modules
from tests.torch_export.user_modules import (
    Attend,
    DecidingByValue,
    Decoder,
    Failing,
    FixedLength,
    ScaledByRoundedLog,
    Untranslatable,
)


def _at(code: str) -> str:
    """FILE:LINE: `CODE` of a line in user_modules."""
    path = Path(inspect.getfile(user_modules))
    lines = [line.strip() for line in path.read_text().splitlines()]
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{lines.index(code) + 1}: `{code}`"


def _error(
    module: nn.Module,
    sample: object,
    *,
    opset: int = 23,
    dynamic_axes: Mapping[str, Sequence[int]] | None = None,
) -> str:
    with pytest.raises(ExportError) as caught:
        export_module(module, sample, opset=opset, dynamic_axes=dynamic_axes)
    return str(caught.value)


def _qkv() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 4, size, 8) for size in (3, 5, 5))


def test_baked_axis_is_named_with_its_line() -> None:
    """The error for a specialised axis names input, size, file, line and code, and what to pass instead."""
    assert _error(FixedLength(), (torch.randn(2, 10, 4),)) == (
        "The export cannot keep its axes dynamic: axis 1 of 'x' is fixed to 10 by "
        + _at("return x.sum(-1) + torch.arange(10.0)")
        + ". Change that code, or export at this size: dynamic_axes={'x': (0,)}, on the command line --dynamic x=0."
    )


def test_the_offered_dynamic_axes_work() -> None:
    """The suggested dynamic_axes export at that size, with the other axis dynamic."""
    model = export_module(FixedLength(), (torch.randn(2, 10, 4),), dynamic_axes={"x": (0,)})
    assert [str(dim) for dim in model.ir.graph.inputs[0].shape or ()] == ["batch_size", "10", "4"]


def test_scale_that_torch_cannot_follow() -> None:
    """An integer computed from a length specialises it, and the error names the key's axis."""
    assert _error(ScaledByRoundedLog(), _qkv()) == (
        "The export cannot keep its axes dynamic: axis 2 of 'k' is fixed to 5 by "
        + _at(
            "return functional.scaled_dot_product_attention(q, k, v, "
            "scale=1.0 / (1 + int(math.log2(int(k.shape[-2])))))"
        )
        + ". Change that code, or export at this size: dynamic_axes={'k': (0,)}, on the command line --dynamic k=0."
    )


def test_forward_that_raises() -> None:
    """An exception of forward is reported with its line."""
    assert _error(Failing(), (torch.randn(2, 3, 4),)) == (
        "Failing.forward raised ValueError at " + _at('raise ValueError("heads do not fit")') + ": heads do not fit."
    )


def test_branch_on_values() -> None:
    """A branch on tensor values is reported with its line."""
    assert _error(DecidingByValue(), (torch.randn(2, 3, 4),)) == (
        "DecidingByValue branches on the values of a tensor at "
        + _at("return x if x.sum() > 0 else -x")
        + ", which a graph cannot do. Move the branch out of forward, or pass the flag that the code checks "
        "(torch.nn.TransformerDecoder: tgt_is_causal=True or False)."
    )


def test_decoder_that_looks_at_its_mask() -> None:
    """For torch's decoder, which detects a causal mask, the error names the user's line and the flag to pass."""
    assert _error(Decoder(tgt_is_causal=None), (torch.randn(2, 5, 16), torch.randn(2, 7, 16))) == (
        "Decoder branches on the values of a tensor at "
        + _at("output: Tensor = self.decoder(target, memory, tgt_mask=mask, tgt_is_causal=self.tgt_is_causal)")
        + ", which a graph cannot do. Move the branch out of forward, or pass the flag that the code checks "
        "(torch.nn.TransformerDecoder: tgt_is_causal=True or False)."
    )


def test_operator_without_an_onnx_form() -> None:
    """The error names the operator and the opset."""
    assert _error(Untranslatable(), (torch.randn(2, 3, 4),)) == (
        "torch.onnx has no translation of prims.bessel_j0 at opset 23, which Untranslatable uses."
    )


def test_dynamic_heads() -> None:
    """Head counts cannot be dynamic, and the error says which axis to leave out."""
    axes = dict.fromkeys("qkv", (0, 1, 2))
    assert _error(Attend(), _qkv(), dynamic_axes=axes) == (
        "The number or the width of the heads of an attention depends on a dynamic axis. "
        "Pass dynamic_axes without that axis."
    )


def test_sample_that_does_not_fit() -> None:
    """The error names a missing argument and the signature."""
    text = _error(Decoder(tgt_is_causal=True), (torch.randn(2, 5, 16),))
    assert text == (
        "The sample inputs do not match Decoder.forward(target: torch.Tensor, memory: torch.Tensor) -> torch.Tensor: "
        "missing a required argument: 'memory'."
    )


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (
            "x",
            (
                "The sample inputs of Attend are of type str. "
                "Give a tuple of tensors, or a dict of tensors by parameter name."
            ),
        ),
        ((1, 2, 3), "The sample inputs of Attend contain no tensor. Give at least one."),
    ],
)
def test_sample_of_the_wrong_kind(sample: object, expected: str) -> None:
    """A sample without tensors is refused."""
    assert _error(Attend(), sample) == expected


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (
            {"qq": (0,)},
            "dynamic_axes names 'qq', which is not a tensor of the sample inputs (q, k, v). Did you mean 'q'?",
        ),
        ({"mask": (0,)}, "dynamic_axes names 'mask', which is not a tensor of the sample inputs (q, k, v)."),
        ({"q": (4,)}, "dynamic_axes requests axis 4 of 'q', which has 4 axes. Give axes from 0 to 3."),
    ],
)
def test_dynamic_axes_that_do_not_exist(axes: dict[str, tuple[int, ...]], expected: str) -> None:
    """Names and axes in dynamic_axes are validated."""
    assert _error(Attend(), _qkv(), dynamic_axes=axes) == expected


def test_opset_out_of_range() -> None:
    """Opset 26 is refused, because torch writes opset 18 into such files."""
    assert _error(Attend(), _qkv(), opset=26) == "Opset 26 cannot be exported. Use an opset from 18 to 25."


def test_cause_is_kept_and_flags_stay_after_a_failure() -> None:
    """The original exception is the cause, and a failed export keeps the training flag."""
    module = Failing().train()
    with pytest.raises(ExportError) as caught:
        export_module(module, (torch.randn(2, 3, 4),))
    assert isinstance(caught.value.__cause__, ValueError)
    assert module.training


def test_type_of_a_module_that_the_caller_holds() -> None:
    """A module is not converted implicitly: the error says what to do."""
    with pytest.raises(ExportError) as caught:
        sdpa_onnx.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), dtype=Dtype.FLOAT16)
    assert str(caught.value) == (
        "dtype applies only to a spec or a name; a module is exported in its own element type. "
        "Convert the module and its inputs: module.to(torch.float16)."
    )
