"""The documentation holds everything public, all its links lead somewhere, and its navigation reaches every page."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

import kinformer
from docs.build import INDEX, ROOT, all_pages, broken_links, navigation, with_navigation, written_pages
from kinformer.cli.__main__ import COMMANDS
from kinformer.cli.support.catalogue import list_papers
from kinformer.cli.support.topics import TOPICS
from kinformer.core.discover import UNJUDGED, kinds, part_files
from kinformer.pages.idea import all_ideas
from kinformer.pages.site.command_pages import page_of_command
from kinformer.pages.site.idea_pages import page_of_idea
from kinformer.pages.site.kind_pages import FILES, PARTS, page_of_kind, page_of_member, place_of_file, places_of_names
from kinformer.pages.site.markdown import FENCE, SitePlace, anchor, anchors
from kinformer.pages.site.topic_pages import PAPERS
from kinformer.pages.site.topic_pages import TOPICS as TOPIC_PAGE

GENERATED = ("reference/", "ideas", "glossary.md")


@pytest.fixture(scope="module")
def site() -> tuple[dict[str, str], dict[str, str]]:
    return all_pages()


@pytest.fixture(scope="module")
def pages(site: tuple[dict[str, str], dict[str, str]]) -> dict[str, str]:
    return site[0]


def test_every_public_name_has_an_entry(pages: dict[str, str]) -> None:
    places = places_of_names()
    assert set(kinformer.__all__) - {"__version__"} == set(places)
    missing = [name for name, place in places.items() if place.anchor not in anchors(pages[place.page])]
    assert not missing and len(places) > 450


def test_every_file_of_every_kind_has_a_place(pages: dict[str, str]) -> None:
    assert {*kinds(), *UNJUDGED} <= {*PARTS, *FILES, "members"}
    for kind in (*PARTS, *FILES, "members"):
        for file in part_files(kind):
            place = place_of_file(f"{kind}/{file}")
            if kind == "data" and place.anchor not in anchors(pages[place.page]):
                text = part_files(kind)[file].read_text("utf-8")
                assert "\nFORM" not in text, file  # a helper of data
            elif place.anchor:
                assert place.anchor in anchors(pages[place.page]), f"{kind}/{file}"
            else:
                assert kind == "members" or f"`{file}`" in pages[place.page], f"{kind}/{file}"
    assert all(page_of_member(file) in pages for file in part_files("members"))


def test_every_command_and_option_is_explained(pages: dict[str, str]) -> None:
    options = []
    for name, command in COMMANDS.commands.items():  # type: ignore[attr-defined]
        text = pages[page_of_command(name)]
        for inner in every_command(command):
            options += [(text, parameter) for parameter in inner.params if parameter.name != "help"]
    for text, parameter in options:
        words = parameter.opts if parameter.param_type_name == "option" else [parameter.help]
        assert all(" ".join(word.split()).replace("*", "\\*").partition("`")[0][:40] in text for word in words), (
            parameter.name
        )
    assert len(options) > 200


def every_command(command: Any) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from every_command(inner)


def test_topics_papers_and_ideas_are_there(pages: dict[str, str]) -> None:
    assert {anchor(name) for name in TOPICS} <= set(anchors(pages[TOPIC_PAGE]))
    papers = list_papers()
    assert all(f"{entry.citation.url})" in pages[PAPERS] for entry in papers if entry.citation.url)
    assert len(papers) > 80
    for name, idea in all_ideas().items():
        text = pages[page_of_idea(name)]
        assert all(f"\n## {section}\n" in text for section in idea.sections)
        assert text.count("<figure") >= len(idea.figures) + bool(idea.pattern)


def test_all_links_lead_somewhere(site: tuple[dict[str, str], dict[str, str]]) -> None:
    texts, files = site
    assert not broken_links(texts, files)
    assert all((ROOT / file).is_file() for file in files)
    planted = texts | {"laws.md": texts["laws.md"] + "[a](data.md#no-such-heading) [b](nowhere.md) [c](data.md#tasks)"}
    assert broken_links(planted, files) == ["laws.md: data.md#no-such-heading", "laws.md: nowhere.md"]


def test_the_navigation_reaches_every_page_once(pages: dict[str, str]) -> None:
    listed = [page for section in navigation(pages).values() for page in section]
    children = [page for page in pages if page.startswith(("reference/members/", "reference/commands/", "ideas/"))]
    assert sorted([INDEX, *listed, *children]) == sorted(pages)
    tree = with_navigation(pages)
    assert sum(text.count("```{toctree}") for text in tree.values()) == len(navigation(pages)) + 2 + bool(all_ideas())


def test_every_guide_is_on_the_front_page() -> None:
    front = (ROOT / "docs" / "README.md").read_text("utf-8")
    names = {Path(file).relative_to("docs").as_posix() for file in written_pages() if file.startswith("docs/")}
    assert all(f"({name})" in front for name in names - {"README.md"})


def test_generated_pages_hold_no_raw_markup(pages: dict[str, str]) -> None:
    """A sign of a docstring that Markdown reads as HTML would vanish from the page."""
    reader = MarkdownIt("commonmark").enable("table")
    raw = [
        f"{page}: {token.content[:60]}"
        for page, text in pages.items()
        if page.startswith(GENERATED)
        for block in reader.parse(text)
        for token in (block, *(block.children or ()))
        if token.type in ("html_inline", "html_block") and not token.content.startswith("<figure")
    ]
    assert not raw
    assert all(FENCE.sub("", text).count("```") == 0 for text in pages.values())


def test_the_reference_says_what_the_docstrings_say(pages: dict[str, str]) -> None:
    """The text of each entry, as a reader of HTML sees it, holds the first line of the docstring."""
    reader = MarkdownIt("commonmark").enable("table")
    shown = {page: plain(reader.render(text)) for page, text in pages.items() if page.startswith("reference/")}
    for name, place in places_of_names().items():
        first = (getattr(kinformer, name).__doc__ or "").strip().split("\n\n")[0]
        words = " ".join(first.replace("`", "").split())
        assert words in shown[place.page], name


def plain(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def test_links_between_files_become_links_between_pages(pages: dict[str, str]) -> None:
    assert (
        "(reference/members/gpt.md)" in pages["overview.md"] and "kinformer/members/gpt.py" not in pages["overview.md"]
    )
    assert "(../glossary.md#lse)" in pages["tutorials/attention.md"]
    assert places_of_names()["Band"] == SitePlace(page_of_kind("patterns"), "band")


def test_rows_of_mechanisms_lead_to_the_pages_of_their_ideas(pages: dict[str, str]) -> None:
    lines = dict(re.findall(r'^\| <a id="row-(\d+)"></a>(.*)$', pages["rows.md"], re.MULTILINE))
    for idea in all_ideas().values():
        for number in idea.rows:
            assert f"]({page_of_idea(idea.name)})" in lines[str(number)]
