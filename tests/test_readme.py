"""Every piece of Python in README and docs runs, and the README's member is as short as promised."""

import inspect
import re
import textwrap
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import save
from kinformer.core.discover import find_member
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt

ROOT = Path(__file__).parents[1]


def blocks() -> list[str]:
    """The pieces of Python, with the member of your own first."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [
        block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    return sorted(found, key=lambda code: "@kf.member" not in code)


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
    monkeypatch.chdir(tmp_path)
    save(gpt(d=16, depth=1, heads=2), tmp_path / "runs/first/gpt")  # what `make run` leaves
    (tmp_path / "book.txt").write_bytes(b"the cat sat on the mat. " * 400)
    exec(sooner(blocks()[number]), {})


def sooner(code: str) -> str:
    """The same of a small model, in a moment."""
    for long, short in (
        ("minutes=3", "steps=1"),
        ("range(1000)", "range(2)"),
        ("d=128", "d=16"),
        ("depth=4", "depth=1"),
    ):
        code = code.replace(long, short)
    return code


def test_training_takes_four_lines_and_a_loop_ten_and_the_page_of_fit_has_both() -> None:
    found = [block for block in blocks() if "fit(" in block or "backward()" in block]
    lines = [[line for line in block.splitlines() if line] for block in found]
    assert [len(block) for block in lines] == [4, 4, 10]
    page = inspect.getdoc(fit) or ""
    assert all(textwrap.indent("\n".join(block), "    ") in page for block in lines)
