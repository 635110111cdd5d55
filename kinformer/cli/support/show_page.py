"""Pages of `kinformer show`: the text of a class or function, then pictures, costs and helpers."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from rich.console import Console

from kinformer.cli.support.console import plain_console
from kinformer.cli.support.docstrings import Doc, arguments, doc, heading
from kinformer.cli.support.example_lines import cost_lines, example_lines
from kinformer.cli.support.idea_page import print_idea
from kinformer.cli.support.module_docs import sentence
from kinformer.cli.support.name_lookup import page_of
from kinformer.cli.support.page import Page, Topic, TopicEntry, is_member
from kinformer.cli.support.query_keys import query_lines
from kinformer.cli.support.topic_list import EXAMPLES, NARROW, training_command, width_of
from kinformer.cli.support.topics import topics_of
from kinformer.cli.support.typed_parts import expression_page, patterns_in_expression
from kinformer.core.conversion import Conversion
from kinformer.core.discover import part_names
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.lab.data.support.data_readers import form_of
from kinformer.lab.errors import UserError
from kinformer.pages.idea import Idea, ideas_of
from kinformer.pages.idea_figures import idea_figures
from kinformer.pages.pictures.support import all_pictures as every
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.diagram_terminal import diagram_lines
from kinformer.pages.pictures.support.matplotlib_picture import save
from kinformer.pages.pictures.support.picture_panels import Picture
from kinformer.pages.pictures.support.terminal import lines
from kinformer.pages.pictures.who_reads import CAPTION, side_by_side

ROWS = 2  # patterns of a page that are drawn with and without Causal()
MOST, FIRST = 6, 2  # examples of a page to draw; pages of a topic to draw
TRIALS = {  # commands that try the subject of a page
    "member": "train {name} --data {data} --minutes 1 --out runs/{folder}",
    "task": "train gpt --data task={name} --minutes 1 --out runs/{folder}",
    "environment": "train gtrxl --data env={name} --minutes 5 --out runs/{folder}",
    "conversion": "convert HF_FOLDER --to {name} --dry-run",
}


def idea_and_pages(
    name: str,
    idea: Idea | None,
    find_pages: Callable[[str, tuple[str, ...]], list[Page] | Topic],
    keywords: tuple[str, ...],
) -> tuple[Idea | None, list[Page] | Topic]:
    """Return the idea and the pages of a name; a member also has the idea that it belongs to.

    name: the name, such as "lsh" or "hashed attention".
    idea: the idea of this name, or None.
    find_pages: function that returns the pages of a name.
    keywords: keywords after the name.

    Errors: UserError for an unknown name.
    """
    try:
        pages = find_pages(name, keywords)
    except UserError:
        if idea is None:
            raise
        pages = []
    is_listed = not isinstance(pages, Topic) or bool(pages.commands)
    if idea is not None and not (pages and is_listed):  # a name of an idea that no part and no topic has
        entries = [TopicEntry(place, page_of(place).says) for place in idea.places]
        return idea, Topic(f"members and parts: {idea.title}", "", tuple(entries))
    if idea is None and not keywords and not isinstance(pages, Topic):
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
            return _printed(images, console)
        print_idea(idea, images, console, _printed)
        console.print()
    if isinstance(pages, Topic):
        if is_text:
            write_topic(pages, console)
        return [*images, *_printed(topic_pictures(pages, length) if pages.says else [], console)]
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
        images += _printed(drawn, console)
        for line in () if cost is None else cost_lines(page, *cost):
            console.print(line)
        if is_text:
            write_helpers(page, console)
    return images


def print_queries(idea: Idea | None, pages: list[Page] | Topic, query: int, length: int | None) -> None:
    """Print the keys that one query reads under the pattern of each page, and the positions that reach it.

    idea: the idea of the name, whose pattern is used if no page has one; None for no idea.
    pages: the pages, or the topic.
    query: position of the query.
    length: number of positions; None chooses it.

    Errors: UserError for a query outside the row, and for a subject without a pattern.
    """
    console = plain_console(soft_wrap=True)
    makes = [] if isinstance(pages, Topic) else [page.examples[0] for page in pages if page.examples][:1]
    text = pages.draws if isinstance(pages, Topic) else ""
    if not makes and (expression := text or (idea.pattern if idea else "")):
        makes = [expression_page(expression).examples[0]]
    if not makes:
        raise UserError("--query needs a pattern or a member, and this page has none. Name one, such as longformer")
    for line in query_lines(_make_seeded(makes[0]), query, length):
        console.print(line)


def _printed(pictures: Sequence[Picture | Diagram], console: Console) -> list[Picture | Diagram]:
    """Print pictures and diagrams, and return them."""
    for picture in pictures:
        console.print()
        width = width_of(console)
        for line in diagram_lines(picture, width) if isinstance(picture, Diagram) else lines(picture, width):
            console.print(line)
    return list(pictures)


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
    try:
        save(title, images, out)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from error


def write(page: Page, console: Console) -> None:
    """Print the text of a page: heading, signatures and docstrings.

    page: the page.
    console: the console to print on.
    """
    width = width_of(console)
    console.print(page.heading, style="bold")
    if page.says:
        for line in textwrap.wrap(page.says, width):
            console.print(line)
    for title, subject in page.main:
        console.print()
        call = f"--data {page.form}" if page.form else heading(title, subject)
        for n, line in enumerate(textwrap.wrap(call, width, subsequent_indent="    ")):
            console.print(line, style="bold cyan" if n == 0 else "cyan")
        for text, style in _body(subject, doc(subject), width, page.form):
            console.print(text, style=style)
        if page.public:
            _methods(subject, console, width)
    for line in _commands(page):
        console.print(line)
    if not page.main:
        _patterns(page, console, width)


def write_helpers(page: Page, console: Console) -> None:
    """Print the helper classes and functions of a page, one per line, and the topics that it belongs to.

    page: the page.
    console: the console to print on.
    """
    if page.helpers:
        console.print(f"\nalso in {page.heading}, each with its own page:", style="bold")
        _lines(dict(page.helpers), console, width_of(console))
    if topics := topics_of(page.heading):
        more = f" (and {', '.join(topics[1:])})" if len(topics) > 1 else ""
        console.print(f"\nrelated: kinformer show {quote(topics[0])}{more}")


def write_topic(topic: Topic, console: Console) -> None:
    """Print a topic with one line for each file that belongs to it.

    topic: the topic.
    console: the console to print on.
    """
    width = width_of(console)
    console.print(topic.word, style="bold")
    for line in textwrap.wrap(topic.says, width):
        console.print(line)
    console.print()
    size = max((len(entry.place) for entry in topic.places), default=0)
    for entry in topic.places:
        for n, line in enumerate(textwrap.wrap(entry.sentence, max(NARROW // 2, width - size - 4))):
            console.print(f"  {entry.place if n == 0 else '':<{size}}  {line}")
    shows = any(command.startswith("kinformer show") for command in topic.commands)
    first = [f"kinformer show {topic.places[0].place}"] if topic.places and not shows else []
    console.print("\ntry:" if topic.places else "try:")
    for command in (*first, *topic.commands):
        console.print(f"  {command}")


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


def _body(subject: Any, docstring: Doc, width: int, form: str = "") -> Iterator[tuple[str, str | None]]:
    """The lines of a docstring with their styles; `form` is the --data value of a kind of data."""

    def block(text: str, style: str | None = None, indent: str = "  ") -> Iterator[tuple[str, str | None]]:
        if text.startswith("    "):  # lines of code are not wrapped
            yield from (("", None), *((line, style) for line in text.splitlines()))
            return
        yield "", None
        for line in textwrap.wrap(text, width - len(indent), break_long_words=False):
            yield indent + line, style

    if docstring.first:
        yield from list(block(docstring.first))[1:]
    for text in docstring.equations:
        yield from block(text, "bold")
    for text in docstring.prose:
        yield from block(text)
    rows = list(arguments(subject, docstring))
    if form:  # what the user types in place of the arguments of `read`
        rows = [(_as_typed(name, form), text) for name, text in rows]
    if rows:
        yield "", None
    for name, text in rows:
        yield from ((line, "green") for line in textwrap.wrap(f"  {name}", width, subsequent_indent="    "))
        for piece in re.split(r"(?<=[.:]) (?=\d\. )", text):  # each form of a numbered list begins a line
            for line in textwrap.wrap(piece, width - 6):
                yield f"      {line}", None
    for word, text in (("Errors", docstring.errors), ("Source", docstring.source)):
        if text:
            yield from block(f"{word}: {text}", "dim")


def _as_typed(heading: str, form: str) -> str:
    """Return the heading of an argument of `read` as a user types it: its place in the form, or an option."""
    names = [piece.partition(":")[0].strip(" *") for piece in re.split(r", (?=\w+:)", heading)]
    place = form.partition("=")[2].partition(",")[0]
    return ", ".join(
        place if name == "where" else "further options" if name == "sizes" else f",{name}=..." for name in names
    )


def _methods(cls: Any, console: Console, width: int) -> None:
    """Print the methods of a class of the public API, one per line, `forward` first and inherited ones last."""
    if not inspect.isclass(cls):
        return
    own = [base for base in cls.__mro__ if base.__module__.startswith("kinformer.")]
    methods = {
        name: getattr(cls, name)
        for base in own
        for name, value in vars(base).items()
        if not (name.startswith("_") or (hasattr(torch.nn.Module, name) and name != "forward"))
        and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod | property))
        and inspect.getdoc(getattr(cls, name))
    }
    if methods:
        console.print("\n  methods", style="bold")
        _lines(dict(sorted(methods.items(), key=lambda pair: pair[0] != "forward")), console, width)


def _patterns(page: Page, console: Console, width: int) -> None:
    """Print what each pattern in an expression does, and a command that trains with the expression."""
    pattern = page.examples[0]()
    sentences = patterns_in_expression(pattern)
    size = max(map(len, sentences), default=0)
    for name, text in sentences.items():
        for n, line in enumerate(textwrap.wrap(text, width - size - 4)):
            console.print(f"  {name if n == 0 else '':<{size}}  {line}")
    if pattern.reach()[1] <= 0 and sentences:
        text = quote(f"pattern={page.heading}")
        console.print(f"\n  kinformer train gpt {text} --data text=stdlib --minutes 1 --out runs/pattern")


def _lines(named: dict[str, Any], console: Console, width: int) -> None:
    size = max(len(name) for name in named)
    for name, subject in named.items():
        text = textwrap.wrap(sentence(inspect.getdoc(subject) or ""), max(NARROW // 2, width - size - 4)) or [""]
        console.print(f"  {name:<{size}}  {text[0]}")
        for line in text[1:]:
            console.print(" " * (size + 4) + line)


def _commands(page: Page) -> Iterator[str]:
    """The command that tries the subject of a page, and the import of other subjects."""
    is_own_file = ".py:" in page.heading
    for title, subject in page.main:
        kind = "member" if is_member(subject) else getattr(subject, "kind", None)
        kind = "conversion" if inspect.isclass(subject) and issubclass(subject, Conversion) else kind
        if kind in TRIALS:
            name = quote(page.heading) if is_own_file else title if kind == "member" else page.heading.partition("/")[2]
            folder, data = (title, _data(page)) if kind == "member" else (title.lower(), "")
            line = TRIALS[kind].format(name=name, data=data, folder=folder)
            yield f"\n  kinformer {line}"
    if page.form:
        yield f"\n  {training_command(page.form.partition('=')[0])}"
        return
    home = getattr(page.main[0][1], "__module__", "") if page.main and not page.public and not is_own_file else ""
    if page.public:
        yield f"\n  from kinformer import {page.heading.split('.')[1]}"
    elif home and not page.heading.startswith("members/"):
        titles = [title for title, _ in page.main]
        place = "kinformer" if part_names().keys() >= set(titles) else home
        yield f"\n  from {place} import {', '.join(titles)}"
    texts = (text for text in map(_example_source, page.examples) if text.partition("(")[0] in dict(page.main))
    if home and (text := next(texts, "")):
        yield f"  {text}"


def _data(page: Page) -> str:
    """The --data value of a command that trains the member of a page."""
    reads = getattr(page.examples[0](), "reads", "text") if page.examples else "text"
    form = "text=stdlib" if reads in ("text", "masked") else form_of(reads)
    return EXAMPLES.get(form.partition("=")[0], form)


def _example_source(make: Any) -> str:
    """The source of an example if it is one expression that a reader can write too; otherwise ""."""
    if not inspect.isfunction(make) or make.__name__ != "<lambda>":
        return ""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(make)).strip().strip(",").removeprefix("EXAMPLES = "))
    except (OSError, SyntaxError, TypeError):
        return ""
    expression = next((node for node in ast.walk(tree) if isinstance(node, ast.Lambda)), None)
    if expression is None or not isinstance(expression.body, ast.Call):
        return ""
    names = (node.id for node in ast.walk(expression.body) if isinstance(node, ast.Name))
    if any(name.strip("_") and name.startswith("_") for name in names):
        return ""  # a reader cannot call private names
    return ast.unparse(expression.body)
