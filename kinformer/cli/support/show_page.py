"""Pages of `kinformer show`: the idea, then texts, pictures, costs and helpers of its parts."""

import inspect
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from kinformer.cli.support.console import plain_console
from kinformer.cli.support.example_lines import cost_lines, example_lines
from kinformer.cli.support.idea_page import print_figures, print_idea
from kinformer.cli.support.name_lookup import find_pages, has_page, page_of
from kinformer.cli.support.page import Page, Topic, TopicEntry
from kinformer.cli.support.page_text import write, write_helpers, write_topic
from kinformer.cli.support.query_keys import query_lines
from kinformer.cli.support.topic_list import width_of
from kinformer.cli.support.typed_parts import expression_page
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.lab.errors import UserError
from kinformer.pages.idea import Idea, ideas_of
from kinformer.pages.idea_figures import idea_figures
from kinformer.pages.pictures.support import all_pictures as every
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture
from kinformer.pages.pictures.who_reads import CAPTION, side_by_side

ROWS = 2  # patterns of a page that are drawn with and without Causal()
MOST, FIRST = 6, 2  # examples of a page to draw; pages of a topic to draw


def idea_and_pages(name: str, keywords: tuple[str, ...], idea: Idea | None) -> tuple[Idea | None, list[Page] | Topic]:
    """Return the idea and the pages of a name; a member also has the idea that it belongs to.

    name: the name, such as "lsh" or "hashed attention".
    keywords: keywords after the name.
    idea: the idea of this name, or None.

    Errors: UserError for an unknown name.
    """
    if idea is not None and not has_page(name):
        entries = [TopicEntry(place, page_of(place).says) for place in idea.places]
        return idea, Topic(f"members and parts: {idea.title}", "", tuple(entries))
    pages = find_pages(name, keywords)
    has_keywords = bool(keywords) or "(" in name  # "gpt depth=2" and "gpt(depth=2)" have the same page
    if idea is None and not has_keywords and not isinstance(pages, Topic):
        members = [page.heading for page in pages if page.heading.startswith("members/")]
        idea = next((idea for member in members for idea in ideas_of(member)), None)
    return idea, pages


def print_pages(
    pages: list[Page] | Topic,
    length: int | None,
    cost: tuple[torch.device, AbstractContextManager[Any]] | None,
    idea: Idea | None = None,
    *,
    is_text: bool = True,
) -> list[Picture | Diagram]:
    """Print the pages of a name, or a topic, for `kinformer show`, and return their pictures.

    pages: the pages, or the topic (a word of the field with the files that belong to it).
    length: number of positions to draw; chosen for each picture if None.
    cost: device and autocast context on which the time and memory of each page's example are measured and printed; None
        for no measurement.
    idea: the idea to explain before the pages; None for no idea.
    is_text: False prints only figures and pictures. An idea then stands for its parts, whose pictures are left out.
    """
    console = plain_console(soft_wrap=True)
    images: list[Picture | Diagram] = []
    if idea is not None:
        images += idea_figures(idea, length)
        if not is_text:
            print_figures(images, console)
            return images
        print_idea(idea, images, console)
        console.print()
    if isinstance(pages, Topic):
        if is_text:
            write_topic(pages, console)
        drawn = topic_pictures(pages, length) if pages.says else []
        print_figures(drawn, console)
        return [*images, *drawn]
    for n, page in enumerate(pages):
        console.print() if n and is_text else None
        if is_text:
            write(page, console)
            for row, line in enumerate(example_lines(page, length)):
                console.print(f"\n  {line}" if row == 0 else f"  {line}")
        drawn = pictures(page, length)
        if drawn and is_text and (call := _drawn_call(page)):
            console.print()
            for line in textwrap.wrap(
                f"  drawn with small numbers: {call}", width_of(console), subsequent_indent="    "
            ):
                console.print(line)
        print_figures(drawn, console)
        images += drawn
        for line in () if cost is None else cost_lines(page, *cost):
            console.print(line)
        if is_text:
            write_helpers(page, console)
    return images


