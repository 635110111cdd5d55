"""Every piece of Python in README and docs runs, and the README's member is as short as promised."""

import inspect
import json
import re
import textwrap
import types
from pathlib import Path

import pytest
import torch

import kinformer
from kinformer.checkpoint.checkpoint import save
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.cli.__main__ import COMMANDS
from kinformer.core.discover import find_member, members
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt
from tests.bridge.test_tokenizers import CHATML, folder_with
from tests.members_table import README, table, with_table
from tests.patterns_picture import PATTERNS, PICTURE, picture

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = sorted((ROOT / "docs").glob("*/*.md"))  # tutorials and how-tos: the code of a page is one program


def blocks() -> list[str]:
    """The pieces of Python, with the member of your own first."""
    found = [block for page in PAGES for block in blocks_of(page)]
    return sorted(found, key=lambda code: "@kf.member" not in code)


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def test_the_member_of_your_own_builds_and_decodes(tmp_path: Path) -> None:
    code = blocks()[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    model = find_member(f"{tmp_path / 'mine.py'}:mine")(d=16, depth=2, heads=2, window=3, vocab=11).double().eval()
    tokens = torch.randint(0, 11, (2, 13))
    whole, state, pieces = model.logits(tokens).y, model.start(2, 13, dtype=torch.float64), []
    for piece in tokens.split([5, 1, 7], 1):
        out = model.logits(piece, state)
        state = out.state
        pieces.append(out.y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    # a window of 3, two tokens that all may read, and a slot for a new key before the oldest one dies
    assert state is not None and state.body[0][0].pos.shape[1] == 3 + 2 + 1


@pytest.mark.parametrize("number", range(1, len(blocks())))
def test_every_other_piece_of_code_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = blocks()[number]
    monkeypatch.chdir(tmp_path)
    write_files(code, tmp_path)
    exec(sooner(code), {})


@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.stem)
def test_the_code_of_a_tutorial_or_a_how_to_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = blocks_of(page)
    monkeypatch.chdir(tmp_path)
    write_files("".join(pieces), tmp_path)
    program = types.ModuleType("program")
    for piece in pieces:
        exec(sooner(piece), vars(program))


def write_files(code: str, tmp_path: Path) -> None:
    """The files that some code reads."""
    (tmp_path / "book.txt").write_bytes(b"the cat sat on the mat. " * 400)
    if "import datasets" in code:
        texts = [f"Return the text number {n}, or its square {n * n}" for n in range(150)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        (tmp_path / "tokenizer.json").write_text(train_tokenizer(texts, 280).text)
    for run in re.findall(r"kf\.load\(\"(.*?)\"", code):
        if run.startswith("models/"):
            folder_with(tmp_path / run, CHATML, pad_token="</s>")
        else:
            save(gpt(d=16, depth=1, heads=2), tmp_path / run)


def sooner(code: str) -> str:
    """The same of a small model, in a moment."""
    code = re.sub(r"\bminutes=\d+", "steps=1", code)
    for long, short in (("range(1000)", "range(2)"), ("d=128", "d=16"), ("depth=4", "depth=1")):
        code = code.replace(long, short)
    return code


def test_training_takes_four_lines_and_a_loop_ten_and_the_page_of_fit_has_both() -> None:
    others = ("datasets", "label_smoothing", "detach", "with_teacher")  # on Hugging Face, PyTorch, memories, teachers
    trains = [block for block in blocks() if "fit(" in block or "backward()" in block]
    found = [block for block in trains if not any(word in block for word in others)]
    lines = [[line for line in block.splitlines() if line] for block in found]
    assert [len(block) for block in lines] == [4, 4, 10]
    page = inspect.getdoc(fit) or ""
    assert all(textwrap.indent("\n".join(block), "    ") in page for block in lines)


def test_the_table_of_members_is_as_the_files_say() -> None:
    text = README.read_text("utf-8")
    assert text == with_table(text), "README.md is not as the members say; run `python -m tests.members_table`"
    assert text.count("kinformer/members/") == len(members())


def test_a_changed_member_makes_the_table_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    text = README.read_text("utf-8")
    monkeypatch.setattr("kinformer.cli.support.catalogue.member_cost", lambda file, name: "L**9 / sqrt(d)")
    assert with_table(text) != text and "| L^9 / sqrt(d) |" in with_table(text)


def test_the_picture_of_patterns_is_as_the_library_draws_it() -> None:
    assert PICTURE.read_text("utf-8") == picture(), "docs/patterns.svg is old; run `python -m tests.patterns_picture`"
    assert picture().count('class="read"') == picture().count('class="name"') == len(PATTERNS) >= 8


def test_readme_is_short_beside_its_table() -> None:
    text = README.read_text("utf-8").replace(table(), "")
    assert len(text.splitlines()) <= 150


@pytest.mark.parametrize("page", [*PAGES, *PROGRAMS], ids=lambda page: page.name)
def test_links_within_the_project_lead_to_files_and_commands_in_sentences_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (page.parent / link).exists(), link
    for command in re.findall(r"`kinformer ([a-z-]+)", text):
        assert command in COMMANDS.commands, command  # type: ignore[attr-defined]


def test_the_citation_has_the_version_of_the_package() -> None:
    assert f"version: {kinformer.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"version = {{{kinformer.__version__}}}" in README.read_text("utf-8")
