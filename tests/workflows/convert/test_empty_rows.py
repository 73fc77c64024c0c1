"""A mask that is causal except for rows that padding hides: kept, or causal if the caller excludes such rows."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.transformers.float16 import convert_float_to_float16

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.graph.lower import blocked_plan
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.report.run.convert_text import convert_result
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.convert.convert_file import ProofOptions, convert_and_prove
from sdpa_onnx.workflows.convert.convert_model import ConvertedModel, convert_model
from sdpa_onnx.workflows.convert.empty_rows import hides_all
from sdpa_onnx.workflows.convert.paired_runs import RunEffort
from sdpa_onnx.workflows.convert.proof import ConversionProof, prove_conversion
from sdpa_onnx.workflows.convert.proof_process import prove_apart
from tests.workflows.convert_sources import with_padding

_FEW = ProofOptions(effort=RunEffort(count=2))
_NO_FIRST = (
    """later = LessOrEqual (j, i)  some = Greater (j, zero)  both = And (later, some)  seen = And (both, keep)"""
)


def _converted(source: onnx.ModelProto, *, rows_may_be_empty: bool) -> ConvertedModel:
    return convert_model(load_model(source), Form.DECOMPOSED, again=True, rows_may_be_empty=rows_may_be_empty)


def _proof(done: ConvertedModel, *, rows_may_be_empty: bool) -> ConversionProof:
    effort = RunEffort(count=2, rows_may_be_empty=rows_may_be_empty)
    return prove_conversion(done.source, done.model, get_runtime("ort-cpu"), target="result", effort=effort)


def _lift_notes(done: ConvertedModel) -> tuple[bool, tuple[str, ...], str | None]:
    """Causality, warnings, and what the result assumes."""
    (site,), (found,) = done.model.sites, done.found
    return site.spec.is_causal, found.warnings, done.model.ir.metadata_props.get("sdpa_onnx.assumes")


def test_mask_is_kept_where_rows_may_be_empty() -> None:
    """Hidden rows average over later keys too, which causality would change: the mask is kept, its band is noted."""
    done = _converted(with_padding(), rows_may_be_empty=True)
    assert _lift_notes(done) == (False, (), None)
    assert [one.attention.mask_band for one in done.found if one.attention] == [WindowBounds(right=0)]
    assert _proof(done, rows_may_be_empty=True).is_right


def test_mask_is_causal_where_no_row_is_empty(tmp_path: Path) -> None:
    """If the caller excludes empty rows the spec is causal, proved under such masks, and the file records it."""
    onnx.save(with_padding(), tmp_path / "source.onnx")
    done = convert_and_prove(
        tmp_path / "source.onnx",
        tmp_path / "result.onnx",
        Form.DECOMPOSED,
        again=True,
        rows_may_be_empty=False,
        proof=_FEW,
    )
    assert done.is_right
    assert done.proof is not None
    assert "hidden rows" in {record.inputs for record in done.proof.records}
    assert _lift_notes(done.converted) == (True, (), "every query sees a key")
    assert load_model(tmp_path / "result.onnx").ir.metadata_props["sdpa_onnx.assumes"] == "every query sees a key"


def test_claim_is_seen_under_a_mask_that_breaks_it() -> None:
    """The same result differs from its source once a row is hidden entirely: the option is needed."""
    proof = _proof(_converted(with_padding(), rows_may_be_empty=False), rows_may_be_empty=True)
    assert not proof.is_right
    bad = {record.inputs for record in proof.records if record.verdict in ("wrong", "suspicious")}
    assert bad == {"hidden rows"}
    assert proof.hint == (
        "Attention 'Softmax/weights': its mask 'mask' can hide every key of a query by -3.4e+38, and such a query "
        "differs: use --no-empty-rows if no input of yours does that, else --form decomposed."
    )


def test_claim_that_the_graph_itself_breaks_is_refused() -> None:
    """If the graph always hides the first key, its first query sees no key with any input."""
    done = _converted(with_padding(_NO_FIRST), rows_may_be_empty=False)
    assert _lift_notes(done)[0]
    proof = _proof(done, rows_may_be_empty=False)
    assert not proof.is_right
    assert proof.hint == (
        "Attention 'Softmax/weights': its mask 'mask' hides every key of a query in the file itself, so leave out "
        "--no-empty-rows."
    )


FLOAT16 = {
    (): "by -65504, float16's lowest number, next to which large scores still count, and such a query differs: use "
    "--no-empty-rows if no input of yours does that, else --form decomposed.",
    (
        "Where",
    ): "by -inf, which float16 makes of float32's lowest number, and such a query differs: convert the float32 "
    "file, then make it float16, since other inputs differ too.",
}


@pytest.mark.parametrize("in_float32", FLOAT16)
@pytest.mark.slow
def test_float16_is_named_where_it_changes_the_lowest_number(in_float32: tuple[str, ...], tmp_path: Path) -> None:
    """onnxruntime's converter makes another number of it, and -inf where the mask is made before a Cast."""
    half = convert_float_to_float16(with_padding(), keep_io_types=bool(in_float32), op_block_list=list(in_float32))
    onnx.save(half, tmp_path / "source.onnx")
    done = convert_and_prove(tmp_path / "source.onnx", tmp_path / "result.onnx", Form.ATTENTION)
    assert done.proof is not None
    assert not done.is_right
    assert done.proof.hint == (
        "Attention 'Softmax/weights': its mask 'mask' can hide every key of a query " + FLOAT16[in_float32]
    )
    assert done.proof.hint in convert_result(done, (), "result.onnx", opset=None).details


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (np.array([[True, False], [False, False]]), True),
        (np.array([[True, False], [False, True]]), False),
        (np.array([[0.0, -np.inf], [-np.inf, -np.inf]], np.float16), True),
        (np.array([[0.0, -np.inf], [-10000.0, -10000.0]], np.float32), False),
        (np.full((1, 2), np.finfo(np.float32).min, np.float32), True),
        (np.zeros((2, 0), np.bool_), False),
    ],
)
def test_a_mask_that_hides_all_keys_is_seen(mask: np.ndarray, expected: bool) -> None:
    """By False, -inf or the lowest number in a row; -10000 leaves the scores to decide."""
    assert hides_all(mask) is expected


