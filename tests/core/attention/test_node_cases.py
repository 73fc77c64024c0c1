"""ONNX's own Attention node cases through our oracle: their data, not their code."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx.backend.test.loader import load_model_tests

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend
from sdpa_onnx.graph.model import load_model

# Cases of the installed onnx: 186 with the `_expanded` twins, which are the same data.
NODE_CASES = 93

# Source: onnx 1.23 backend runner, assert_similar_outputs and the test cases' own rtol and atol.
RTOL, BFLOAT16_RTOL, ATOL = 1e-3, 2.0**-6, 1e-7


@cache
def every_case() -> dict[str, Any]:
    """The cases of all attention operators, also those with the operator's function body."""
    with warnings.catch_warnings():
        # Other operators' cases divide by zero on purpose while the loader computes them.
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    return {case.name: case for case in cases if case.name.startswith("test_attention")}


def node_cases() -> dict[str, Any]:
    """The cases of one node."""
    return {name: case for name, case in every_case().items() if not name.endswith("_expanded")}


def test_all_node_cases_are_here() -> None:
    """None is lost by a change of names in onnx."""
    assert len(node_cases()) == NODE_CASES


@pytest.mark.parametrize("name", sorted(node_cases()))
def test_node_case(name: str) -> None:
    """Every output of the case lies within onnx's own tolerance of our oracle."""
    case = node_cases()[name]
    model = case.model
    given, wanted = case.data_sets[0]
    feeds = {value.name: np.asarray(array) for value, array in zip(model.graph.input, given, strict=True)}
    expected = {value.name: np.asarray(array) for value, array in zip(model.graph.output, wanted, strict=True)}
    (node,) = model.graph.node
    site = load_model(model).sites[0]
    mode = next((item.i for item in node.attribute if item.name == "qk_matmul_output_mode"), 0)
    inputs = AttentionInputs(**{field: feeds[value] for field, value in site.inputs.items()})

    result = attend(site.spec, inputs, qk_mode=QkOutputMode(mode))

    ours = (result.output, result.present_key, result.present_value, result.qk)
    compared = 0
    for name_in_graph, actual in zip(node.output, ours, strict=False):
        if not name_in_graph:
            continue
        right = expected[name_in_graph]
        rtol = BFLOAT16_RTOL if right.dtype.name == "bfloat16" else RTOL
        assert actual is not None
        stored = actual.astype(right.dtype).astype(np.float64)
        np.testing.assert_allclose(stored, right.astype(np.float64), rtol=rtol, atol=ATOL, err_msg=name_in_graph)
        compared += 1
    assert compared == len(expected)
