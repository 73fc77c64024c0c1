"""Sequences stay sequences: a file in which query, key and value are elements of one is read and loads."""

import onnx.parser
import pytest

from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

_TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
model (float[B, 4, L, 24] x) => (float[B, 4, L, 8] y)
<int64 first = {0}, int64 second = {1}, int64 third = {2}, int64 width = {8}>
{
  STEPS
  q = SequenceAt (s, first)
  k = SequenceAt (s, second)
  v = SequenceAt (s, third)
  turned = Transpose <perm = [0, 1, 3, 2]> (k)
  scores = MatMul (q, turned)
  weights = Softmax <axis = -1> (scores)
  y = MatMul (weights, v)
}
"""
KINDS = {
    "split": "s = SplitToSequence <axis = 3> (x, width)",
    "constructed": "a, b, c = Split <axis = 3> (x)  s = SequenceConstruct (a, b, c)",
    "erased": "t = SplitToSequence <axis = 3> (x, width)  a = SequenceAt (t, first)"
    "  u = SequenceInsert (t, a)  s = SequenceErase (u, third)",
    "two of one": "t = SplitToSequence <axis = 3> (x, width)  a = SequenceAt (t, third)"
    "  b = SequenceAt (t, first)  c = SequenceAt (t, second)  s = SequenceConstruct (a, b, c)",
    "inserted at a place": "t = SplitToSequence <axis = 3> (x, width)  a = SequenceAt (t, second)"
    "  s = SequenceInsert (t, a, first)",
}


@pytest.mark.parametrize("kind", KINDS)
def test_elements_of_a_sequence_are_read(kind: str) -> None:
    """The attention is read, the copy loads, and every check is right."""
    model = with_lifted_sites(load_model(onnx.parser.parse_model(_TEXT.replace("STEPS", KINDS[kind])))).model
    assert [site.spec.q_num_heads for site in model.sites] == [4]
    check = CheckOptions(sizes={"B": 2, "L": 7})
    records = check_model(model, get_runtime("ort-cpu"), check, target="t", expectations=ExpectationCache())
    assert {record.outcome for record in records} == {Outcome.OK}
