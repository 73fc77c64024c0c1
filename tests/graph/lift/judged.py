"""Verify what was read: run the copy, read each attention's inputs and output, compare with the float64 oracle."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.graph.lift.found import FoundAttentions
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from tests.graph.lift import taps

Array = NDArray[np.generic]


def run(model: ir.Model, feeds: Mapping[str, Array], wanted: list[str]) -> dict[str, Array]:
    """Run a model in onnxruntime and return its outputs and the requested inner values by name."""
    copy = model.clone()
    values = {value.name: value for node in copy.graph for value in node.outputs}
    known = {value.name for value in (*copy.graph.outputs, *copy.graph.inputs)}
    copy.graph.outputs.extend(values[name] for name in dict.fromkeys(wanted) if name in values and name not in known)
    grown = OnnxModel(ir=copy, sites=())
    return {**grown.constants(), **feeds, **taps.run(grown, feeds)}


def judge_all(findings: FoundAttentions, feeds: Mapping[str, Array]) -> list[Agreement]:
    """The agreement of every attention that was read, in graph order."""
    attentions = [found.attention for found in findings.found if found.attention is not None]
    sites = [(attention.site, attention.dtype.value) for attention in attentions]
    wanted = [name for site, _ in sites for name in (*site.inputs.values(), site.output)]
    values = run(findings.model, feeds, wanted)
    return [judge_site(site, values, dtype) for site, dtype in sites]


def judge_site(site: AttentionSite, values: Mapping[str, Array], dtype: str) -> Agreement:
    inputs = AttentionInputs(**{field: values[name] for field, name in site.inputs.items()})
    return judge(expect(site.spec, inputs, precision=find_precision(dtype)), values[site.output])
