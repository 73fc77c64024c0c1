"""Files with weights in few bits, and files in float16, are read, judged and converted like their source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift, with_lifted_sites
from sdpa_onnx.workflows.convert.convert_file import ProofOptions
from sdpa_onnx.workflows.convert.convert_for_runtime import ConversionTask, convert_for
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.workflows.quantised_files import block, dynamic, few_bits, half

Writer = Callable[[Path, Path], None]
BLOCKS: dict[str, dict[str, bool]] = {
    "plain": {},
    "mask": {"mask": True},
    "div": {"divides": True},
    "mask and div": {"mask": True, "divides": True},
    "scaled operands": {"scaled_operands": True},
}


def _by_onnxruntime(path: Path, target: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half(path, target, keep_io_types=True, convert=convert_float_to_float16)


def _by_onnxconverter(path: Path, target: Path) -> None:
    float16 = pytest.importorskip("onnxconverter_common.float16", reason="onnxconverter-common is not installed")
    half(path, target, keep_io_types=False, convert=float16.convert_float_to_float16)


WRITERS: dict[str, Writer] = {
    "int8 weights": dynamic,
    "4 bits": lambda path, target: few_bits(path, target, bits=4, is_symmetric=True),
    "4 bits with zero points": lambda path, target: few_bits(path, target, bits=4, is_symmetric=False),
    "8 bits": lambda path, target: few_bits(path, target, bits=8, is_symmetric=True),
    "float16 by onnxruntime": _by_onnxruntime,
    "float16 by onnxconverter-common": _by_onnxconverter,
}
_OPERATORS = {
    "int8 weights": "MatMulInteger",
    "4 bits": "MatMulNBits",
    "4 bits with zero points": "MatMulNBits",
    "8 bits": "MatMulNBits",
}
_QUICK = {("int8 weights", "mask"), ("4 bits", "plain"), ("float16 by onnxruntime", "plain")}
CASES = [
    pytest.param(kind, source, marks=[pytest.mark.slow] * ((kind, source) not in _QUICK))
    for kind in WRITERS
    for source in BLOCKS
]


# A float16 file with a mask is refused: where the lowest float32 number hides every key of a query, float16 has -inf.
CONVERTED = [
    case for case in CASES if not (str(case.values[0]).startswith("float16") and "mask" in str(case.values[1]))
]


def _written(tmp_path: Path, kind: str, source: str) -> Path:
    plain, path = tmp_path / "plain.onnx", tmp_path / "source.onnx"
    onnx.save(block(**BLOCKS[source]), plain)
    WRITERS[kind](plain, path)
    return path


@pytest.mark.parametrize(("kind", "source"), CASES)
def test_narrow_files_are_read_and_right(tmp_path: Path, kind: str, source: str) -> None:
    """The attention is found behind its projections, in the type of its products, and every check agrees."""
    path = _written(tmp_path, kind, source)
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert _OPERATORS.get(kind, "Softmax") in operators
    (attention,) = lift(load_model(path)).read
    assert attention.dtype is (Dtype.FLOAT16 if kind.startswith("float16") else Dtype.FLOAT32)
    assert not attention.quantisers
    model = with_lifted_sites(load_model(path)).model
    check = CheckOptions(sizes={"batch": 2, "length": 11})
    records = check_model(model, get_runtime("ort-cpu"), check, target="t", expectations=ExpectationCache())
    assert [one.reason for one in records if one.outcome is not Outcome.OK] == []
    assert records


def _converted(path: Path, form: Form) -> Any:
    proof = ProofOptions(effort=RunEffort(count=3))
    task = ConversionTask(path=path, output=path.with_name("result.onnx"), opset=None, proof=proof)
    return convert_for(task, form, LowerOptions(), again=True)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "source"), CONVERTED)
def test_narrow_files_are_converted(tmp_path: Path, kind: str, source: str) -> None:
    """The form is proved against the file, and its other nodes stay as they are."""
    path = _written(tmp_path, kind, source)
    done = _converted(path, Form.BLOCKED)
    assert [one.reason for one in done.proof.records if one.outcome is not Outcome.OK] == []
    if kind in _OPERATORS:
        files = (path, done.path)
        before, after = ([node.op_type for node in onnx.load(one).graph.node].count(_OPERATORS[kind]) for one in files)
        assert after == before > 0


@pytest.mark.slow
@pytest.mark.parametrize("form", [Form.DECOMPOSED, Form.ORT_MHA, Form.ORT_GQA])
@pytest.mark.parametrize("kind", WRITERS)
def test_other_forms_of_narrow_files(tmp_path: Path, kind: str, form: Form) -> None:
    """Every form that keeps the opset is proved too."""
    done = _converted(_written(tmp_path, kind, "plain"), form)
    assert [one.reason for one in done.proof.records if one.outcome is not Outcome.OK] == []
