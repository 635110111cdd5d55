"""`kinformer check FILE`: every law over a part or member of your own."""

from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinformer.cli.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.cli.support.growth import Growth
    from kinformer.laws.support.judging import JudgedPart, Verdict
    from kinformer.laws.support.parts_file import PartsFile

MARKS = {"holds": ("✓", "green"), "broken": ("✗", "red"), "slow": ("✗", "red"), "declared": ("~", "yellow")}
LENGTH, HEADS = 24, 4


def check(
    file: Annotated[str, typer.Argument(help="A Python file with EXAMPLES; or file.py:Name, for one of its parts.")],
    law: Annotated[list[str] | None, typer.Option(help="One law alone; may come several times.")] = None,
    seconds: Annotated[float, typer.Option(help="The longest that one law may take.", min=0.1)] = 60.0,
    out: Annotated[Path | None, typer.Option(help="A folder for report.txt and pictures.")] = None,
) -> int:
    """Judge a part or member of your own by every law.

    A verdict per law with the smallest example that fails, the patterns drawn, and time and memory against length.
    The exit code is 0 where all hold, 1 where one does not, 2 where the file cannot be judged, or no law judges it.
    """
    from rich.console import Console

    from kinformer.cli.errors import from_user
    from kinformer.cli.support.growth import Growth
    from kinformer.core.keywords import nearest
    from kinformer.laws.check import TimeIsUp, limit_time, verdicts
    from kinformer.laws.support.judging import laws
    from kinformer.laws.support.parts_file import Unreadable, read_parts

    for name in law or ():
        if name not in laws():
            raise UserError(f"there is no law {name!r}{nearest(name, laws())}")
    report = Report(Console(soft_wrap=True, highlight=False, markup=False))
    try:
        with limit_time(seconds), from_user(Unreadable):
            own = read_parts(file)
    except TimeIsUp as error:
        raise UserError(f"{file} is not imported and its examples not built in {seconds:g} s") from error
    report.say(f"{_headline(own)}\n", "bold")
    found: list[Verdict] = []
    growth = Growth()
    with report.console.status("") as status:
        for verdict in verdicts(own.examples, tuple(law or laws()), seconds, status.update):
            found.append(verdict)
            report.verdict(verdict)
        if not law and not any(one.law == "runs" and one.failed for one in found):
            status.update("time and memory")
            growth = _growth(own.examples[0], seconds)
    for line in _unjudged(found):
        report.say(line)
    drawings = _drawings(own)
    report.drawings(drawings)
    for hint in _hints(own):
        report.say(f"\nhint: {hint}", "yellow")
    for line in ("", *growth.lines()) if growth.lines() else ():
        report.say(line)
    report.say(f"\n{_sum(found)}", "bold")
    if out is not None:
        _save(out, report, drawings, growth)
    if not law and all(one.end == "nothing" for one in found):
        raise UserError(f"no law judges anything of {file}; let EXAMPLES hold a part that it works in")
    return FAILED if any(one.failed for one in found) else 0


class Report:
    """Lines for the terminal as they come, kept for a file."""

    def __init__(self, console: Any) -> None:
        self.console = console
        self.lines: list[str] = []

    def say(self, text: str, style: str | None = None) -> None:
        """Print it, and keep it."""
        self.console.print(text, style=style)
        self.lines.append(text)

    def verdict(self, verdict: "Verdict") -> None:
        """A line for a law."""
        mark, style = MARKS.get(verdict.end, ("-", None))
        declared = "breaks: " if verdict.end == "declared" else ""
        self.say(f"{mark} {verdict.law:<12}{declared}{verdict.text}", style)

    def drawings(self, patterns: dict[str, tuple[Any, int]]) -> None:
        """The patterns, below the verdicts, so that a finding stands in the first lines."""
        for label, (pattern, h) in patterns.items():
            self.say(f"\n{label}: a line is a query, a column is a key, from 0 to {LENGTH - 1}")
            self.say("\n".join(f"    {line}" for line in pattern.show(LENGTH, h=h).splitlines()))


