"""Pages of `kinformer show`: the text of a class or function, then pictures, costs and helpers."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.console import Console

from kinformer.cli.support.console import plain_console
from kinformer.cli.support.docstrings import Doc, arguments, doc, heading
from kinformer.cli.support.module_docs import sentence
from kinformer.cli.support.name_lookup import Page, Topic, page_of
from kinformer.core.discover import Origin
from kinformer.core.pattern import Pattern
from kinformer.core.task import Task
from kinformer.lab.cost.growth import measure
from kinformer.lab.cost.sparsity import pattern_lines
from kinformer.lab.data.support.data_readers import form_of
from kinformer.lab.errors import UserError
from kinformer.laws.support.layer_forms import forms
from kinformer.laws.support.subject import Subject
from kinformer.pages.pictures.support import all_pictures as every
from kinformer.pages.pictures.support.matplotlib_picture import save
from kinformer.pages.pictures.support.picture_panels import CELLS, Picture, span
from kinformer.pages.pictures.support.short_repr import largest_number
from kinformer.pages.pictures.support.terminal import lines
from kinformer.pages.pictures.who_reads import side_by_side

NARROW, WIDE = 60, 110
MOST, FIRST = 6, 2  # examples of a page to draw; pages of a topic to draw
WIDTH = 16  # width of every example
TRIALS = {  # commands that train with the subject of a page
    "member": "{name} --data {data} --out runs/{folder} --minutes 1",
    "task": "gpt --data task={name} --out runs/{folder} --minutes 1",
    "environment": "gtrxl --data env={name} --out runs/{folder} --minutes 5",
}
SHOWN, ROW_WIDTH = 3, 100  # rows of a task or steps of an environment; characters of a line


def print_pages(
    pages: list[Page] | Topic, length: int | None, cost: tuple[torch.device, AbstractContextManager[Any]] | None
) -> list[Picture]:
    """Print the pages of a name, or a topic, for `kinformer show`, and return their pictures.

    pages: the pages, or the topic (a word of the field with the files that belong to it).
    length: number of positions to draw; chosen for each picture if None.
    cost: device and autocast context on which the time and memory of each page's example are measured and printed; None
        for no measurement.
    """
    console = plain_console(soft_wrap=True)
    if isinstance(pages, Topic):
        write_topic(pages, console)
        return _printed(topic_pictures(pages, length), console)
    images: list[Picture] = []
    for n, page in enumerate(pages):
        console.print() if n else None
        write(page, console)
        for row, line in enumerate(sentences(page, length)):
            console.print(f"\n  {line}" if row == 0 else f"  {line}")
        images += _printed(pictures(page, length), console)
        for line in () if cost is None else cost_lines(page, *cost):
            console.print(line)
        write_helpers(page, console)
    return images


def _printed(pictures: list[Picture], console: Console) -> list[Picture]:
    """Print pictures and return them."""
    for picture in pictures:
        console.print()
        for line in lines(picture, width_of(console)):
            console.print(line)
    return pictures


def save_pictures(title: str, images: list[Picture], out: Path) -> None:
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


def width_of(console: Console) -> int:
    """Return the width of a page in characters: the terminal's width between 60 and 110, otherwise 110.

    console: the console to print on.
    """
    return max(NARROW, min(WIDE, console.width)) if console.is_terminal else WIDE


def write(page: Page, console: Console) -> None:
    """Print the text of a page: heading, signatures and docstrings.

    page: the page.
    console: the console to print on.
    """
    width = width_of(console)
    console.print(page.heading, style="bold")
    for title, subject in page.main:
        console.print()
        for n, line in enumerate(textwrap.wrap(heading(title, subject), width, subsequent_indent="    ")):
            console.print(line, style="bold cyan" if n == 0 else "cyan")
        for text, style in _body(subject, doc(subject), width):
            console.print(text, style=style)
        if page.public:
            _methods(subject, console, width)
    for line in _commands(page):
        console.print(line)


def write_helpers(page: Page, console: Console) -> None:
    """Print the helper classes and functions of a page, one per line.

    page: the page.
    console: the console to print on.
    """
    if page.helpers:
        console.print(f"\nalso in {page.heading}, each with its own page:", style="bold")
        _lines(dict(page.helpers), console, width_of(console))


def write_topic(topic: Topic, console: Console) -> None:
    """Print a topic with one line for each file that belongs to it.

    topic: the topic.
    console: the console to print on.
    """
    console.print(topic.word, style="bold")
    for line in textwrap.wrap(topic.says, width_of(console)):
        console.print(line)
    console.print()
    size = max((len(entry.place) for entry in topic.places), default=0)
    for entry in topic.places:
        console.print(f"  {entry.place:<{size}}  {entry.sentence}")
    if topic.places:
        console.print(f"\nkinformer show {topic.places[0].place} shows the first of these pages")


def pictures(page: Page, length: int | None) -> list[Picture]:
    """Draw the examples of a page: attention patterns side by side, other examples one by one.

    page: the page; up to 6 of its examples are drawn. If several pictures have the same caption, only the first is
        returned.
    length: number of positions to draw; chosen for each picture if None.
    """
    examples = [_make_seeded(make) for make in page.examples[:MOST]]
    patterns = [example() if inspect.isclass(example) else example for example in examples]
    if len(patterns) > 1 and all(isinstance(example, Pattern) for example in patterns):
        together = side_by_side([example for example in patterns if isinstance(example, Pattern)], length)
        return [together, *every.pictures(patterns[0], length, but="who_reads")]
    images: list[Picture] = []
    for example in patterns:
        captions = {picture.caption for picture in images}  # pictures of this kind exist from another example
        images += [picture for picture in every.pictures(example, length) if picture.caption not in captions]
    return images


def topic_pictures(topic: Topic, length: int | None) -> list[Picture]:
    """Draw the attention patterns of a topic side by side, or its first 2 pages.

    topic: the topic; the first example of each pattern is drawn. With fewer than 2 patterns, the first 2 pages are
        drawn.
    length: number of positions to draw; chosen for each picture if None.
    """
    places = [item.place for item in topic.places]
    examples = [page_of(place).examples[0]() for place in places if place.startswith("patterns/")]
    patterns = [item for item in examples if isinstance(item, Pattern)]
    if len(patterns) > 1:
        return [side_by_side(patterns, length)]
    return [
        item._replace(caption=f"{page.heading}: {item.caption}")
        for page in map(page_of, places[:FIRST])
        for item in pictures(page, length)[:1]
    ]


def _make_seeded(make: Callable[[], Any]) -> Any:
    """Build an example with weights that are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def sentences(page: Page, length: int | None) -> Iterator[str]:
    """Yield lines about the example of a page: numbers of a pattern, rows of a task, or first steps.

    page: the page; it must have exactly one example, which is an attention pattern, a task or an environment. Otherwise
        nothing is yielded.
    length: number of positions of a pattern; chosen for the pattern if None.
    """
    if len(page.examples) != 1:
        return
    example = page.examples[0]()
    if isinstance(example, Task):
        yield from task_lines(example)
    if getattr(example, "kind", None) == "environment":
        yield from environment_lines(example)
    if isinstance(example, Pattern) and not example.tensors():
        yield from pattern_lines(example, span(largest_number(example), length, CELLS)[0])


