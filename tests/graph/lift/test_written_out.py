"""Attention as torch's exporters write it: found, read, and judged where it stands."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sdpa_onnx.core.attention.spec import MaskKind
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.lift.found import FoundAttentions
from sdpa_onnx.graph.site import AttentionSite
from tests.graph.lift.exporting import by_dynamo, by_torchscript
from tests.graph.lift.judged import judge_all, judge_site, run
from tests.graph.lift.written_modules import WRITTEN, Written

Feeds = dict[str, NDArray[np.generic]]

SIZES = ((5, 7), (9, 4))
IN_TORCHSCRIPT = [name for name, written in WRITTEN.items() if written.only != "dynamo"]


def feeds_of(written: Written, sizes: tuple[int, int]) -> Feeds:
    return {f"in_{number}": tensor.numpy() for number, tensor in enumerate(written.arguments(*sizes))}


def from_torchscript(written: Written, sizes: tuple[int, int] = SIZES[0]) -> FoundAttentions:
    axes = tuple(() for _ in written.axes) if written.bakes else written.axes
    return find_attentions(by_torchscript(written.module, written.arguments(*sizes), axes))


def check_read(written: Written, findings: FoundAttentions) -> None:
    assert [found.reason for found in findings.found] == [""] * written.found
    for found in findings.found:
        assert found.attention is not None
        for field, expected in written.expects.items():
            wanted = pytest.approx(expected) if isinstance(expected, float) else expected
            assert getattr(found.attention.spec, field) == wanted, field


def check_right(findings: FoundAttentions, feeds: Feeds) -> None:
    for agreement in judge_all(findings, feeds):
        assert agreement.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), agreement.diagnosis


@pytest.mark.parametrize("name", IN_TORCHSCRIPT)
def test_what_torchscript_writes_is_read_right(name: str) -> None:
    """Every way of writing attention is found by TorchScript's export, and its taps agree with the oracle."""
    written = WRITTEN[name]
    findings = from_torchscript(written)
    check_read(written, findings)
    for sizes in SIZES:
        if written.bakes and sizes != SIZES[0]:
            findings = from_torchscript(written, sizes)
        check_right(findings, feeds_of(written, sizes))


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_what_dynamo_writes_is_read_right(name: str) -> None:
    """The same through torch.export at opset 18."""
    written = WRITTEN[name]
    findings = find_attentions(by_dynamo(written.module, written.arguments(*SIZES[0]), written.axes))
    check_read(written, findings)
    for sizes in SIZES:
        check_right(findings, feeds_of(written, sizes))


@pytest.mark.slow
@pytest.mark.parametrize("opset", [20, 22])
@pytest.mark.parametrize("name", ["sdpa", "sdpa causal", "sdpa bool", "sdpa grouped"])
def test_opsets_below_the_operator_are_read(name: str, opset: int) -> None:
    """Torch decomposes attention alike up to opset 22."""
    written = WRITTEN[name]
    findings = find_attentions(by_dynamo(written.module, written.arguments(*SIZES[0]), written.axes, opset=opset))
    check_read(written, findings)
    check_right(findings, feeds_of(written, SIZES[1]))


@pytest.mark.parametrize("name", ["scores reshaped for the mask", "einsum, heads last", "mask of keys", "two masks"])
def test_the_copy_computes_what_the_source_computes(name: str) -> None:
    """Nodes that are added or put in place of a product change no output of the graph."""
    written = WRITTEN[name]
    source = by_torchscript(written.module, written.arguments(*SIZES[0]), written.axes)
    findings = find_attentions(source)
    feeds = feeds_of(written, SIZES[1])
    outputs = [value.name or "" for value in source.graph.outputs]
    before, after = run(source, feeds, outputs), run(findings.model, feeds, outputs)
    for output in outputs:
        torch.testing.assert_close(torch.tensor(after[output]), torch.tensor(before[output]))


def test_a_doubled_scale_is_caught() -> None:
    """A reading whose scale is twice the graph's disagrees with the oracle: the taps prove readings."""
    written = WRITTEN["on both"]
    site, values = tapped(written)
    wrong = replace(site, spec=replace(site.spec, scale=2 * site.spec.scale_value))
    assert judge_site(site, values, "float32").verdict is Verdict.OK
    assert judge_site(wrong, values, "float32").verdict is Verdict.WRONG


def test_a_dropped_mask_is_caught() -> None:
    """A reading without the graph's mask disagrees too."""
    site, values = tapped(WRITTEN["masked_fill -inf"])
    wrong = replace(site, attn_mask=None, spec=replace(site.spec, mask=MaskKind.NONE))
    assert judge_site(site, values, "float32").verdict is Verdict.OK
    assert judge_site(wrong, values, "float32").verdict is Verdict.WRONG


def test_tiled_heads_are_not_taken_for_grouped_ones() -> None:
    """Heads that repeat as 0 1 0 1 serve other queries than 0 0 1 1: read as groups they are caught."""
    site, values = tapped(WRITTEN["tiled heads"])
    grouped = replace(site, spec=replace(site.spec, kv_num_heads=2))
    narrow = {**values, site.key: values[site.key][:, :2], site.value: values[site.value][:, :2]}
    assert site.spec.kv_num_heads == 4
    assert judge_site(grouped, narrow, "float32").verdict is Verdict.WRONG


def test_who_reads_the_weights_is_told() -> None:
    """Weights that are an output stay, and the user learns that a form does not make them."""
    (found,) = from_torchscript(WRITTEN["weights as an output"]).found
    assert found.attention is not None
    (warning,) = found.warnings
    output = found.attention.output.producer()
    assert output is not None
    weights = output.inputs[0]
    assert weights is not None
    assert warning == f"the weights are also read by output {weights.name}, and a form does not compute them"


def tapped(written: Written) -> tuple[AttentionSite, Feeds]:
    findings = from_torchscript(written)
    (found,) = findings.found
    assert found.attention is not None
    site = found.attention.site
    values = run(findings.model, feeds_of(written, SIZES[0]), [*site.inputs.values(), site.output])
    return site, values
