"""The report of `kinformer check`: verdicts on laws, drawings of attention patterns, hints and costs."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kinformer.checkpoint.atomic_files import write
from kinformer.cli.support.console import plain_console
from kinformer.cli.support.run_folder import make_folder
from kinformer.core.pattern import Pattern
from kinformer.core.task import Task
from kinformer.lab.cost.growth import Growth, growth_text, measure
from kinformer.lab.errors import FAILED, UserError, from_user
from kinformer.lab.member_choice import find_member_function
from kinformer.lab.plot import Plot, PlotLine
from kinformer.laws.check import TimeIsUp, check_law_names, limit_time, verdicts
from kinformer.laws.foreign.support.black_box import CannotRun
from kinformer.laws.pattern import matrix
from kinformer.laws.support.layer_forms import forms
from kinformer.laws.support.parts_file import ABOUT_CODE, PartsFile, Unreadable, read_parts, title_of, with_article
from kinformer.laws.support.subject import Subject
from kinformer.laws.support.verdicts import JudgedPart, Verdict
from kinformer.pages.plots import save_plots

MOST = 4  # patterns


def check_plots(patterns: dict[str, Tensor], growth: Growth) -> list[Plot]:
    """Return the plots of a report of `kinformer check`: attention patterns, then time and memory.

    patterns: the matrices of attention patterns by their title; the first 4 are plotted.
    growth: the time and memory that were measured at several row lengths; without measurements only the patterns are
        plotted.
    """
    images = [Plot(name, "key", "query", image=matrix.tolist()) for name, matrix in [*patterns.items()][:MOST]]
    if not growth.lines():
        return images
    title, xlabel = growth_text(growth.seconds, "time"), "tokens in a row"
    time = [PlotLine(growth.lengths, growth.seconds, "", "o-")]
    space = [PlotLine(growth.lengths, growth.saved_bytes, "saved for gradients", "o-")]
    if growth.state:
        space.append(PlotLine(growth.lengths, growth.state, "state for decoding", "s-"))
    axes = ((title, "seconds (forward and backward)", time), ("", "bytes", space))
    return images + [Plot(name, xlabel, unit, lines, log="xy", ticks=growth.lengths) for name, unit, lines in axes]


MARKS = {"holds": ("✓", "green"), "broken": ("✗", "red"), "slow": ("✗", "red"), "declared": ("~", "yellow")}
LENGTHS, HEADS = (24, 32, 48, 64), 4  # positions of a drawing: the first number at which a key is left out
LONGER = (128, 256, 512, 1_024, 2_048)  # positions that are too many to draw
HINT_LENGTH = 64  # positions on which a pattern is compared with its own reach() and capacity()


def judge_target(target: str, member: str | None, law: list[str] | None, seconds: float, out: Path | None) -> int:
    """Test a file or a trained model by the laws, print a report, and return the exit code.

    target: path of a Python file with EXAMPLES, FILE.py:Name for one of its parts, or the folder of a trained model.
    member: the user's own member that built the trained model, as FILE.py:NAME; None for a member of the library.
    law: names of the laws to test; all laws if None or empty.
    seconds: time limit for the import, for each law and for the measurement of time and memory.
    out: folder for report.txt and picture.png; no files are written if None.

    A law is a property that parts (building blocks of models) are tested for. Returns 1 if a law is broken or its test
    ran out of time, otherwise 0; a learnability probe never counts. Errors: UserError for an unknown law, a file or
    examples that cannot be read in time, and examples that no law applies to.
    """
    with from_user(ValueError):
        check_law_names(law or ())
    report = CheckReport(plain_console(soft_wrap=True))
    try:
        with limit_time(seconds), from_user(Unreadable, LookupError, CannotRun):
            parts_file = read_parts(target, find_member_function(member) if member else None)
            names = parts_file.laws_to_test(law or ())
    except TimeIsUp as error:
        raise UserError(
            f"{target} took more than {seconds:g} s to import and to build its examples. Give --seconds a larger number"
        ) from error
    report.say(f"{_headline(parts_file)}\n", "bold")
    judged: list[Verdict] = []
    growth = Growth()
    with report.console.status("") as status:
        for verdict in verdicts(parts_file.examples, names, seconds, status.update):
            judged.append(verdict)
            if verdict.end != "nothing" and not verdict.is_probe:
                report.verdict(verdict)
        is_own = not parts_file.examples[0].is_foreign
        if is_own and not law and not any(each.law == "runs" and each.is_failure for each in judged):
            status.update("time and memory")
            growth = _measure_growth(parts_file.examples[0], seconds)
    report.probes([verdict for verdict in judged if verdict.is_probe and verdict.end != "nothing"])
    for line in _untested_lines(judged, parts_file):
        report.say(line)
    drawings = _draw_patterns(parts_file)
    report.drawings(drawings)
    for hint in _hints_for(parts_file):
        report.say(f"\nhint: {hint}", "yellow")
    for line in ("", *growth.lines()) if growth.lines() else ():
        report.say(line)
    report.say(f"\n{_summary(judged)}", "bold")
    if out is not None:
        _save_report(out, report, drawings, growth)
    if not law and all(each.end == "nothing" for each in judged):
        raise UserError(
            f"no law applies to the examples of {target}. Add an example that uses the part to EXAMPLES; a model is a "
            "subclass of kf.Model, such as kf.LM"
        )
    return FAILED if any(each.is_failure for each in judged) else 0


class CheckReport:
    """Report of `kinformer check`, which prints each line at once and keeps all lines for report.txt.

    console: the rich console to print on.
    """

    def __init__(self, console: Any) -> None:
        self.console = console
        self.lines: list[str] = []

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line and keep it."""
        self.console.print(text, style=style)
        self.lines.append(text)

    def verdict(self, verdict: Verdict) -> None:
        """Print the result of testing one law: a mark, the name of the law and a sentence."""
        mark, style = MARKS.get(verdict.end, ("-", None))
        declared = "breaks: " if verdict.end == "declared" else ""
        self.say(f"{mark} {verdict.law:<20}{declared}{verdict.text}", style)

    def probes(self, verdicts: list["Verdict"]) -> None:
        """Print the results of learnability probes, which never fail a check.

        verdicts: the results.
        """
        if not verdicts:
            return
        self.say("\nlearnability probe: a tiny copy of the model is trained; a finding does not fail the check", "bold")
        for verdict in verdicts:
            if verdict.end in ("broken", "slow"):
                self.say(f"? {verdict.law:<20}{verdict.text}", "yellow")
                self.say("  Note: a model that trains well may need another learning rate, width or number of steps.")
            else:
                self.verdict(verdict)

    def drawings(self, patterns: dict[str, tuple[Any, int]]) -> None:
        """Draw attention patterns with characters.

        patterns: by title, a pattern and the number of the head to draw.

        The drawings follow the results of the laws, so that broken laws stand in the first lines.
        """
        for label, (pattern, h) in patterns.items():
            length, left_out = _drawn_length(pattern, h)
            note = f"; in a row of {left_out:,} positions it leaves out keys" if left_out and left_out > length else ""
            self.say(f"\n{label}: each line is a query and each column is a key, from 0 to {length - 1}{note}")
            self.say("\n".join(f"    {line}" for line in pattern.show(length, h=h).splitlines()))


