"""Public text stays readable: short first lines that say what a thing is, short sentences, described parameters."""

from collections import Counter
from pathlib import Path

import pytest

from bench.prose import LIMITS, PHRASES, Text, findings, public_files, texts_of, undescribed_parameters

FILES = public_files()


def test_public_text_is_plain_and_describes_every_parameter() -> None:
    """`python bench/prose.py PATH` lists every place of a folder or a file."""
    texts = [text for path in FILES for text in texts_of(path)]
    places = [place for text in texts for place in findings(text)]
    counts = Counter(place.rule for place in places)
    broken = {rule: count for rule, count in counts.items() if count > LIMITS[rule]}
    shown = [f"{place.path}:{place.line}: {place.rule}: {place.text:.80}" for place in places if place.rule in broken]
    assert not broken, f"more than {LIMITS} allow:\n" + "\n".join(shown)
    missing = [
        f"{place.path}:{place.line}: {place.owner} does not describe {place.name}"
        for path in FILES
        if path.suffix == ".py"
        for place in undescribed_parameters(path)
    ]
    assert not missing, "\n".join(missing)
    assert len(texts) > 5000


def test_the_lint_reads_every_page() -> None:
    names = {path.name for path in FILES}
    assert {"README.md", "DESIGN.md", "CHANGELOG.md", "CONTRIBUTING.md", "commands.md", "lm.py"} <= names


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("What is read is kept.", "what ... is"),
        ("Rows of which none has keys.", "of which, of whom"),
        ("The first row, as the paper has it.", "as ... has it"),
        ("Its weights are those of the first layer.", "that of, those of"),
        ("Of each query the keys are sorted.", "what, how, of at the start"),
        ("A mask came.", "came, is said, is told"),
        ("The last token alone reads all keys.", "no ... but, alone"),
        ("Zeros where there is no key.", "where ... (a condition)"),
    ],
)
def test_each_phrase_is_noticed(words: str, rule: str) -> None:
    assert rule in PHRASES
    assert rule in {place.rule for place in findings(Text(Path("x.py"), 1, words))}


def test_long_sentences_and_unclear_first_lines_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text(f'''
class Part:
    """Of each query the keys. {"word " * 31}."""

    def __init__(self, width: int, depth: int):
        """width: the width of x."""


def make(x: int) -> int:
    """{"x" * 101}"""
    raise ValueError("{"word " * 31}")
''')
    rules = Counter(place.rule for text in texts_of(file) for place in findings(text))
    assert rules["first line begins with no noun or verb"] == 1
    assert rules["first line too long"] == 2
    assert rules["more than 30 words"] == 2
    assert [(place.owner, place.name) for place in undescribed_parameters(file)] == [("Part", "depth"), ("make", "x")]


def test_a_sentence_goes_on_over_a_colon_and_each_parameter_begins_one(tmp_path: Path) -> None:
    half = "word " * 18
    rules = [place.rule for place in findings(Text(Path("x.py"), 1, f"A row {half}\nin one line: {half}."))]
    assert rules == ["more than 30 words"]
    assert not list(findings(Text(Path("x.py"), 1, f"width, depth: {half}\nrows: {half}\nErrors: {half}")))


def test_messages_within_values_decorated_functions_and_an_empty_docstring_are_read(tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text('''
""""""

@contextmanager
def make(x, /):
    """A row."""
    raise ValueError(f"{'a row of which none came' if x else 'none of the rows has keys'}: {x}")

@of_parts(Part)
def part(y):
    """A part."""
''')
    rules = Counter(place.rule for text in texts_of(file) for place in findings(text))
    assert rules == {"of which, of whom": 1, "came, is said, is told": 1}
    assert [place.name for place in undescribed_parameters(file)] == ["x"]


def test_code_formulas_and_tables_are_no_sentences() -> None:
    words = f"A layer.\n\n    y = {'a + ' * 40}b\n\n| {'cell ' * 40}|\n\nA call of `{'x ' * 40}`."
    assert not list(findings(Text(Path("x.md"), 1, words)))
