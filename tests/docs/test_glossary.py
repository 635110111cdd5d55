"""The glossary: definitions of one sentence, in one file, from which the page and the command print."""

import re

import pytest

from docs.build import ROOT
from kinformer.cli.__main__ import run
from kinformer.core.discover import part_files
from kinformer.pages.glossary import all_terms, glossary_page


def test_the_page_is_as_the_file_says() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    assert page == glossary_page(), "docs/glossary.md is old; run `python -m docs.build --glossary`"


@pytest.mark.parametrize("name", all_terms())
def test_a_definition_is_one_sentence_and_names_parts_that_exist(name: str) -> None:
    term = all_terms()[name]
    assert term.says.endswith(".") and not re.search(r"[.?!] [A-Z]", term.says)
    assert term.says[0].isupper() and len(term.says.split()) <= 30
    assert all(place.partition("/")[2] in part_files(place.partition("/")[0]) for place in term.see)


def test_the_terms_of_the_library_are_there() -> None:
    terms = set(all_terms())
    expected = (
        "pattern part member mechanism segment lane lse merge sink reach row halting exit codebook bias score state "
        "run executor law claim recipe promise datastore rollout hash bucket round stack shortener memory window"
    )
    assert terms >= {*expected.split(), "ponder cost", "global token", "feature map", "bits per byte", "warm-up"}


@pytest.mark.parametrize("words", ["words", "glossary", "terms"])
def test_the_command_prints_every_term(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", words]) == 0
    printed = "".join(capsys.readouterr().out.split())
    assert all("".join(f"{name}{term.says}".split()) in printed for name, term in all_terms().items())