def _headline(parts_file: PartsFile) -> str:
    if parts_file.module is None:
        return f"{parts_file.path}: a trained {title_of(parts_file.examples[0])}"
    titles = dict.fromkeys(f"{title_of(example)}, {with_article(example.kind)}" for example in parts_file.examples)
    count = len(parts_file.examples)
    return f"{parts_file.path}: {'; '.join(titles)}; {count} example{'s' if count > 1 else ''}"


def _draw_patterns(parts_file: PartsFile) -> dict[str, tuple[Any, int]]:
    """The patterns of all examples by label, each with a head to draw; `_heads` selects the heads."""
    drawings: dict[str, tuple[Any, int]] = {}
    for example in parts_file.examples:
        part = example.make()
        if isinstance(part, ModuleType | Task):
            continue  # executors and tasks have no pattern
        for pattern in [part] if isinstance(part, Pattern) else patterns_in(part):
            for h in _heads(pattern):
                drawings.setdefault(f"{pattern!r}, head {h}" if h else repr(pattern), (pattern, h))
    return drawings


def _heads(pattern: Any) -> list[int]:
    """The heads before the first that equals head 0, at most 4; none if drawing fails, which the laws report."""
    try:
        first, *rest = (pattern.show(LENGTHS[0], h=h) for h in range(HEADS))
    except Exception:
        return []
    return list(range(1 + len(list(takewhile(lambda drawing: drawing != first, rest)))))


def _drawn_length(pattern: Any, head: int) -> tuple[int, int | None]:
    """The number of positions to draw, and the number at which the pattern leaves out a key; None if it is unknown.

    A window of 31 keys would look like all keys on 24 positions.
    """
    longest = LENGTHS if pattern.tensors() else (*LENGTHS, *LONGER)
    left_out = next((length for length in longest if _leaves_out_keys(pattern, length, head)), None)
    return left_out if left_out in LENGTHS else LENGTHS[0], left_out


def _leaves_out_keys(pattern: Any, length: int, head: int) -> bool:
    """True if a key is left out, other than all later keys."""
    read = pattern.matrix(length, h=head)
    allowed = torch.ones_like(read) if read.triu(1).any() else torch.ones_like(read).tril()
    return bool((allowed & ~read).any())


