"""Single nodes in ONNX's reference evaluator."""

import warnings

import numpy as np
import onnx_ir as ir
from onnx import parser

from sdpa_onnx.workflows.locate.reference_nodes import NodeReference, NoReference


def test_an_empty_batch_prints_no_warning() -> None:
    """The evaluator also computes the mean of a batch, which no graph for inference reads."""
    model = ir.from_proto(
        parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 12]>
            g (float[n, 2, 3] x, float[2] s) => (float[n, 2, 3] y) { y = BatchNormalization (x, s, s, s, s) }"""
        )
    )
    ones = np.ones(2, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = NodeReference(model).exact(model.graph.node(0), {"x": np.zeros((0, 2, 3), np.float32), "s": ones})
    assert not isinstance(found, NoReference), found.reason
    assert found["y"].shape == (0, 2, 3)
