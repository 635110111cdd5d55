"""Pages of ideas in a terminal: text, figures, costs, and links to other ideas."""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from shlex import quote

from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax

from kinformer.cli.support.console import plain_console
from kinformer.cli.support.topic_list import width_of
from kinformer.lab.claims.support.claim_report import measured_verdict
from kinformer.pages.idea import EXAMPLE_NOTE, SECTIONS, Idea, all_ideas, alternatives, followers
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.diagram_terminal import diagram_lines
from kinformer.pages.pictures.support.picture_panels import Picture
from kinformer.pages.pictures.support.terminal import lines

MOST = 8  # ideas that a line names
CODE = re.compile(r"^```(\w+)\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
LAST = ("Sources", "Answers")  # sections after all others, so that the answers do not stand beside their questions


def print_idea(idea: Idea, figures: Sequence[Picture | Diagram], console: Console) -> None:
    """Print the page of an idea, with its figures in the section "Picture".

    idea: the idea.
    figures: its figures.
    console: the console to print on.
    """
    console.print(idea.title, style="bold")
    _print_links("read before", idea.before, console)
    for title in (*(title for title in SECTIONS if title not in LAST), *LAST):
        console.print(f"\n{title}", style="bold underline")
        if title == "Worked example":
            console.print(EXAMPLE_NOTE, style="dim")
        _print_text(idea.sections[title], console)
        if title == "Picture":
            print_figures(figures, console)
        if title == "Cost":
            for line in cost_lines(idea, width_of(console)):
                console.print(line)
    console.print()
    _print_links("builds on it", followers(idea), console)
    _print_links("compare", alternatives(idea), console)
    for command in idea.commands:
        claim = command.removeprefix("kinformer claim ")
        verdict = "" if claim == command else f"  # our measurement: {measured_verdict(claim)}"
        console.print(f"try: {command}{verdict}")


def print_figures(figures: Sequence[Picture | Diagram], console: Console) -> None:
    """Print pictures and diagrams, with an empty line before each.

    figures: the pictures and diagrams.
    console: the console to print on.
    """
    width = width_of(console)
    for figure in figures:
        console.print()
        for line in diagram_lines(figure, width) if isinstance(figure, Diagram) else lines(figure, width):
            console.print(line)


def _print_links(words: str, names: Sequence[str], console: Console) -> None:
    if names:
        console.print(
            f"{words}: " + ", ".join(f"kinformer show {quote(name)}" for name in names if name in all_ideas())
        )


def cost_lines(idea: Idea, width: int) -> Iterator[str]:
    """Yield the lines of the cost table of an idea.

    idea: the idea.
    width: most characters in a line.
    """
    cost = idea.cost
    yield ""
    yield from textwrap.wrap(f"{cost.unit}: {cost.where}", width)
    for name, values in zip(("tokens", "this", "softmax"), zip(*cost.texts(), strict=True), strict=True):
        yield f"  {name:<9}" + "".join(f"{value:>14}" for value in values)
    yield from textwrap.wrap(f"layers until all positions connect: {cost.layers}", width)


def _print_text(text: str, console: Console) -> None:
    """Print Markdown without spaces at the ends of lines; code and its output are printed as they are.

    Lines of code are never wrapped, because a comment that continues on a second line would become code.
    """
    first, *rest = CODE.split(text)
    _print_prose(first, console)
    for language, code, prose in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        console.print()
        console.print(Syntax("", language, theme="ansi_dark").highlight(code), soft_wrap=True, end="")
        if prose.strip():
            console.print()
            _print_prose(prose, console)


def _print_prose(text: str, console: Console) -> None:
    width = width_of(console)
    kind = console.color_system if console.is_terminal else None
    drawn = plain_console(file=io.StringIO(), width=width, force_terminal=console.is_terminal, color_system=kind)
    drawn.print(Markdown(text, code_theme="ansi_dark"))
    for line in drawn.file.getvalue().rstrip("\n").split("\n"):  # type: ignore[attr-defined]
        console.out(line.rstrip(), highlight=False)
