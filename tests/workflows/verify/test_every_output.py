"""Every output of every operator that we read is judged: each is what its place on the node says, and its faults show.

The operators' own schemas are walked, so that an output that nobody judges makes a test fail.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx.defs
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.faults.planted_faults import FAULTS, faults_for
from sdpa_onnx.core.records.records import AgreementRecord, Verdict
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.one_node import FORMAL_INPUTS
from sdpa_onnx.graph.site_outputs import FORMAL_OUTPUTS
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.workflows.planted_runtime import Planted

Array = NDArray[np.generic]

_BATCH, _HEADS, _KV_HEADS, _WIDTH, _NEW, _PAST = 2, 4, 2, 16, 3, 5
_ELEMENTS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
_RIGHT = (Verdict.OK, Verdict.ROUNDING_LEVEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One attention node with all of its outputs, and arrays that it accepts.

    Args:
        operator: Domain and operator type.
        feeds: Graph inputs by name, in the order of the operator; "" = absent.
        constants: Initializers by name, after which inputs are looked up too.
        inputs: Names in the operator's order.
        outputs: Names in the operator's order.
        attributes: Of the node.
        opset: Of the default domain.
    """

    operator: tuple[str, str]
    feeds: Mapping[str, Array]
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, object]
    constants: Mapping[str, Array]
    opset: int

    def model(self) -> OnnxModel:
        domain, op_type = self.operator
        node = helper.make_node(op_type, self.inputs, self.outputs, domain=domain, **self.attributes)
        given = [helper.make_tensor_value_info(n, _ELEMENTS[a.dtype], a.shape) for n, a in self.feeds.items()]
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs if name]
        held = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        opsets = [helper.make_opsetid("", self.opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
        graph = helper.make_graph([node], "one node", given, made, held)
        return with_lifted_sites(load_model(helper.make_model(graph, opset_imports=opsets, ir_version=10))).model

    def records(self, runtime: Runtime) -> list[AgreementRecord]:
        check = CheckOptions(sizes={}, inputs=self.feeds)
        return check_model(self.model(), runtime, check, target="t", expectations=ExpectationCache())


def _random(*shape: int) -> Array:
    return np.random.default_rng([3, *shape]).standard_normal(shape, dtype=np.float32)


def _two(*shape: int) -> Iterator[Array]:
    """Different arrays of one shape."""
    drawn = np.random.default_rng([5, *shape])
    while True:
        yield drawn.standard_normal(shape, dtype=np.float32)


def _standard(opset: int, mode: int, *, past: bool = True, names: Sequence[str] = ("Y", "PRK", "PRV", "QK")) -> Node:
    fresh, old = _two(_BATCH, _KV_HEADS, _NEW, _WIDTH), _two(_BATCH, _KV_HEADS, _PAST, _WIDTH)
    feeds = {"Q": _random(_BATCH, _HEADS, _NEW, _WIDTH), "K": next(fresh), "V": next(fresh)}
    feeds |= {"PK": next(old), "PV": next(old)} if past else {}
    return Node(
        operator=("", "Attention"),
        feeds=feeds,
        inputs=("Q", "K", "V", "", "PK", "PV") if past else ("Q", "K", "V"),
        outputs=names,
        attributes={"qk_matmul_output_mode": mode, "softcap": 2.0},
        constants={},
        opset=opset,
    )


def _multi_head() -> Node:
    fresh, old = _two(_BATCH, _NEW, _HEADS * _WIDTH), _two(_BATCH, _HEADS, _PAST, _WIDTH)
    names = ("q", "k", "v")
    return Node(
        operator=(CONTRIB_DOMAIN, "MultiHeadAttention"),
        feeds={**{name: next(fresh) for name in names}, "pk": next(old), "pv": next(old)},
        inputs=("q", "k", "v", "", "", "", "pk", "pv"),
        outputs=("y", "a", "b", "qk"),
        attributes={"num_heads": _HEADS},
        constants={},
        opset=21,
    )


def _group_query(qk_output: int, *, rotary: bool = False) -> Node:
    new, old = _two(_BATCH, 1, _KV_HEADS * _WIDTH), _two(_BATCH, _KV_HEADS, _PAST + 3, _WIDTH)
    feeds = {"q": _random(_BATCH, 1, _HEADS * _WIDTH), "k": next(new), "v": next(new), "pk": next(old), "pv": next(old)}
    feeds |= {"lengths": np.array([_PAST, _PAST - 2], np.int32), "total": np.array([_PAST + 1], np.int32)}
    angles = np.random.default_rng(7).random((16, _WIDTH // 2))
    tables = {"c": np.cos(angles).astype(np.float32), "s": np.sin(angles).astype(np.float32)} if rotary else {}
    attributes = {"num_heads": _HEADS, "kv_num_heads": _KV_HEADS, "qk_output": qk_output, "do_rotary": int(rotary)}
    return Node(
        operator=(CONTRIB_DOMAIN, "GroupQueryAttention"),
        feeds=feeds,
        inputs=("q", "k", "v", "pk", "pv", "lengths", "total", *tables),
        outputs=("y", "a", "b", "qk") if qk_output else ("y", "a", "b"),
        attributes=attributes,
        constants=tables,
        opset=21,
    )


def _packed() -> Node:
    columns = 3 * _HEADS * _WIDTH
    return Node(
        operator=(CONTRIB_DOMAIN, "Attention"),
        feeds={"x": _random(_BATCH, _NEW, 24), "past": _random(2, _BATCH, _HEADS, _PAST, _WIDTH)},
        inputs=("x", "w", "bias", "", "past"),
        outputs=("y", "both"),
        attributes={"num_heads": _HEADS},
        constants={"w": _random(24, columns), "bias": _random(columns)},
        opset=21,
    )


# No key is hidden here: in mode 2 onnxruntime returns the lowest number for it, not -inf.
_NODES = {
    **{f"attention-{opset}-mode-{mode}": _standard(opset, mode) for opset in (23, 24, 25) for mode in range(4)},
    "attention-no-past": _standard(23, 0, past=False),
    "multi-head": _multi_head(),
    "group-query": _group_query(0),
    "group-query-qk-1": _group_query(1),
    "group-query-qk-2": _group_query(2),
    "group-query-rotary": _group_query(0, rotary=True),
    "packed": _packed(),
}


@pytest.mark.parametrize("name", _NODES)
def test_every_output_of_a_right_runtime_is_right(name: str) -> None:
    """Each output has a judgement of its own, by its place on the node and not by its name."""
    node = _NODES[name]
    records = node.records(get_runtime("ort-cpu"))
    formal = FORMAL_OUTPUTS[node.operator]
    assert [record.site for record in records][1:] == [role.value for role in formal[1 : len(node.outputs)]]
    assert [record.reason for record in records if record.verdict not in _RIGHT] == []
    assert [warning for record in records for warning in record.warnings if "not judged" in warning] == []


_QUICK = {"packed", "group-query-qk-2"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in _QUICK else pytest.mark.slow) for n in _NODES])
def test_every_fault_of_an_output_is_found(name: str) -> None:
    """What is planted in a cache or in the scores is wrong, and nothing else is, at every operator and opset."""
    (site,) = _NODES[name].model().sites
    faults = [one for one in faults_for(site.spec, outputs=set(site.outputs)) if one.output is not OutputRole.OUTPUT]
    assert {fault.output for fault in faults} == set(site.outputs) - {OutputRole.OUTPUT}
    missed = []
    for fault in faults:
        records = _NODES[name].records(Planted(fault))
        wrong = {record.site for record in records if record.verdict is Verdict.WRONG}
        if wrong != {fault.output.value} and not _changes_nothing(name, fault.name):
            missed.append((fault.name, wrong))
    assert missed == []


def _changes_nothing(name: str, slug: str) -> bool:
    """Without a mask, the stages after softcap and after the mask hold the same numbers; the text permits others."""
    same = {"qk-softcap-and-mask-swapped"}
    permitted = {"qk-scores-and-weights-swapped"} if name == "multi-head" else set()
    return slug in same | permitted


@pytest.mark.parametrize(
    "names",
    [
        ("Y", "PRK", "PRV", "QK"),
        ("Y", "present_value", "present_key", "QK"),
        ("present_key", "Y", "qk_matmul_output", "present_value"),
        ("out", "present_value", "present_key", ""),
        ("qk_matmul_output", "1", "Y", "present_value"),
    ],
)
def test_names_of_outputs_decide_nothing(names: Sequence[str]) -> None:
    """Right numbers are right, and a fault is found in the output that has it, whatever the outputs are called."""
    node = replace(_standard(24, 0), outputs=names)
    assert {record.verdict for record in node.records(get_runtime("ort-cpu"))} <= set(_RIGHT)
    roles = [role for role, name in zip(FORMAL_OUTPUTS["", "Attention"], names, strict=True) if name]
    for role in roles[1:]:
        fault = next(one for one in FAULTS if one.output is role and one.name.endswith("zero"))
        records = node.records(Planted(fault))
        assert [record.site for record in records if record.verdict is Verdict.WRONG] == [role.value]


def _text(body: str, outputs: str, opset: int = 24) -> OnnxModel:
    values = "float[2,4,3,16] Q, float[2,4,3,16] K, float[2,4,3,16] V, float[2,4,5,16] PK, float[2,4,5,16] PV"
    return with_lifted_sites(
        load_model(
            onnx.parser.parse_model(
                f'<ir_version: 10, opset_import: ["" : {opset}]> g ({values}) => ({outputs}) {{ {body} }}'
            )
        )
    ).model


def _warnings(model: OnnxModel) -> set[str]:
    shapes = {value.name: tuple(value.shape or ()) for value in model.ir.graph.inputs}
    feeds = {name: _random(*(int(size) for size in shape)) for name, shape in shapes.items()}
    check = CheckOptions(sizes={}, inputs=feeds)
    found = check_model(model, get_runtime("ort-cpu"), check, target="t", expectations=ExpectationCache())
    assert {record.verdict for record in found} <= set(_RIGHT)
    return {warning for record in found for warning in record.warnings}


@pytest.mark.parametrize(
    ("body", "outputs", "warnings"),
    [
        ('Y, A, B = Attention (Q, K, V, "", PK, PV)', "float[2,4,3,16] Y, float[2,4,8,16] A, float[2,4,8,16] B", set()),
        (
            'Y, A, B = Attention (Q, K, V, "", PK, PV) R = Relu (Y)',
            "float[2,4,3,16] Y, float[2,4,3,16] R",
            {"Not judged: output 'R', not from an attention; `verify --against FILE.py:Class` judges it too."},
        ),
        (
            'Y, A, B = Attention (Q, K, V, "", PK, PV) R = Relu (A) S = Neg (B)',
            "float[2,4,3,16] Y, float[2,4,8,16] R, float[2,4,8,16] S",
            {"Not judged: outputs 'R', 'S', not from an attention; `verify --against FILE.py:Class` judges them too."},
        ),
    ],
)
def test_an_output_that_nothing_judges_is_named(body: str, outputs: str, warnings: set[str]) -> None:
    """A right model stays right; its record says which outputs were not looked at."""
    assert _warnings(_text(body, outputs)) == warnings


def test_every_output_of_every_schema_is_judged() -> None:
    """The outputs of the operators that we read, in their own schemas, are those that the judge knows by place."""
    contrib = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {(one.domain, one.name): one for one in contrib.get_all_operator_schema()}
    assert set(FORMAL_OUTPUTS) == set(FORMAL_INPUTS)
    for operator, roles in FORMAL_OUTPUTS.items():
        versions = (
            [onnx.defs.get_schema("Attention", opset) for opset in (23, 24, 25)]
            if operator == ("", "Attention")
            else [schemas[operator]]
        )
        for schema in versions:
            assert len(schema.outputs) == len(roles), f"{operator} has an output that nobody judges"
            if operator[0] == "":
                assert [output.name for output in schema.outputs] == [role.value for role in roles]
    tested = {node.operator for node in _NODES.values()}
    assert tested == set(FORMAL_OUTPUTS)
    planted = {fault.output for fault in FAULTS}
    assert planted == set(OutputRole)
