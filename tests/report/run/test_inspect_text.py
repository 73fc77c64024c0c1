"""What `inspect` prints of the nodes that ran."""

import pytest

from sdpa_onnx.report.run.inspect_text import _execution
from sdpa_onnx.runtimes.base import RanReport


@pytest.mark.parametrize(("kinds", "ending"), [(6, "1 K5), float32."), (7, ", 1 other), float32."), (8, ", 2 others)")])
def test_operators_that_are_not_named_are_counted(kinds: int, ending: str) -> None:
    """One is singular."""
    ran = RanReport(providers={}, node_counts={f"K{n}": 1 for n in range(kinds)}, precision="float32")
    assert ending in _execution(ran)


def test_nodes_that_were_not_counted() -> None:
    """A runtime that did not report them is not said to run none."""
    ran = RanReport(providers={"CPU": 2}, node_counts={}, precision="float32", warnings=("Too large.",))
    assert _execution(ran) == "nodes not known, float32. Too large."
