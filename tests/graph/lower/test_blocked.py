"""The blocked form: correct for every feature on three runtimes, bounded in memory, and wrong with planted faults."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement
from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.lower import blocked, blocked_loop
from sdpa_onnx.graph.lower.blocked_numbers import IndexArithmetic
from sdpa_onnx.graph.lower.blocked_plan import Blocking, BlockPlan
from sdpa_onnx.graph.lower.lower import needed_opset, refusal
from tests.graph.lower.canonical import (
    HARD_SPECS,
    LONGER,
    RAGGED,
    SIZES,
    Axis,
    Bare,
    Size,
    Trials,
    drawn,
    run_once,
    with_mask,
)
from tests.graph.models import SPECS

_ALL = {**SPECS, **HARD_SPECS}
# Blocks that do not divide the lengths in SIZES, in tiles of one or two heads.
_SMALL = Blocking(rows=3, short_rows=2, short_keys=6, free_rows=3, tile=40, few=0, whole=0)
_PIECES = replace(_SMALL, tile=2**18)
_CAUSAL = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "BLOCKING", _SMALL)


def _judged(
    bare: Bare, options: LowerOptions | None = None, runtime: str = "ort-cpu", sizes: Sequence[Size] = SIZES
) -> list[str]:
    model = bare.written(Form.BLOCKED, options)
    return Trials(bare=bare, model=model, runtime=runtime).judge(drawn(bare.spec, sizes, bare.dtype))


@pytest.mark.parametrize(
    "name", ["plain", "causal", "much", "causal-lengths", "bsh-past", "window-float", "left-window"]
)
def test_features_in_a_loop(name: str) -> None:
    """Ragged blocks, one or several heads per iteration, fully masked rows, caches and masks are correct."""
    assert _judged(Bare(spec=_ALL[name])) == []


@pytest.mark.slow
@pytest.mark.parametrize("spec", _ALL.values(), ids=_ALL)
def test_every_feature_in_a_loop(spec: AttentionSpec) -> None:
    """The same for every feature of a spec."""
    assert _judged(Bare(spec=spec)) == []


@pytest.mark.parametrize("name", ["causal", "right-window", "mqa-causal-softcap"])
def test_every_feature_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At short lengths the blocks are written in sequence without a Loop."""
    monkeypatch.setattr(blocked, "BLOCKING", _PIECES)
    assert _judged(Bare(spec=_ALL[name])) == []


@pytest.mark.parametrize("name", ["gqa", "causal-lengths", "much"])
def test_loop_around_the_attention_operator(name: str) -> None:
    """The blocks with one Attention node each."""
    bare = Bare(spec=_ALL[name], opset=23)
    assert _judged(bare, LowerOptions(inner=Form.ATTENTION)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "name"), [("openvino", "causal"), ("onnx-reference", "causal"), ("onnx-reference", "much")]
)
def test_other_runtimes(runtime: str, name: str) -> None:
    """The file is correct in a runtime that needs a Loop condition and concatenates, not stacks, scan outputs."""
    if runtime == "openvino":
        pytest.importorskip("openvino")
    assert _judged(Bare(spec=_ALL[name]), runtime=runtime, sizes=[RAGGED]) == []


@pytest.mark.slow
@pytest.mark.parametrize("spec", _ALL.values(), ids=_ALL)
@pytest.mark.parametrize("runtime", ["openvino", "onnx-reference"])
def test_other_runtimes_every_feature(spec: AttentionSpec, runtime: str) -> None:
    """Every feature on every runtime that supports Loop."""
    if runtime == "openvino":
        pytest.importorskip("openvino")
    assert _judged(Bare(spec=spec), runtime=runtime) == []


@pytest.mark.parametrize("dtype", [Dtype.FLOAT16, Dtype.FLOAT64])
def test_other_element_types(dtype: Dtype) -> None:
    """Half precision represents the -inf of hidden keys; float64 meets the bounds of float64."""
    assert _judged(Bare(spec=_ALL["causal-lengths"], dtype=dtype), sizes=[RAGGED, LONGER]) == []


@pytest.mark.parametrize("placement", ScalePlacement)
def test_scale_may_stand_anywhere(placement: ScalePlacement) -> None:
    """The options of the decomposed form apply in the Loop too."""
    bare, options = Bare(spec=HARD_SPECS["scale-negative"]), LowerOptions(scale_placement=placement)
    assert _judged(bare, options, sizes=[RAGGED]) == []


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        (("total_seq_len",), (7,)),
        (("q_seq_len", "total_seq_len"), (5, 7)),
        ((1, 4, 1, "total_seq_len"), (1, 4, 1, 7)),
        (("batch_size", 1, 1, "short"), (2, 1, 1, 4)),
        ((1, 1, "q_seq_len", "short"), (1, 1, 5, 6)),
    ],
)
@pytest.mark.parametrize("kind", [MaskKind.BOOL, MaskKind.FLOAT])
def test_masks_of_every_shape(kind: MaskKind, axes: tuple[Axis, ...], shape: tuple[int, ...]) -> None:
    """An iteration slices a mask that broadcasts or is short, by samples, heads, queries and keys."""
    spec = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True, mask=kind)
    bare = Bare(spec=spec, mask_axes=axes)
    inputs = with_mask(draw_inputs(Size().case(spec, Dtype.FLOAT32)), shape)
    assert Trials(bare=bare, model=bare.written(Form.BLOCKED)).judge({"mask": inputs}) == []


