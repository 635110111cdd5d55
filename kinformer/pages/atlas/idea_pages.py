"""Pages of ideas in the atlas: the Markdown of kinformer/pages/ideas as HTML."""

import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple
from urllib.parse import urlencode

from markdown_it import MarkdownIt

from kinformer.pages.idea import EXAMPLE_NOTE, Idea, all_ideas, alternatives, followers
from kinformer.pages.idea_figures import idea_figures
from kinformer.pages.pictures.support.figure_html import figure_html

MARKDOWN = MarkdownIt("commonmark", {"html": False})
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
FOLDED = "Answers"  # the section that a reader opens after the self-test


class IdeaPage(NamedTuple):
    """Page of an idea as the atlas shows it.

    key: name in the address, such as "lsh".
    title: heading.
    sentence: the problem that it solves.
    names: further names that papers use for it.
    members: names of its members, the most important first.
    html: the page below its heading.
    """

    key: str
    title: str
    sentence: str
    names: tuple[str, ...]
    members: tuple[str, ...]
    html: str


def idea_articles() -> list[IdeaPage]:
    """Return the pages of all ideas, in the order of their titles."""
    pages = []
    for idea in all_ideas().values():
        members = tuple(place.removeprefix("members/") for place in idea.places if place.startswith("members/"))
        pages.append(IdeaPage(idea.name, idea.title, idea.summary, idea.names, members, "".join(_body(idea))))
    return sorted(pages, key=lambda page: page.title.lower())


def _body(idea: Idea) -> Iterator[str]:
    if idea.names:
        yield f'<p class="soft">Other names: {escape(", ".join(idea.names))}.</p>\n'
    for title, text in idea.sections.items():
        html = ARXIV.sub(r'<a href="https://arxiv.org/abs/\1">arXiv:\1</a>', MARKDOWN.render(text))
        if title == FOLDED:
            yield f"<details><summary>{title}</summary>{html}</details>\n"
            continue
        note = f'<p class="soft">{EXAMPLE_NOTE}</p>\n' if title == "Worked example" else ""
        yield f"<h4>{escape(title)}</h4>\n{note}{html}"
        if title == "Picture":
            yield from _drawings(idea)
        if title == "Cost":
            yield from _costs(idea)
    yield from _neighbours(idea)


def _drawings(idea: Idea) -> Iterator[str]:
    for figure in idea_figures(idea):
        yield figure_html(figure) + "\n"
    if idea.pattern:
        address = urlencode({"left": idea.pattern})
        yield (
            f'<p><a href="#playground?{escape(address)}">Open <code>{escape(idea.pattern)}</code> in the playground</a>'
            "</p>\n"
        )


def _costs(idea: Idea) -> Iterator[str]:
    cost = idea.cost
    yield (
        f'<div class="scroll"><table><thead><tr><th scope="col">{escape(cost.unit)}</th>'
        '<th scope="col">this</th><th scope="col">softmax</th></tr></thead><tbody>\n'
    )
    for length, mechanism, softmax in cost.texts():
        yield f"<tr><td>{length} tokens</td><td>{mechanism}</td><td>{softmax}</td></tr>\n"
    yield "</tbody></table></div>\n"
    yield f'<p class="soft">{escape(cost.where)}. Layers until all positions connect: {escape(cost.layers)}.</p>\n'


def _neighbours(idea: Idea) -> Iterator[str]:
    """Yield the commands, the files, and the ideas to read before, after and beside it."""
    yield "<h4>Where to go</h4>\n<ul>\n"
    parts = [place for place in idea.places if not place.startswith("members/")]
    shown = [f"kinformer show {place}" for place in parts]
    lines = {
        "explained": _codes(shown),
        "try": _codes(idea.commands),
        "read before": _links(idea.before),
        "read next": _links(followers(idea)),
        "compare with": _links(alternatives(idea)),
    }
    for term, html in lines.items():
        if html:
            yield f"<li>{term}: {html}</li>\n"
    yield "</ul>\n"


def _codes(commands: Iterable[str]) -> str:
    return ", ".join(f"<code>{escape(command)}</code>" for command in commands)


def _links(names: Iterable[str]) -> str:
    """Return links to the ideas that have a page."""
    ideas = [all_ideas()[name] for name in names if name in all_ideas()]
    return ", ".join(f'<a href="#idea/{idea.name}">{escape(idea.title)}</a>' for idea in ideas)
