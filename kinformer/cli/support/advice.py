"""Which members to try for a task, on rows of a length, within some memory: ranked, with what is not known."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinformer.cli.errors import UserError
from kinformer.cli.support.afford import memory
from kinformer.cli.support.docs import doc
from kinformer.cli.support.members import ROWS, Taken, at_length, model_of, quality, reads, table, taken, timed
from kinformer.cli.support.progress import progress
from kinformer.cli.support.training import Job, fitting, readable
from kinformer.cli.support.trials import length_of
from kinformer.cli.support.wanted import folder_name
from kinformer.core.discover import members
from kinformer.core.keywords import as_texts
from kinformer.lab.cost.cost import KEPT
from kinformer.lab.cost.resident_memory import before_training
from kinformer.lab.data.kind import Data
from kinformer.lab.data.resolve import DataSource
from kinformer.lab.train.settings import Settings
from kinformer.pages.units import size

READS = {"lm": "text", "mask": "masked", "classify": "labelled"}  # by task, what a model reads that can do it
BASELINE = {"lm": "gpt", "mask": "bert", "classify": "bert_classifier"}  # what every other one is compared with
UNITS = {
    "": 1,
    **{f"{letter}{i}B": (1024 if i else 1000) ** n for n, letter in enumerate("KMGT", 1) for i in ("", "I")},
}
TRIED, MINUTES = 4, 3  # members of the comparison to begin with, and minutes of each


@dataclass(frozen=True)
class Fit:
    """A member that can do the task: what it takes, and the bytes of a process that trains it on such a batch.

    faster: how many times as fast as the baseline a step of its blocks was, behind the length at which; None if never.
    """

    name: str
    taken: Taken
    process: float
    most: int
    faster: tuple[int, float] | None

    def told(self) -> dict[str, Any]:
        """It as JSON."""
        its = self.taken
        return {
            "member": its.one.text,
            "parameters": its.parameters,
            "process_bytes": round(self.process),
            "largest_batch": self.most,
            "step_flops_of_a_row": round(its.row_flops),
            "state_bytes": None if its.state_bytes is None else round(its.state_bytes),
            "faster_than_baseline": self.faster,
            "measured": dict(quality(self.name)),
        }


@dataclass(frozen=True)
class Advice:
    """What fits, the fewest multiplications first, what is too large or refuses, what is not known, what to try.

    tried: members of the comparison to begin with, each with why it is one of them.
    """

    task: str
    job: Job
    length: int
    batch: int
    room: int
    fits: list[Fit]
    tried: list[tuple[Fit, str]]
    large: list[Fit]
    refused: dict[str, str]
    unknown: list[str]
    commands: list[str]

    def told(self) -> dict[str, Any]:
        """It as JSON."""
        about = {"task": self.task, "data": self.job.data.name, "length": self.length, "batch": self.batch}
        return {
            **about,
            "memory_bytes": self.room,
            "members": [one.told() for one in self.fits],
            "too_large": [one.told() for one in self.large],
            "refused": self.refused,
            "not_known": self.unknown,
            "tried": {one.name: why for one, why in self.tried},
            "commands": self.commands,
        }


def room(text: str | None) -> int:
    """The bytes that are written as "8GB" or "512MiB"; those that are free here unless given."""
    if text is None:
        if (there := memory()) is None:
            raise UserError("this machine does not tell its memory; give --memory, such as 8GB")
        return there
    found = re.fullmatch(r"(\d{1,12}(\.\d{1,12})?) ?([a-z]*)", text.strip(), re.IGNORECASE | re.ASCII)
    unit = None if found is None else UNITS.get(found[3].upper())
    if found is None or unit is None or not (count := int(float(found[1]) * unit)):
        raise UserError(f"--memory takes a number of bytes above 0, such as 8GB or 512MB, and {text!r} came")
    return count


def able_to(task: str) -> list[str]:
    """The members that can do a task, all of them; UserError where no member can."""
    wanted = READS[task]
    able = [name for name in members() if reads(name) == wanted]
    if not able:
        raise UserError(
            f"no member reads {wanted} data yet, so there is nothing to rank for --task {task}; write one of your own "
            f"with reads={wanted!r}"
        )
    return able


def advised(task: str, able: list[str], job: Job, source: DataSource, bytes_there: int) -> Advice:
    """Rank what can do a task on the data of a job, and say what to try."""
    settings = job.settings
    length = length_of(job)
    before = before_training() or 0  # and not what is built to ask its sizes
    found, refused = _asked(able, length, job.data)
    batch = settings.batch
    while batch > 1 and not any(_process(one, batch, before) <= bytes_there for one in found.values()):
        batch //= 2
    every = [
        Fit(
            name,
            one,
            _process(one, batch, before),
            _most(one, before, bytes_there),
            timed(name, length, BASELINE[task]),
        )
        for name, one in found.items()
    ]
    fits = sorted((one for one in every if one.process <= bytes_there), key=lambda one: one.taken.row_flops)
    large = sorted((one for one in every if one.process > bytes_there), key=lambda one: one.process)
    if not fits:
        least = f"; {large[0].taken.one.text} takes least, {size(large[0].process)}" if large else ""
        why = "" if large or not refused else f": {next(iter(refused.values()))}"
        raise UserError(
            f"no member fits: a row of {length:,} tokens is more than {size(bytes_there)} hold{least}{why}; "
            "give a smaller --length, or more --memory"
        )
    job = replace(job, settings=replace(settings, batch=batch))
    tried = list(_tried(task, fits, job, refused))
    fits = [one for one in fits if one.name not in refused]
    unknown = list(_unknown(fits, length, job, BASELINE[task]))
    commands = _commands([one for one, _ in tried], source, job.settings)
    return Advice(task, job, length, batch, bytes_there, fits, tried, large, refused, unknown, commands)


def _asked(able: list[str], length: int, data: Data) -> tuple[dict[str, Taken], dict[str, str]]:
    """What each member takes, and why others are left out."""
    found, refused = dict[str, Taken](), dict[str, str]()
    with progress("asking", len(able), "members") as hear:
        for number, name in enumerate(able):
            hear(number)
            try:
                found[name] = taken(fitting(at_length(name, length), data), length)
            except UserError as error:
                refused[name] = str(error)
    return found, refused


def _process(one: Taken, batch: int, before: int) -> float:
    return before + KEPT * one.peak(batch)


def _most(one: Taken, before: int, bytes_there: int) -> int:
    """The rows of the largest batch that fits."""
    return max(int((bytes_there - _process(one, 0, before)) // (KEPT * one.row_bytes)), 0)


def _tried(task: str, fits: list[Fit], job: Job, refused: dict[str, str]) -> Iterator[tuple[Fit, str]]:
    """What others are compared with, the best and the fastest that were measured, and the cheapest, if they read it."""
    seen = set[str]()
    for one, why in _ordered(BASELINE[task], fits):
        if one.name in seen:
            continue
        seen.add(one.name)
        try:
            readable(one.taken.one.text, model_of(one.taken.one), job)
        except UserError as error:
            refused[one.name] = str(error)
            continue
        yield one, why
        if len(seen - set(refused)) == TRIED:
            return
    if not seen - set(refused):
        raise UserError(next(iter(refused.values())))


def _ordered(baseline: str, fits: list[Fit]) -> Iterator[tuple[Fit, str]]:
    """Members as they are tried, some twice, with what speaks for each."""
    others = [one for one in fits if one.name != baseline]
    yield from ((one, "what others are compared with") for one in fits if one.name == baseline)
    for of in table()["quality"]:
        known = {one.name: of["members"][one.name]["mean"] for one in others if one.name in of["members"]}
        sign = 1 if of["metric"].startswith("bits") else -1
        for one in sorted((one for one in others if one.name in known), key=lambda one: sign * known[one.name])[:1]:
            yield one, f"the best that was measured beside it, {known[one.name]:.2f} {of['metric']}"
    faster = {one.name: one.faster for one in others if one.faster is not None and one.faster[1] > 1}
    for one in sorted((one for one in others if one.name in faster), key=lambda one: -faster[one.name][1])[:1]:
        at, ratio = faster[one.name]
        yield one, f"the fastest that was measured beside it, {ratio:.1f} times as fast at {at:,}"
    yield from ((one, "the fewest multiplications of those that are left") for one in fits)


def _unknown(fits: list[Fit], length: int, job: Job, baseline: str) -> Iterator[str]:
    """What the ranking does not know, a sentence each."""
    there = {one.name for one in fits}
    for one in table()["quality"]:
        means = ", ".join(_mean(its) for name, its in one["members"].items() if name in there)
        if means:
            yield (
                f"Which is best: {one['metric']} were measured of {means}, on {one['data']} after {one['steps']} steps "
                f"of {one['batch']} x {one['length']} with {one['seeds']} seeds; other data, lengths and trainings may "
                "order them otherwise."
            )
    never = [one.name for one in fits if not quality(one.name)]
    if never:
        yield f"Which is best: it was never measured of {', '.join(never)}."
    slow = ", ".join(one.name for one in fits if one.faster is None and one.name != baseline)
    said = "no step of any was timed"
    if any(one.faster for one in fits):
        beside = f"beside those of {baseline} on {table()['timed']['on']}"
        said = f"steps of one block of width 256 were timed {beside}" + (f"; never those of {slow}" if slow else "")
    yield f"How fast they are: they are ordered by additions and multiplications; {said}."
    if not all(one.taken.sure for one in fits):
        yield f"What rows of {length:,} take: it is drawn out from those of {' and '.join(f'{at:,}' for at in ROWS)}."
    yield "Other sizes than each member's own: kinformer cost MEMBER key=value tells of them; and other devices."
    free = memory()
    if free is not None and fits[0].process > free:
        yield f"Whether it runs here: {size(free)} of memory are free."


def _mean(its: Mapping[str, Any]) -> str:
    """What was measured of a member, at the size that it had then, with the half of its interval."""
    low, high = its["interval"]
    return f"{its['written']} {its['mean']:.2f} ± {(high - low) / 2:.2f}"


def _commands(tried: Sequence[Fit], source: DataSource, settings: Settings) -> list[str]:
    """What to run: all side by side, then the first alone, and what it costs."""
    its = [one.taken.one.text for one in tried]
    ranked = min(tried, key=lambda one: one.taken.row_flops).taken.one
    size_of = ["--batch", str(settings.batch), "--length", str(settings.length)]
    common = ["--data", source.spec, *size_of, "--minutes", str(MINUTES)]
    words = [ranked.function.__name__, *as_texts(ranked.keywords)]
    lines = [["compare", *its, *common, "--out", fresh("advised")]] if len(its) > 1 else []
    lines += [["train", *words, *common, "--out", fresh(folder_name(ranked.text))], ["cost", *words, *size_of]]
    return [shlex.join(["kinformer", *line]) for line in lines]


def fresh(name: str) -> str:
    """A folder of runs that is not there."""
    names = (f"runs/{name}{'' if n == 1 else f'-{n}'}" for n in range(1, 1000))
    return next(one for one in names if not Path(one).exists())


def reason(one: Fit) -> str:
    """What a member says of when to choose it."""
    told = doc(one.taken.one.function)
    sentences = re.split(r"(?<=\.) ", " ".join([told.first, *told.prose]))
    return next((sentence for sentence in sentences if sentence.startswith(("Choose it", "The baseline"))), "")