def _headline(own: "PartsFile") -> str:
    from kinformer.laws.support.parts_file import title_of, with_article

    titles = dict.fromkeys(f"{title_of(one)}, {with_article(one.kind)}" for one in own.examples)
    count = len(own.examples)
    return f"{own.path}: {'; '.join(titles)}; {count} example{'s' if count > 1 else ''}"


def _drawings(own: "PartsFile") -> dict[str, tuple[Any, int]]:
    """By label, the patterns that examples are or hold, and a head of each that reads as no head before it."""
    from kinformer.cli.support.inside import inside
    from kinformer.core.pattern import Pattern
    from kinformer.core.task import Task

    found: dict[str, tuple[Any, int]] = {}
    for one in own.examples:
        made = one.make()
        if isinstance(made, ModuleType | Task):
            continue  # an executor, a task
        for pattern in [made] if isinstance(made, Pattern) else inside(made):
            for h in _heads(pattern):
                found.setdefault(f"{pattern!r}, head {h}" if h else repr(pattern), (pattern, h))
    return found


def _heads(pattern: Any) -> list[int]:
    """The first heads, up to one that reads as head 0 does; none where it cannot be drawn, which the laws will say."""
    try:
        first, *others = (pattern.show(LENGTH, h=h) for h in range(HEADS))
    except Exception:
        return []
    return list(range(1 + len(list(takewhile(lambda shown: shown != first, others)))))


def _hints(own: "PartsFile") -> list[str]:
    """What the file's own patterns could say more sharply."""
    from kinformer.cli.support.hints import hints

    try:
        return [hint for one in own.examples if one.kind == "pattern" for hint in hints(one.make())]
    except Exception:
        return []  # what is wrong with them is for the laws to say


def _growth(one: "JudgedPart", seconds: float) -> "Growth":
    from kinformer.cli.support.growth import Growth, measure
    from kinformer.laws.check import TimeIsUp, limit_time
    from kinformer.laws.support.forms import forms
    from kinformer.laws.support.subject import Subject

    try:
        with limit_time(seconds):
            return measure(next(form for form in forms(one.make(), one.make) if isinstance(form, Subject)))
    except (TimeIsUp, Exception):
        return Growth()  # the laws have said what is wrong with it


def _unjudged(found: list["Verdict"]) -> list[str]:
    """Where laws that hold did not look, and why: a line for each reason."""
    places: dict[str, list[str]] = {}
    for one in found:
        for place, why in one.unjudged if one.end == "holds" else ():
            places.setdefault(f"{place}: {why}" if place else why, []).append(one.law)
    lines = [f"not judged: {why} ({', '.join(laws)})" for why, laws in places.items()]
    return ["", *lines] if lines else []


def _sum(found: list["Verdict"]) -> str:
    wrong = [one.law for one in found if one.end == "broken"]
    slow = [one.law for one in found if one.end == "slow"]
    good = sum(one.end == "holds" for one in found)
    declared = [one.law for one in found if one.end == "declared"]
    nothing = [one.law for one in found if one.end == "nothing"]
    text = f"{good} law{'s' if good != 1 else ''} hold{'' if good != 1 else 's'}"
    text += f", {len(declared)} declared in breaks ({', '.join(declared)})" if declared else ""
    text += f", {len(wrong)} broken: {', '.join(wrong)}" if wrong else ", none is broken"
    text += f", {len(slow)} without an answer: {', '.join(slow)}" if slow else ""
    return text + (f", nothing to judge: {', '.join(nothing)}" if nothing else "")


def _save(out: Path, report: Report, drawings: dict[str, tuple[Any, int]], growth: "Growth") -> None:
    from kinformer.checkpoint.files import write
    from kinformer.cli.support.judged import plots
    from kinformer.cli.support.training import make_folder
    from kinformer.pages.plots import save_plots

    make_folder(out)
    with from_user(OSError, code=FAILED):
        write(out / "report.txt", ("\n".join(report.lines) + "\n").encode())
    if drawings or growth.lines():
        matrices = {label: pattern.matrix(LENGTH, h=h) for label, (pattern, h) in drawings.items()}
        save_plots(plots(matrices, growth), "", out / "picture.png", size=(4, 4))
