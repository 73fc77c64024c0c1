"""The notebook of docs/ runs from top to bottom, and its stored outputs are of the kinds that a run gives."""

import json
import re
from pathlib import Path

import pytest

_NOTEBOOK = Path(__file__).parents[2] / "docs" / "first-look.ipynb"


def _kinds(cells: list[dict[str, object]]) -> list[list[tuple[str, ...]]]:
    """Of each code cell, the outputs: how they came, and as which types."""
    kinds = []
    for cell in cells:
        if cell["cell_type"] == "code":
            outputs = cell["outputs"]
            assert isinstance(outputs, list)
            kinds.append([(one["output_type"], one.get("name", ""), *sorted(one.get("data", ()))) for one in outputs])
    return kinds


def _stored() -> list[dict[str, object]]:
    cells: list[dict[str, object]] = json.loads(_NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return cells


def test_stored_outputs_are_of_a_run() -> None:
    """Every cell that shows something has its output, without an error, and the processor is named."""
    kinds = _kinds(_stored())
    shown = [kind for outputs in kinds for kind in outputs]
    assert not [kind for kind in shown if kind[0] == "error" or kind[1] == "stderr"]
    assert sum("text/html" in kind for kind in shown) >= 5
    (first,) = next(cell for cell in _stored() if cell["cell_type"] == "code")["outputs"]  # type: ignore[misc]
    assert re.search(r"\w+ with \d+ cores", "".join(first["text"]))


def test_nothing_of_a_machine_is_stored() -> None:
    """No path of the machine that it ran on."""
    assert re.findall(r"/(?:tmp|root|home|Users|work)/", _NOTEBOOK.read_text(encoding="utf-8")) == []


@pytest.mark.slow
@pytest.mark.alone
def test_it_runs(tmp_path: Path) -> None:
    """Outputs are of the same kinds as the stored ones; the figures may differ."""
    pytest.importorskip("nbclient")
    from scripts.run_notebook import executed

    notebook = executed(_NOTEBOOK, tmp_path)
    assert _kinds(notebook.cells) == _kinds(_stored())
