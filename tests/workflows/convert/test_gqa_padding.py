"""Files of decoders with padding become `ort-gqa` with the last key of each sample, and the proof sees a wrong one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form, LowerOptions, Workaround
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower import mask_nodes
from sdpa_onnx.graph.nodes import Nodes
from sdpa_onnx.workflows.convert.convert_file import Conversion, ProofOptions, convert_and_prove
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from tests.workflows.convert_sources import with_padding

_LATER = "later = LessOrEqual (j, i)"
MASKS = {
    "causal and padding": f"{_LATER}  seen = And (later, keep)",
    "padding alone": "seen = Identity (keep)",
    "padding first": f"{_LATER}  seen = And (keep, later)",
    "window": (
        f"{_LATER} past = Sub (i, one) near = GreaterOrEqual (j, past) both = And (later, near) seen = And (both, keep)"
    ),
    "negated": f"{_LATER} unseen = Not (keep) early = Not (later) either = Or (unseen, early)  seen = Not (either)",
}
_LEFT = np.array([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
_LENGTH = 5


def _converted(tmp_path: Path, mask: str, *, fill: float | None = None) -> Conversion:
    source = with_padding(mask)
    if fill is not None:
        for tensor in source.graph.initializer:
            if tensor.name == "lowest":
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(fill, np.float32), "lowest"))
    onnx.save(source, tmp_path / "source.onnx")
    return convert_and_prove(
        tmp_path / "source.onnx",
        tmp_path / "result.onnx",
        Form.ORT_GQA,
        LowerOptions(workarounds=frozenset({Workaround.FINITE_MASK})),
        proof=ProofOptions(effort=RunEffort(count=3)),
    )


def _against(done: Conversion) -> list[str]:
    return [one.reason for one in done.proof.records if one.outcome is not Outcome.OK] if done.proof else ["no proof"]


def _last_keys(path: Path, padding: NDArray[np.int64]) -> list[int]:
    """What the operator gets for a padding of 3 samples and 5 keys."""
    model = onnx.load(path)
    (node,) = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    model.graph.output.append(onnx.helper.make_tensor_value_info(node.input[5], onnx.TensorProto.INT32, [None]))
    drawn = np.random.default_rng(0)
    feeds = {name: drawn.standard_normal((3, 2, _LENGTH, 8)).astype(np.float32) for name in "qkv"}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[int] = session.run([node.input[5]], {**feeds, "padding": padding})[0].tolist()
    return found


@pytest.mark.parametrize("fill", [None, -np.inf], ids=["lowest", "infinite"])
@pytest.mark.parametrize("name", MASKS)
def test_decoders_with_padding(tmp_path: Path, name: str, fill: float | None) -> None:
    """Ten files are converted and proved; right padding ends the keys, left padding does not."""
    done = _converted(tmp_path, MASKS[name], fill=fill)
    assert _against(done) == []
    assert done.path is not None
    right = _last_keys(done.path, _LEFT[:, ::-1])
    # Behind a window a padded query sees no key: it averages over keys that the lowest number hides.
    assert right == ([4, 4, 4] if (name, fill) == ("window", None) else [1, 2, 4])
    assert _last_keys(done.path, _LEFT) == [4, 4, 4]


Last = Callable[[Nodes, ir.Value], ir.Value]


def _early(nodes: Nodes, last: ir.Value) -> ir.Value:
    one, zero = nodes.constant(1, ir.DataType.INT64), nodes.constant(0, ir.DataType.INT64)
    return nodes("Max", nodes("Sub", last, one), zero)


def _first(nodes: Nodes, last: ir.Value) -> ir.Value:
    return nodes("Slice", last, nodes.integers(0), nodes.integers(1))


@pytest.mark.parametrize("fault", [_early, _first], ids=["one key early", "the first sample's"])
def test_wrong_count_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Last) -> None:
    """A count that hides a visible key is not written."""

    def wrong(nodes: Nodes, attention: GraphAttention, bias: ir.Value, *, opset: int) -> ir.Value | None:
        right = mask_nodes.last_keys(nodes, attention, bias, opset=opset)
        return None if right is None else fault(nodes, right)

    monkeypatch.setattr("sdpa_onnx.graph.lower.contrib.last_keys", wrong)
    assert _against(_converted(tmp_path, MASKS["causal and padding"])) != []


def test_lost_mean_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that does not ask whether every query sees a key loses the mean over keys of the lowest number."""
    monkeypatch.setattr(mask_nodes, "SEEN_SHARE", np.inf)
    assert _against(_converted(tmp_path, MASKS["causal and padding"])) != []
