"""`kinformer check FILE`: every law over a part or member of your own."""

from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.cost.growth import Growth
    from kinformer.laws.support.judging import Judged, Verdict
    from kinformer.laws.support.own import Own

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

    from kinformer.core.keywords import nearest
    from kinformer.lab.cost.growth import Growth
    from kinformer.lab.errors import from_user
    from kinformer.laws.check import TimeIsUp, limited, verdicts
    from kinformer.laws.support.judging import laws
    from kinformer.laws.support.own import Unreadable, read

    for name in law or ():
        if name not in laws():
            raise UserError(f"there is no law {name!r}{nearest(name, laws())}")
    report = CheckReport(Console(soft_wrap=True, highlight=False, markup=False))
    try:
        with limited(seconds), from_user(Unreadable):
            own = read(file)
    except TimeIsUp as error:
        raise UserError(f"{file} is not imported and its examples not built in {seconds:g} s") from error
    report.say(f"{_headline(own)}\n", "bold")
    judged: list[Verdict] = []
    growth = Growth()
    with report.console.status("") as status:
        for verdict in verdicts(own.examples, tuple(law or laws()), seconds, status.update):
            judged.append(verdict)
            report.verdict(verdict)
        if not law and not any(each.law == "runs" and each.failed for each in judged):
            status.update("time and memory")
            growth = _growth(own.examples[0], seconds)
    for line in _unjudged(judged):
        report.say(line)
    drawings = _drawings(own)
    report.drawings(drawings)
    for hint in _hints(own):
        report.say(f"\nhint: {hint}", "yellow")
    for line in ("", *growth.lines()) if growth.lines() else ():
        report.say(line)
    report.say(f"\n{_sum(judged)}", "bold")
    if out is not None:
        _save(out, report, drawings, growth)
    if not law and all(each.end == "nothing" for each in judged):
        raise UserError(f"no law judges anything of {file}; let EXAMPLES hold a part that it works in")
    return FAILED if any(each.failed for each in judged) else 0


class CheckReport:
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


def _headline(own: "Own") -> str:
    from kinformer.laws.support.own import counted, title

    titles = dict.fromkeys(f"{title(example)}, {counted(example.kind)}" for example in own.examples)
    count = len(own.examples)
    return f"{own.path}: {'; '.join(titles)}; {count} example{'s' if count > 1 else ''}"


def _drawings(own: "Own") -> dict[str, tuple[Any, int]]:
    """By label, the patterns that examples are or hold, and a head of each that reads as no head before it."""
    from kinformer.cli.support.inside import patterns_in
    from kinformer.core.pattern import Pattern
    from kinformer.core.task import Task

    drawings: dict[str, tuple[Any, int]] = {}
    for example in own.examples:
        part = example.make()
        if isinstance(part, ModuleType | Task):
            continue  # an executor, a task
        for pattern in [part] if isinstance(part, Pattern) else patterns_in(part):
            for h in _heads(pattern):
                drawings.setdefault(f"{pattern!r}, head {h}" if h else repr(pattern), (pattern, h))
    return drawings


def _heads(pattern: Any) -> list[int]:
    """The first heads, up to one that reads as head 0 does; none where it cannot be drawn, which the laws will say."""
    try:
        first, *rest = (pattern.show(LENGTH, h=h) for h in range(HEADS))
    except Exception:
        return []
    return list(range(1 + len(list(takewhile(lambda drawing: drawing != first, rest)))))


def _hints(own: "Own") -> list[str]:
    """What the file's own patterns could say more sharply."""
    from kinformer.cli.support.hints import sharper_hints

    try:
        return [hint for example in own.examples if example.kind == "pattern" for hint in sharper_hints(example.make())]
    except Exception:
        return []  # what is wrong with them is for the laws to say


def _growth(example: "Judged", seconds: float) -> "Growth":
    from kinformer.lab.cost.growth import Growth, measure
    from kinformer.laws.check import TimeIsUp, limited
    from kinformer.laws.support.forms import forms
    from kinformer.laws.support.subject import Subject

    try:
        with limited(seconds):
            return measure(next(form for form in forms(example.make(), example.make) if isinstance(form, Subject)))
    except (TimeIsUp, Exception):
        return Growth()  # the laws have said what is wrong with it


def _unjudged(verdicts: list["Verdict"]) -> list[str]:
    """Where laws that hold did not look, and why: a line for each reason."""
    places: dict[str, list[str]] = {}
    for verdict in verdicts:
        for place, why in verdict.unjudged if verdict.end == "holds" else ():
            places.setdefault(f"{place}: {why}" if place else why, []).append(verdict.law)
    lines = [f"not judged: {why} ({', '.join(laws)})" for why, laws in places.items()]
    return ["", *lines] if lines else []


def _sum(verdicts: list["Verdict"]) -> str:
    wrong = [verdict.law for verdict in verdicts if verdict.end == "broken"]
    slow = [verdict.law for verdict in verdicts if verdict.end == "slow"]
    good = sum(verdict.end == "holds" for verdict in verdicts)
    declared = [verdict.law for verdict in verdicts if verdict.end == "declared"]
    nothing = [verdict.law for verdict in verdicts if verdict.end == "nothing"]
    text = f"{good} law{'s' if good != 1 else ''} hold{'' if good != 1 else 's'}"
    text += f", {len(declared)} declared in breaks ({', '.join(declared)})" if declared else ""
    text += f", {len(wrong)} broken: {', '.join(wrong)}" if wrong else ", none is broken"
    text += f", {len(slow)} without an answer: {', '.join(slow)}" if slow else ""
    return text + (f", nothing to judge: {', '.join(nothing)}" if nothing else "")


def _save(out: Path, report: CheckReport, drawings: dict[str, tuple[Any, int]], growth: "Growth") -> None:
    from kinformer.checkpoint.files import write
    from kinformer.cli.support.check_report import check_plots
    from kinformer.cli.support.training import make_folder
    from kinformer.pages.plots import save_plots

    make_folder(out)
    with from_user(OSError, code=FAILED):
        write(out / "report.txt", ("\n".join(report.lines) + "\n").encode())
    if drawings or growth.lines():
        matrices = {label: pattern.matrix(LENGTH, h=h) for label, (pattern, h) in drawings.items()}
        save_plots(check_plots(matrices, growth), "", out / "picture.png", size=(4, 4))