def test_python_takes_the_same_word() -> None:
    """The argument of `sdpa_onnx.convert`."""
    import sdpa_onnx as so

    for may_be in (True, False):
        result = so.convert(load_model(with_padding()), "ort-mha", runtime=None, rows_may_be_empty=may_be)
        assert result.sites[0].spec.is_causal is not may_be


@pytest.mark.parametrize(
    "mask",
    ["later = LessOrEqual (j, i)  seen = Or (later, keep)", "next = Add (i, one)  seen = LessOrEqual (j, next)"],
    ids=["content", "one too many"],
)
def test_mask_that_is_not_causal_stays(mask: str) -> None:
    """A mask that shows a later key is not causal, even if no row is empty."""
    done = _converted(with_padding(mask), rows_may_be_empty=False)
    assert _lift_notes(done) == (False, (), None)


@pytest.mark.slow
def test_proving_process_is_told(tmp_path: Path) -> None:
    """The process that proves large files reads the source as the converter did."""
    done = _converted(with_padding(), rows_may_be_empty=False)
    onnx.save(with_padding(), tmp_path / "source.onnx")
    done.model.save(tmp_path / "result.onnx")
    rights = [
        prove_apart(
            tmp_path / "source.onnx",
            tmp_path / "result.onnx",
            runtime="ort-cpu",
            target="result",
            seed=0,
            threads=1,
            patience_seconds=300.0,
            rows_may_be_empty=may_be,
        ).is_right
        for may_be in (False, True)
    ]
    assert rights == [True, False]


@pytest.mark.slow
def test_blocks_that_skip_are_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks skip later keys of a kept mask, which is right; skipping for hidden rows too is found by the proof."""
    onnx.save(with_padding(), tmp_path / "source.onnx")

    def is_right() -> bool:
        done = convert_and_prove(tmp_path / "source.onnx", tmp_path / "result.onnx", Form.BLOCKED, again=True)
        return done.is_right

    assert is_right()
    always = lambda nodes, *_, **__: nodes.constant(True, ir.DataType.BOOL)  # noqa: E731  # in place of a function
    monkeypatch.setattr(blocked_plan, "is_seen_by_all", always)
    assert not is_right()
