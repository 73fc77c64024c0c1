"""Read onnxruntime's operators and lower them to standard operators: the outputs stay the same."""

from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.contrib import attention as contrib_attention
from sdpa_onnx.graph.lift.contrib import gqa as contrib_gqa
from sdpa_onnx.graph.lift.contrib import mha as contrib_mha
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lower.lower import lower
from sdpa_onnx.graph.model import OnnxModel
from tests.graph.lift.contrib import (
    test_attention as test_contrib_attention,
)
from tests.graph.lift.contrib import (
    test_gqa as test_contrib_gqa,
)
from tests.graph.lift.contrib import (
    test_mha as test_contrib_mha,
)
from tests.graph.lift.taps import Reader, Tapped, cases, run

_TABLES = {
    "mha": (contrib_mha.read, test_contrib_mha),
    "packed": (contrib_attention.read, test_contrib_attention),
    "gqa": (contrib_gqa.read, test_contrib_gqa),
}
_CASES: dict[str, tuple[Reader, object, str]] = {
    f"{prefix}-{name}": (read, module, name) for prefix, (read, module) in _TABLES.items() for name in module._CASES
}


@pytest.mark.parametrize("case", cases(_CASES, ["packed-past-ends-and-starts", "gqa-several-bias"]))
def test_no_node_of_onnxruntime_is_left_and_outputs_are_the_same(case: str) -> None:
    """The output agrees with the oracle; caches keep their names and numbers."""
    read, module, name = _CASES[case]
    source: Tapped = module._case(name)  # type: ignore[attr-defined]  # each of the three has it
    search = GraphFacts(source.source.ir)
    (found,) = read(search)
    assert found.attention is not None
    written = lower(search.model, found.attention, Form.DECOMPOSED)
    assert all(node.domain == "" for node in search.model.graph)
    model = OnnxModel(ir=search.model, sites=(written.site,))
    arrays = {**model.constants(), **source.feeds, **run(model.tapped(), source.feeds)}
    lowered = Tapped(
        found=replace(found, attention=written), model=search.model, arrays=arrays, source=model, feeds=source.feeds
    )
    assert lowered.judged().verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL)
    assert model.output_names == source.source.output_names
    for cache, expected in source.plain().items():
        if cache.startswith("present"):  # rotation and projection sum in another order, so it differs by rounding
            np.testing.assert_allclose(arrays[cache], expected, rtol=0, atol=2**-20)
