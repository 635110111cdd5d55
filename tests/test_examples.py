"""The notebooks of examples/ run, their stored outputs are clean, and their text and code are in the project's style.

`make test` runs each notebook with the small budgets of BUDGETS; `make prove` runs each as it is.
"""

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from bench.prose import LONG_SENTENCE, Text, findings
from tests.notebooks import METADATA, NOTEBOOKS, ROOT, execute, read, shorten, write

MOST_BYTES = 400 * 1024
BUDGETS = {  # what the code says, and what `make test` runs in its place
    r"\bSTEPS = \d+": "STEPS = 2",
    r"\bsteps=\d+": "steps=2",
    r"\bvalid_bytes=[\d_]+": "valid_bytes=1024",
    r"\btimed = .*": "timed = [512]",
    r"\bcounted = .*": "counted = [256]",
    r"\bdraws=\d+": "draws=1",
    r"list\(prompt\.encode\(\)\), \d+": "list(prompt.encode()), 3",
    r"kf\.check\(PowersOfTwo\(\)\)": 'kf.check(PowersOfTwo(), law=["runs", "pattern"])',
    r"kf\.check\(example\)": 'kf.check(example, law=["runs", "received_attention"])',
    r"kf\.check\(lambda: SquaredReLUAttention\(kf.Causal\(\)\)\)": (
        'kf.check(lambda: SquaredReLUAttention(kf.Causal()), law=["runs", "received_attention"])'
    ),
}
MACHINE = re.compile(r"/(?:home|root|tmp|Users|usr|opt|work|private)/|[A-Z]:\\|site-packages|\.venv")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def no_files_of_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels write their history, connection files and token caches into a temporary folder."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def markdown_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def faults(notebook: NotebookNode) -> Iterator[str]:
    """What a reader should not find in stored outputs: gaps, errors, warnings, and paths of a machine."""
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"the cells ran in the order {counts}"
    for cell in code_cells(notebook):
        shows = "print(" in cell.source or "report(" in cell.source or "plt.show()" in cell.source
        if shows and "def report" not in cell.source and not cell.outputs:
            yield f"no output of: {cell.source:.60}"
        if "plt.show()" in cell.source and not any("image/png" in output.get("data", {}) for output in cell.outputs):
            yield f"no picture of: {cell.source:.60}"
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"an error: {output.ename}"
                continue
            text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
            if output.get("name") == "stderr" or "Warning" in text:
                yield f"a warning: {text:.60}"
            if match := MACHINE.search(text):
                yield f"a path of a machine: {text[match.start() :]:.60}"


def test_there_are_five_notebooks() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{n}_" for n in range(1, 6)]


@every_notebook
def test_stored_outputs_are_complete_and_clean(path: Path) -> None:
    notebook = read(path)
    assert not list(faults(notebook))
    assert path.stat().st_size < MOST_BYTES
    outputs = [output.get("data", {}) for cell in code_cells(notebook) for output in cell.outputs]
    pictures = [data["image/png"] for data in outputs if "image/png" in data]
    assert len(pictures) >= 3
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)


@every_notebook
def test_a_second_execution_changes_only_outputs(path: Path, tmp_path: Path) -> None:
    """Cell ids and metadata are as `python -m tests.notebooks` writes them."""
    write(read(path), tmp_path / path.name)
    assert (tmp_path / path.name).read_text("utf-8") == path.read_text("utf-8")


@every_notebook
def test_text_is_plain_and_links_lead_to_files(path: Path) -> None:
    cells = markdown_cells(read(path))
    assert cells[0].source.startswith("# ") and "\n## Try\n" in f"\n{cells[-1].source}\n"
    places = [place for cell in cells for place in findings(Text(path, 1, cell.source))]
    # a question to the reader begins with "what" or "how"
    assert not [place for place in places if place.rule == LONG_SENTENCE or not place.text.rstrip().endswith("?")]
    for cell in cells:
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", cell.source):
            assert (path.parent / link).exists(), link


def test_the_list_of_notebooks_names_each() -> None:
    text = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert re.findall(r"\]\(([^)]+\.ipynb)\)", text) == [path.name for path in NOTEBOOKS]
    assert not list(findings(Text(ROOT / "examples" / "README.md", 1, text)))


def test_code_cells_are_formatted() -> None:
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *map(str, NOTEBOOKS)], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_budget_is_in_a_notebook() -> None:
    code = "\n".join(cell.source for path in NOTEBOOKS for cell in code_cells(read(path)))
    assert not [old for old in BUDGETS if not re.search(old, code)]


@every_notebook
def test_a_notebook_runs_with_small_budgets(path: Path) -> None:
    assert not list(faults(execute(shorten(read(path), BUDGETS))))


@pytest.mark.prove
@every_notebook
def test_a_notebook_runs_as_it_is(path: Path) -> None:
    assert not list(faults(execute(read(path))))


def planted(*sources: str) -> NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def test_an_error_in_a_cell_is_an_error() -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(planted("x = 1", "x / 0"))


def test_faults_of_outputs_are_noticed() -> None:
    notebook = execute(planted("import warnings; warnings.warn('old')", "print('/home/me/model')", "print('fine')"))
    warning, *paths = faults(notebook)  # the warning names the file of its cell, too
    assert warning.startswith("a warning: ") and paths[-1] == "a path of a machine: /home/me/model\n"
    notebook.cells = notebook.cells[2:]
    assert list(faults(notebook)) == ["the cells ran in the order [3]"]
    notebook.cells[0].update(execution_count=1, outputs=[])
    assert list(faults(notebook)) == ["no output of: print('fine')"]
    notebook.cells[0].update(source="plt.show()", outputs=[nbformat.v4.new_output("error", ename="NameError")])
    assert list(faults(notebook)) == ["no picture of: plt.show()", "an error: NameError"]


def test_metadata_names_no_machine() -> None:
    assert all(read(path).metadata == METADATA for path in NOTEBOOKS)
