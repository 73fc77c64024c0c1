"""`compare` finds each pair of different functions at the requested sizes, and nothing in pairs of one function."""

from dataclasses import replace
from pathlib import Path

import pytest

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.given_arrays import read_inputs
from sdpa_onnx.workflows.compare.models import CompareOptions, compare_models
from tests.workflows.compare.pairs import DIFFERENT, SAME, Layer, inputs

_OPTIONS = CompareOptions(
    runtimes=["ort-cpu"],
    limits=GateLimits(skipped=frozenset({Gate.TIME, Gate.MEMORY, Gate.GRAPH})),
    patience_seconds=None,
)
# Quick enough for the default tests.
_USUAL = ("window: lost", "capacity: the first keys kept")


def compared(pair: tuple[Layer, Layer], folder: Path, options: CompareOptions = _OPTIONS) -> list[GateRecord]:
    base, head = (layer.save(folder / f"{name}.onnx") for name, layer in zip(("base", "head"), pair, strict=True))
    return compare_models(base, head, options)


def on_inputs(pair: tuple[Layer, Layer], folder: Path) -> list[GateRecord]:
    arrays = read_inputs(inputs(folder / "inputs.npz"), load_model(pair[0].save(folder / "base.onnx")))
    return compared(pair, folder, replace(_OPTIONS, check=CheckOptions(sizes={}, inputs=arrays)))


def differs(rows: list[GateRecord]) -> bool:
    return any(row.fails and row.gate is Gate.AGREEMENT and row.site == "y" for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["size", "at", "default"])
@pytest.mark.parametrize("name", DIFFERENT)
def test_different_functions_are_found(name: str, how: str, tmp_path: Path) -> None:
    """At a requested length, and by default: beyond each window and each number that is compared with a length."""
    requested = {
        "size": replace(_OPTIONS, check=CheckOptions(sizes={"s": 256})),
        "at": replace(_OPTIONS, sizes=[{"s": 8}, {"s": 256}]),
        "default": _OPTIONS,
    }
    rows = compared(DIFFERENT[name], tmp_path, requested[how])
    assert differs(rows)
    (reach,) = (row for row in rows if row.compared_at)
    assert reach.longest >= 256 or how == "default"  # the requested length


@pytest.mark.parametrize(
    "name", [name if name in _USUAL else pytest.param(name, marks=pytest.mark.slow) for name in DIFFERENT]
)
def test_different_functions_are_found_on_given_inputs(name: str, tmp_path: Path) -> None:
    """The outputs of both on the same arrays are set against each other."""
    rows = on_inputs(DIFFERENT[name], tmp_path)
    assert differs(rows)
    (reach,) = (row for row in rows if row.compared_at)
    assert (reach.word, reach.compared_at, reach.longest) == (GateVerdict.SAME, ("b 2, s 200",), 200)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_the_same_function_passes(name: str, tmp_path: Path) -> None:
    """Other words and another opset are no finding, with inputs and without."""
    rows = [*compared(SAME[name], tmp_path, replace(_OPTIONS, sizes=[{"s": 256}])), *on_inputs(SAME[name], tmp_path)]
    assert not [row for row in rows if row.fails]
    assert len([row for row in rows if row.compared_at]) == 2  # one for each way


def test_what_inputs_do_not_reach_is_reported(tmp_path: Path) -> None:
    """Within the window both are equal: the row passes and names the longest length and the window."""
    pair = DIFFERENT["window: lost"]
    arrays = read_inputs(inputs(tmp_path / "short.npz", 50), load_model(pair[0].save(tmp_path / "base.onnx")))
    rows = compared(pair, tmp_path, replace(_OPTIONS, check=CheckOptions(sizes={}, inputs=arrays)))
    assert not [row for row in rows if row.fails]
    (reach,) = (row for row in rows if row.compared_at)
    assert reach.untested == (64,)
    assert reach.evidence == (
        "Outputs were compared at b 2, s 50. Not tested beyond length 50. The graph compares lengths or positions "
        "with 64, beyond which it may compute differently."
    )