def cost_lines(page: Page, device: torch.device, autocast: AbstractContextManager[Any]) -> Iterator[str]:
    """Measure the time and memory of a page's first example at several lengths, and yield lines to print.

    page: the page.
    device: the device to compute on.
    autocast: the context of the computations.
    """
    for make in page.examples[:1]:
        example = make()
        uses = (
            form
            for form in forms(example() if inspect.isclass(example) else example, make)
            if isinstance(form, Subject)
        )
        for use in uses:
            yield ""
            where = "this machine" if device.type == "cpu" else f"{device} of this machine"
            yield f"  measured on {where}{': ' * bool(use.place)}{use.place}"
            wide = f"width {getattr(example, 'd', use.width)}"
            yield from (f"  {line.replace(f'width {WIDTH}', wide)}" for line in measure(use, device, autocast).lines())
            return


def _body(subject: Any, docstring: Doc, width: int) -> Iterator[tuple[str, str | None]]:
    """The lines of a docstring with their styles."""

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
    if rows:
        yield "", None
    for name, text in rows:
        yield f"  {name}", "green"
        for line in textwrap.wrap(text, width - 6):
            yield f"      {line}", None
    for word, text in (("Errors", docstring.errors), ("Source", docstring.source)):
        if text:
            yield from block(f"{word}: {text}", "dim")