def print_queries(idea: Idea | None, pages: list[Page] | Topic, query: int, length: int | None) -> None:
    """Print the keys that one query reads under the pattern of the first page, and what reaches it.

    idea: the idea of the name, whose pattern is used if no page has an example; None for no idea.
    pages: the pages, or the topic.
    query: position of the query.
    length: number of positions; None chooses it.

    Errors: UserError for a query outside the row, and for a subject without a pattern.
    """
    console = plain_console(soft_wrap=True)
    drawn = [] if isinstance(pages, Topic) else [page for page in pages if page.examples][:1]
    text = pages.draws if isinstance(pages, Topic) else ""
    if not drawn and (expression := (idea.pattern if idea else "") or text):
        drawn = [expression_page(expression)]
    if not drawn:
        raise UserError("--query needs a pattern or a member, and this page has none. Name one, such as longformer")
    (page,) = drawn
    if call := _drawn_call(page):
        console.print(f"sizes as in the pictures: {call}. Give keywords for other sizes")
    for line in query_lines(_make_seeded((page.toys or page.examples)[0]), query, length):
        console.print(line)


def _drawn_call(page: Page) -> str:
    """Return the call of the member that the pictures of a page show, if they show it at toy sizes."""
    if not page.toys:
        return ""
    record = getattr(_make_seeded(page.toys[0]), "member", None)
    if record is None:
        return ""
    changed = {key: value for key, value in record.keywords.items() if value != record.defaults.get(key)}
    return f"{record.name}({', '.join(f'{key}={value!r}' for key, value in changed.items())})"


def save_pictures(title: str, images: Sequence[Picture | Diagram], out: Path) -> None:
    """Write the pictures of `kinformer show` into a file.

    title: the name that was shown; the picture has it as heading, and the message names it.
    images: the pictures.
    out: the file.

    Errors: UserError without pictures, and for a file that cannot be written.
    """
    if not images:
        raise UserError(f"cannot write {out}: {title!r} has no picture. Leave out --out")
    from kinformer.pages.pictures.support.matplotlib_picture import save  # here, so that only --out waits for it

    try:
        save(title, images, out)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from error


def pictures(page: Page, length: int | None) -> list[Picture]:
    """Draw the examples of a page: attention patterns side by side, other examples one by one.

    page: the page; up to 6 of its examples are drawn. If several pictures have the same caption, only the first is
        returned.
    length: number of positions to draw; chosen for each picture if None.
    """
    examples = [_make_seeded(make) for make in (page.toys or page.examples)[:MOST]]
    patterns = [example() if inspect.isclass(example) else example for example in examples]
    only_patterns = [example for example in patterns if isinstance(example, Pattern)]
    if page.main and len(only_patterns) == len(patterns):
        first = only_patterns[:ROWS]
        with_causal = [pattern for example in first for pattern in _as_in_models(example)]
        together = with_causal if len(with_causal) > len(first) else only_patterns
        if len(together) > 1:
            return [side_by_side(together, length), *every.pictures(together[0], length, but="who_reads")]
    images: list[Picture] = []
    for example in patterns:
        captions = {picture.caption for picture in images}  # pictures of this kind exist from another example
        images += [picture for picture in every.pictures(example, length) if picture.caption not in captions]
    return images


def topic_pictures(topic: Topic, length: int | None) -> list[Picture]:
    """Draw the pattern that a topic names, its attention patterns side by side, or its first 2 pages.

    topic: the topic; the first example of each pattern is drawn. With fewer than 2 patterns, the first 2 pages are
        drawn, but not full or causal attention, which says nothing about the topic.
    length: number of positions to draw; chosen for each picture if None.
    """
    if topic.draws:
        return pictures(expression_page(topic.draws), length)
    places = [item.place for item in topic.places]
    if not topic.commands and topic.says.startswith("No part"):
        return []
    examples = [page_of(place).examples[0]() for place in places if place.startswith("patterns/")]
    patterns = [item for item in examples if isinstance(item, Pattern)]
    if len(patterns) > 1:
        return [side_by_side(patterns, length)]
    return [
        item._replace(caption=f"{page.heading}: {item.caption}")
        for page in map(page_of, places[:FIRST])
        for item in pictures(page, length)[:1]
        if not _is_dense(item)
    ]


def _as_in_models(pattern: Pattern) -> list[Pattern]:
    """Return a pattern, and the pattern as a decoder uses it if it contains later keys."""
    return [pattern, Causal() & pattern] if pattern.reach()[1] > 0 else [pattern]


def _is_dense(picture: Picture) -> bool:
    """Return True for a picture of full or causal attention: its cells are all filled, or all up to the diagonal."""
    masks = [panel.kind > 0 for panel in picture.panels]
    are_full = (bool(mask.all()) or torch.equal(mask, torch.ones_like(mask).tril()) for mask in masks)
    return picture.caption.startswith(CAPTION) and all(are_full)


def _make_seeded(make: Callable[[], Any]) -> Any:
    """Build an example with weights that are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()
