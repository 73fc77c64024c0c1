"""The table of constraints: every phrase is in the operator's own text, and every row is about an input that exists."""

import re

import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest

from sdpa_onnx.graph.integers.allowed import IntegerRule
from sdpa_onnx.graph.integers.rules import RULES
from sdpa_onnx.graph.one_node import FORMAL_INPUTS

_CONTRIB = {schema.name: schema for schema in ort_state.get_all_operator_schema() if schema.domain == "com.microsoft"}
_IDS = [f"{rule.operator}-{rule.name}-{rule.kind}" for rule in RULES]


def _schema(rule: IntegerRule, opset: int = 25) -> object:
    return _CONTRIB[rule.operator] if rule.domain else onnx.defs.get_schema(rule.operator, opset, "")


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("rule", RULES, ids=_IDS)
def test_source_is_the_operators_own_text(rule: IntegerRule) -> None:
    """The phrase of a row is found word for word in the schema, and the input has that name."""
    schema = _schema(rule)
    texts = [schema.doc, *(formal.description for formal in schema.inputs)]  # type: ignore[attr-defined]
    assert any(_plain(rule.source) in _plain(text or "") for text in texts)
    assert rule.name in [formal.name for formal in schema.inputs]  # type: ignore[attr-defined]
    assert rule.says


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.domain], ids=lambda rule: f"{rule.operator}")
def test_rule_begins_with_its_input(rule: IntegerRule) -> None:
    """A row about a standard operator holds from the first opset that has the input."""
    assert rule.name in [formal.name for formal in onnx.defs.get_schema(rule.operator, 25, "").inputs]
    if rule.first_opset > 1:
        below = rule.first_opset - 1
        older = onnx.defs.has(rule.operator, below, "")
        assert not older or rule.name not in [one.name for one in onnx.defs.get_schema(rule.operator, below, "").inputs]


def test_every_integer_input_of_a_read_operator_has_a_rule() -> None:
    """No integer input of an attention that is read is drawn without a meaning; those that are refused are listed."""
    refused = {"past_sequence_length", "cache_indirection"}
    covered = {(rule.domain, rule.operator, rule.name) for rule in RULES}
    for domain, operator in FORMAL_INPUTS:
        schema = _CONTRIB[operator] if domain else onnx.defs.get_schema(operator, 25, "")
        for formal in schema.inputs:
            if set(formal.types) <= {"tensor(int32)", "tensor(int64)"} and formal.name not in refused:
                assert (domain, operator, formal.name) in covered