def _methods(cls: Any, console: Console, width: int) -> None:
    """Print the methods of a class of the public API, one per line."""
    if not inspect.isclass(cls):
        return
    methods = {
        name: getattr(cls, name)
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod | property))
        and value.__doc__
    }
    if methods:
        console.print("\n  methods", style="bold")
        _lines(methods, console, width)


def _lines(named: dict[str, Any], console: Console, width: int) -> None:
    size = max(len(name) for name in named)
    for name, subject in named.items():
        text = textwrap.wrap(sentence(inspect.getdoc(subject) or ""), max(NARROW // 2, width - size - 4)) or [""]
        console.print(f"  {name:<{size}}  {text[0]}")
        for line in text[1:]:
            console.print(" " * (size + 4) + line)


def _commands(page: Page) -> Iterator[str]:
    """The command that trains with the subject of a page, and the import of other subjects."""
    is_own_file = ".py:" in page.heading
    for title, subject in page.main:
        kind = "member" if isinstance(getattr(subject, "origin", None), Origin) else getattr(subject, "kind", None)
        if kind in TRIALS:
            name = page.heading if is_own_file else title if kind == "member" else page.heading.partition("/")[2]
            folder, data = (title, _data(page)) if kind == "member" else (title.lower(), "")
            line = TRIALS[kind].format(name=name, data=data, folder=folder)
            yield f"\n  kinformer train {line}"
    home = getattr(page.main[0][1], "__module__", "") if page.main and not page.public and not is_own_file else ""
    if page.public:
        yield f"\n  from kinformer import {page.heading.split('.')[1]}"
    elif home and not page.heading.startswith("members/"):
        yield f"\n  from {home} import {', '.join(title for title, _ in page.main)}"
    if home and (text := next(filter(None, map(_example_source, page.examples)), "")):
        yield f"  {text}"


def _data(page: Page) -> str:
    """The --data value of a command that trains the member of a page."""
    reads = getattr(page.examples[0](), "reads", "text") if page.examples else "text"
    return "text=PATH" if reads in ("text", "masked") else form_of(reads)


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


def task_lines(task: Task) -> Iterator[str]:
    """Yield lines about a task: largest row, accuracy of guessing, and 3 rows that never change.

    task: the task.
    """
    rng = numpy.random.default_rng(0)
    yield (
        f"rows of at most {task.width:,} symbols; ^ marks the answers; guessing has accuracy {task.chance_accuracy:.3f}"
    )
    for _ in range(SHOWN):
        row = task.row(rng)
        text, marks = row.text.decode(), "".join("^" if mark else " " for mark in row.answer_mask)
        yield ""
        for first in range(0, len(text), ROW_WIDTH):
            yield f"  {text[first : first + ROW_WIDTH]}"
            if markers := marks[first : first + ROW_WIDTH].rstrip():
                yield f"  {markers}"


TEXT = "ansi"


def environment_lines(env: Any) -> Iterator[str]:
    """Yield lines about an environment: its spaces and, if it renders text, 3 steps of random actions.

    env: the environment; the episode is the same each time.
    """
    spaces = f"observations: {env.observation_space}; actions: {env.action_space}"
    draws = TEXT in env.metadata.get("render_modes", ())
    yield f"{spaces}; random steps with their rewards" if draws else spaces
    if not draws:
        return
    env.unwrapped.render_mode = TEXT
    env.action_space.seed(0)
    env.reset(seed=0)
    yield ""
    yield from _render_lines(env, "")
    for _ in range(SHOWN):
        action = env.action_space.sample()
        _, reward, over, cut, _ = env.step(action)
        yield ""
        yield from _render_lines(env, f"   action {action}, reward {reward:g}")
        if over or cut:
            return


def _render_lines(env: Any, behind: str) -> Iterator[str]:
    """The lines that an environment renders; `behind` is added to the first."""
    for n, line in enumerate(str(env.render()).splitlines()):
        yield f"  {line}{behind if n == 0 else ''}"
