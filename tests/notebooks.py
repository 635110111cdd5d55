"""Execute the notebooks of examples/ and write their outputs: `python -m tests.notebooks [FILE ...]`."""

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SECONDS = 300  # limit of one cell: it stops a cell that hangs, and judges no speed


def read(path: Path) -> NotebookNode:
    """Return a notebook that conforms to the format; nbformat's error names the first fault."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def shorten(notebook: NotebookNode, budgets: Mapping[str, str]) -> NotebookNode:
    """Return the notebook with smaller budgets in its code.

    budgets: a regular expression for each text to replace, and the new text.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for old, new in budgets.items():
                cell.source = re.sub(old, new, cell.source)
    return notebook


def execute(notebook: NotebookNode) -> NotebookNode:
    """Run all cells in a new kernel and an empty folder, and return the notebook with their outputs.

    nbclient raises CellExecutionError, with the cell and its traceback, for the first error.
    """
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
        )
        client.execute()
    return notebook


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook so that a second execution changes only its outputs.

    notebook: the executed notebook.
    path: the file to write.
    """
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number:02}", nbformat.from_dict({})
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        print(path)
        write(execute(read(path)), path)
