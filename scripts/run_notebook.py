"""Run the notebook of docs/ and keep its outputs; prints the seconds of each cell.

Usage: python -m scripts.run_notebook [NOTEBOOK]
"""

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

__all__ = ["NOTEBOOK", "executed"]

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first-look.ipynb"

# Longest time of a cell, seconds: a timing on a busy machine takes minutes.
_CELL_SECONDS = 1200


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in a folder; an error in a cell is raised.

    Metadata that differs from run to run is removed, so that two runs differ in their outputs only.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=_CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(cwd=str(folder))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata = {"kernelspec": notebook.metadata.get("kernelspec", {}), "language_info": {"name": "python"}}
    return notebook


def main(path: Path) -> None:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(path, Path(folder))
    nbformat.write(notebook, path)
    print(f"{path}: {len(notebook.cells)} cells in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK)
