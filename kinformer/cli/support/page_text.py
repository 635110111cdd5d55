"""Texts of `kinformer show`: classes and functions with their arguments, helpers, and topics."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from shlex import quote
from typing import Any

from rich.console import Console

from kinformer.cli.support.catalogue import member_facts
from kinformer.cli.support.page import Page, Topic, is_member
from kinformer.cli.support.static_source import first_sentence
from kinformer.cli.support.topic_list import NARROW, command_with_data, data_to_train, width_of
from kinformer.cli.support.topics import topics_of
from kinformer.cli.support.typed_parts import patterns_in_expression
from kinformer.core.conversion import Conversion
from kinformer.core.discover import part_files, part_names
from kinformer.lab.claims.support.claim_report import measured_verdict
from kinformer.pages.docstrings import Doc, arguments, doc, heading
from kinformer.pages.module_docs import public_methods, sentence

TRIALS = {  # commands that try the subject of a page
    "member": "train {name} --data {data} --minutes 1 --out runs/{folder}",
    "task": "train gpt --data task={name} --minutes 1 --out runs/{folder}",
    "environment": "train gtrxl --data env={name} --minutes 5 --out runs/{folder}",
    "conversion": "convert HF_FOLDER --to {name} --dry-run",
}


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
    for line in _claims(page, width_of(console)):
        console.print(line)
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
    methods = public_methods(cls)
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


def _claims(page: Page, width: int) -> Iterator[str]:
    """The lines of the claims about a member of the library: the verdict, then the claim, then its command."""
    folder, _, name = page.heading.partition("/")
    claims = member_facts().get(name, {}).get("claims", []) if folder == "members" else []
    if claims:
        yield "\n  claims of its paper, with the verdicts of our measurements:"
    for claim in claims:
        text = f"{measured_verdict(claim)}: {first_sentence(part_files('claims')[claim])} (kinformer claim {claim})"
        yield from textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="      ")


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
        yield f"\n  {command_with_data(page.form.partition('=')[0])}"
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
    return data_to_train(getattr(page.examples[0](), "reads", "text") if page.examples else "text")


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