def _hints_for(parts: PartsFile) -> list[str]:
    """Hints on how the patterns of a file could declare tighter bounds."""
    try:
        return [
            hint for example in parts.examples if example.kind == "pattern" for hint in sharper_hints(example.make())
        ]
    except Exception:
        return []  # the laws report what is wrong with them


def _measure_growth(example: JudgedPart, seconds: float) -> Growth:
    try:
        with limit_time(seconds):
            return measure(next(form for form in forms(example.make(), example.make) if isinstance(form, Subject)))
    except (TimeIsUp, Exception):
        return Growth()  # the laws have reported what is wrong with it


def _untested_lines(verdicts: list["Verdict"], parts_file: PartsFile) -> list[str]:
    """The laws, and the uses of a part, that were not tested: a line for each reason."""
    cases: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.end == "nothing":
            cases.setdefault(verdict.text, []).append(verdict.law)
        for place, why in verdict.unjudged if verdict.end == "holds" else ():
            cases.setdefault(why, []).append(f"{verdict.law} ({place})" if place else verdict.law)
    if parts_file.is_own_model:
        cases["these laws are about the code of a member; check its file"] = [*ABOUT_CODE]
    lines = [f"- {', '.join(dict.fromkeys(laws))}: {why}" for why, laws in cases.items()]
    return ["", "not tested, and why:", *lines] if lines else []


def _summary(verdicts: list["Verdict"]) -> str:
    strict = [verdict for verdict in verdicts if not verdict.is_probe]
    wrong = [verdict.law for verdict in strict if verdict.end == "broken"]
    slow = [verdict.law for verdict in strict if verdict.end == "slow"]
    probes = [verdict.law for verdict in verdicts if verdict.is_probe and verdict.end in ("broken", "slow")]
    good = sum(verdict.end == "holds" for verdict in strict)
    declared = [verdict.law for verdict in verdicts if verdict.end == "declared"]
    nothing = [verdict.law for verdict in verdicts if verdict.end == "nothing"]
    text = f"{good} law{'s' if good != 1 else ''} hold{'' if good != 1 else 's'}"
    text += f", {len(declared)} declared as broken in breaks ({', '.join(declared)})" if declared else ""
    text += f", {len(wrong)} broken: {', '.join(wrong)}" if wrong else ", none is broken"
    text += f", {len(slow)} out of time: {', '.join(slow)}" if slow else ""
    text += f", {len(nothing)} not tested: {', '.join(nothing)}" if nothing else ""
    return text + (f"; note on learnability: {', '.join(probes)}" if probes else "")


def _save_report(out: Path, report: CheckReport, drawings: dict[str, tuple[Any, int]], growth: Growth) -> None:
    make_folder(out)
    with from_user(OSError, code=FAILED):
        write(out / "report.txt", ("\n".join(report.lines) + "\n").encode())
    if drawings or growth.lines():
        matrices = {
            label: pattern.matrix(_drawn_length(pattern, h)[0], h=h) for label, (pattern, h) in drawings.items()
        }
        save_plots(check_plots(matrices, growth), "", out / "picture.png", size=(4, 4))


def sharper_hints(pattern: Pattern) -> Iterator[str]:
    """Yield a hint for each bound of an attention pattern that is looser than necessary.

    pattern: the pattern. Its methods reach() and capacity() return the bounds, which are compared with the allowed keys
        on 64 positions. A pattern that holds tensors of one batch gives no hints.
    """
    if pattern.tensors():
        return
    read = matrix(pattern, HINT_LENGTH).any(0).any(0)
    at = torch.arange(HINT_LENGTH)
    distance = torch.where(read, at[:, None] - at, 0)
    far, ahead = int(distance.max()), -int(distance.min())
    told_far, told_ahead = pattern.reach()
    if ahead == 0 and told_ahead > 0:
        yield (
            f"{pattern} reads no later key, but its reach() returns {told_ahead} keys ahead. Return 0 to allow "
            "decoding without Causal()"
        )
    if far < HINT_LENGTH // 2 < told_far:
        yield (
            f"{pattern} reads at most {far} keys back, but its reach() returns {told_far}. A smaller reach() reads "
            "fewer keys"
        )
    elif far < HINT_LENGTH // 2 and ahead == 0 and pattern.capacity(HINT_LENGTH) == HINT_LENGTH:
        yield (
            f"{pattern} reads at most {far} keys back, but its capacity() is the whole row. Define live() and "
            "capacity() to cache fewer keys"
        )


def patterns_in(model: Any) -> dict[Any, int]:
    """Count the attention patterns that a module and its submodules hold as attributes.

    model: the module.

    Returns, for each pattern, the number of attributes that hold it.
    """
    count: dict[Any, int] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Pattern):
                count[value] = count.get(value, 0) + 1
    return count