@pytest.mark.parametrize("size", [Size(batch=1, queries=0, keys=3), Size(batch=1, queries=3, keys=0)])
@pytest.mark.parametrize("name", ["causal", "plain"])
def test_nothing_to_attend(size: Size, name: str) -> None:
    """Without queries there are no rows; queries without keys are zero."""
    bare = Bare(spec=_ALL[name])
    outputs = run_once(bare.written(Form.BLOCKED), draw_inputs(size.case(bare.spec, Dtype.FLOAT32)))
    assert outputs["Y"].shape == (1, bare.spec.q_num_heads, size.queries, bare.spec.v_head_dim)
    assert not np.any(outputs["Y"])


def test_default_blocks_at_lengths_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the default block sizes: one piece, four pieces and the Loop, each at ragged lengths."""
    monkeypatch.setattr(blocked, "BLOCKING", Blocking())
    bare = Bare(spec=_CAUSAL)
    sizes = [Size(batch=1, queries=length, keys=length) for length in (64, 65, 300)]
    assert Trials(bare=bare, model=bare.written(Form.BLOCKED)).judge(drawn(_CAUSAL, sizes)) == []


@pytest.mark.parametrize(
    ("inner", "dtype", "opset"),
    [(None, Dtype.FLOAT32, 13), (None, Dtype.BFLOAT16, 16), (Form.ATTENTION, Dtype.FLOAT32, 23)],
)
def test_lowest_opset(inner: Form | None, dtype: Dtype, opset: int) -> None:
    """The lowest opset is that of the inner operator; the graph passes onnx.checker there."""
    bare, options = Bare(spec=SPECS["much"], opset=opset, dtype=dtype), LowerOptions(inner=inner)
    assert needed_opset(bare.build()[1], Form.BLOCKED, options) == opset
    bare.written(Form.BLOCKED, options)


def test_refusals() -> None:
    """A scores output and an unsupported inner form are refused; the text names them."""
    scores = Bare(spec=SPECS["plain"], scores_mode=QkOutputMode.WEIGHTS).build()[1]
    assert (
        refusal(scores, Form.BLOCKED, opset=18)
        == "It never has all scores at once, so it cannot return them as an output."
    )
    plain = Bare(spec=SPECS["plain"]).build()[1]
    assert refusal(plain, Form.BLOCKED, opset=18, options=LowerOptions(inner=Form.ORT_MHA)) == (
        "Its loop can contain 'attention' or 'decomposed', not 'ort-mha'."
    )


def test_what_is_never_held() -> None:
    """The scores of an iteration are the rows of the block times its visible keys, at any length."""
    bare = Bare(spec=replace(_CAUSAL, left_window=4))
    widest = {length: _widest_softmax(bare, length) for length in (20, 40)}
    assert widest[20] == widest[40] <= 2 * 3 * (3 + 4)


def _widest_softmax(bare: Bare, length: int) -> int:
    """Elements of the largest softmax of a run, counted by onnx.reference."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.ops.op_softmax import Softmax

    seen: list[int] = []

    class Counted(Softmax):
        op_domain = ""

        def _run(self, scores: np.ndarray, axis: int | None = None) -> object:
            seen.append(scores.size)
            return super()._run(scores, axis=axis)

    Counted.__name__ = "Softmax"
    model = ir.to_proto(bare.written(Form.BLOCKED))
    inputs = draw_inputs(Size(batch=1, queries=length, keys=length).case(bare.spec, Dtype.FLOAT32))
    ReferenceEvaluator(model, new_ops=[Counted]).run(None, dict(inputs.onnx_feeds()))
    return max(seen)


@pytest.mark.parametrize(
    ("part", "number", "by", "name"),
    [
        ("_cuts", "first_row", 1, "causal"),
        ("_mask_cuts", "first_row", 1, "bool-mask"),
        ("_mask_cuts", "sample", -1, "bool-mask"),
        ("make_plan", "turns", -1, "causal"),
        ("make_plan", "free_key", 1, "causal"),
        ("make_plan", "last_key", -1, "causal"),
        ("make_plan", "position", 1, "causal-lengths"),
        ("make_plan", "first_key", 1, "window"),
    ],
)
def test_planted_faults_are_found(part: str, number: str, by: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block, mask slice, edge or window off by one, and a missing iteration, are detected or do not run."""
    original = getattr(blocked_loop, part)

    def moved(plan: object, numbers: IndexArithmetic) -> object:
        return (
            replace(plan, **{number: numbers.add(getattr(plan, number), by)}) if isinstance(plan, BlockPlan) else plan
        )

    def faulty(*given: Any, **named: Any) -> object:
        numbers = next((one for one in given if isinstance(one, IndexArithmetic)), None) or IndexArithmetic(given[0])
        return moved(original(*[moved(one, numbers) for one in given], **named), numbers)

    monkeypatch.setattr(blocked_loop, part, faulty)
    with contextlib.suppress(SessionError):  # found by the runtime: a row that is not there
        assert _judged(Bare(spec=_ALL[name]), sizes=[RAGGED, Size(queries=7, keys=7)]) != []
