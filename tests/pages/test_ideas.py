"""Laws of the pages of ideas: their form, their numbers, and that every member and mechanism has one."""

import contextlib
import io
import re

import pytest

from kinformer.core.discover import part_files
from kinformer.core.pattern_parser import parse
from kinformer.pages.eight_tokens import ANGLES, TOKENS
from kinformer.pages.idea import FOLDER, LENGTHS, all_ideas, find_idea, ideas_of, load_idea

FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?")
MOST_WORDS = 800
PATTERNS = {  # the pattern that the cost of an idea counts, with the numbers that its page states
    "atomic_patterns": "Band(64)",
    "sinks": "Causal() & (Band(251) | Tokens(4))",
    "longformer": "Band(256) | Tokens(1)",
    "multi_scale": "Band(3)",
    "image_transformer": "Image1D(256, 256)",
    "transformer_xl": "Causal() & Segment(64, 64)",
    "blockwise": "Blockwise((1, 0), 512)",
}
NAMES = sorted(path.stem for path in FOLDER.glob("*.md"))


@pytest.mark.parametrize("name", NAMES)
def test_the_worked_example_prints_its_text_and_its_prose_has_no_other_numbers(name: str) -> None:
    text = all_ideas()[name].sections["Worked example"]
    blocks = FENCE.findall(text)
    code = "\n".join(body for language, body in blocks if language == "python")
    printed = "".join(body for language, body in blocks if language == "text")
    assert code.strip() and printed.strip()
    assert "kinformer" in code, "the example computes with the package"
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, f"{name}.md", "exec"), {"__name__": "example"})
    assert output.getvalue().rstrip() == printed.rstrip()
    prose = re.sub(r"^\d+\. ", "", FENCE.sub("", text), flags=re.MULTILINE)
    known = {*map(float, range(len(TOKENS) + 1)), *map(float, ANGLES), *_numbers(code), *_numbers(printed)}
    assert not [number for number in _numbers(prose) if number not in known]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_short_and_complete(name: str) -> None:
    idea = all_ideas()[name]
    words = FENCE.sub("", "\n".join(idea.sections.values())).split()
    assert 250 <= len(words) <= MOST_WORDS
    assert 3 <= len(re.findall(r"^\*\*.+\?\*\* ", idea.sections["Why"], re.MULTILINE)) <= 6
    for title in ("Self-test", "Answers"):
        assert re.findall(r"^(\d)\. ", idea.sections[title], re.MULTILINE) == ["1", "2", "3"]
    assert re.search(r"^    \S", idea.sections["Difference from softmax attention"], re.MULTILINE), "an equation"
    assert idea.figures or idea.pattern
    for length, mechanism, softmax in idea.cost.values():
        assert length in LENGTHS
        assert mechanism >= 0
        assert softmax >= 0


@pytest.mark.parametrize("name", NAMES)
def test_a_page_names_only_what_exists(name: str) -> None:
    idea = all_ideas()[name]
    assert idea.places
    for place in idea.places:
        kind, _, file = place.partition("/")
        assert file in part_files(kind), place
    for other in (*idea.before, *idea.compare):
        assert other in all_ideas(), other
        assert other != name
    for figure in idea.figures:
        assert (FOLDER.parent / "figures" / f"{figure}.py").is_file(), figure


def test_every_member_and_every_mechanism_has_a_page() -> None:
    rows = [row for idea in all_ideas().values() for row in idea.rows]
    assert set(rows) >= set(range(1, 124))
    missing = [file for file in part_files("members") if not ideas_of(f"members/{file}")]
    assert not missing


def test_no_name_stands_for_two_ideas() -> None:
    names = [
        (" ".join(name.lower().replace("-", " ").replace("_", " ").split()), idea.name)
        for idea in all_ideas().values()
        for name in {idea.name, idea.title, *idea.names}
    ]
    by_name: dict[str, set[str]] = {}
    for name, idea in names:
        by_name.setdefault(name, set()).add(idea)
    assert not {name: ideas for name, ideas in by_name.items() if len(ideas) > 1}


def test_ideas_are_found_by_the_names_of_papers() -> None:
    for words, name in (
        ("Locality-Sensitive Hashing", "lsh"),
        ("hashed", "lsh"),
        ("lsh attention (reformer)", "lsh"),
        ("factorised attention", "factorised"),
        ("strided attention", "factorised"),
        ("blockwise attention", "blockwise"),
        ("global-local attention", "etc"),
    ):
        idea = find_idea(words)
        assert idea is not None
        assert idea.name == name
    for words in ("no such mechanism", "Causal()", "Causal() & Band(4)", "softmax(2)"):  # no names, but expressions
        assert find_idea(words) is None


def test_a_file_in_another_form_is_refused(tmp_path) -> None:
    path = tmp_path / "x.md"
    path.write_text("## Problem\n")
    with pytest.raises(ValueError, match="does not begin with a table"):
        load_idea(path)
    path.write_text("+++\ntitle = 'x'\n+++\n## Problem\n")
    with pytest.raises(ValueError, match="has the sections"):
        load_idea(path)


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


@pytest.mark.parametrize("name", PATTERNS)
def test_the_cost_of_an_idea_is_the_longest_row_of_its_pattern(name: str) -> None:
    costs = {length: mechanism for length, mechanism, _ in all_ideas()[name].cost.values()}
    longest = parse(PATTERNS[name]).matrix(LENGTHS[1])[1:].sum(1).max()  # the first token of some is global
    assert int(longest) == costs[LENGTHS[1]]
