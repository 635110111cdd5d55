"""Ranking of the members (named models) to try for a task, by estimated cost, for `kinformer advise`."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kinformer.core.discover import members
from kinformer.core.keywords import as_texts
from kinformer.lab.advise.estimates import (
    ROWS,
    TrainingEstimate,
    at_length,
    estimate_training,
    model_of,
    quality,
    reads_what,
    relative_speed,
    table,
)
from kinformer.lab.byte_units import size
from kinformer.lab.cost.cost import KEPT
from kinformer.lab.cost.free_memory import free_memory
from kinformer.lab.cost.resident_memory import before_training
from kinformer.lab.data.data import Data
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import folder_name
from kinformer.lab.train.member_fit import check_readable, fit_keywords, longest_row
from kinformer.lab.train.settings import Settings

READS = {"lm": "text", "mask": "masked", "classify": "labelled"}  # kind of data that a model for each task reads
BASELINE = {"lm": "gpt", "mask": "bert", "classify": "bert_classifier"}  # member with which the others are compared
UNITS = {
    "": 1,
    **{f"{letter}{i}B": (1024 if i else 1000) ** n for n, letter in enumerate("KMGT", 1) for i in ("", "I")},
}
LEAST_BYTES = 10**6  # a smaller number without a unit is one whose unit is forgotten
LIKELY_GIGABYTES = 1024  # below it, the unit is gigabytes
TRIED, MINUTES = 4, 3  # members of the first comparison, and minutes of each


@dataclass(frozen=True)
class Fit:
    """An entry of a ranking: a member (named model) that can do the task, with its estimated cost.

    name: name of the member.
    estimate: the estimated training cost.
    process: estimated bytes of the whole process that trains it on the batch.
    largest_batch: most rows of a batch that fit in memory.
    faster: a measured row length, and how many times as fast as the baseline member a training step is there; None if
        not measured.
    """

    name: str
    estimate: TrainingEstimate
    process: float
    largest_batch: int
    faster: tuple[int, float] | None

    def as_json(self) -> dict[str, Any]:
        """Return the entry as values for JSON."""
        estimate = self.estimate
        return {
            "member": estimate.choice.text,
            "parameters": estimate.parameters,
            "process_bytes": round(self.process),
            "largest_batch": self.largest_batch,
            "step_flops_of_a_row": round(estimate.row_flops),
            "state_bytes": None if estimate.state_bytes is None else round(estimate.state_bytes),
            "faster_than_baseline": self.faster,
            "measured": dict(quality(self.name)),
        }


@dataclass(frozen=True)
class Advice:
    """The result of a ranking of members (named models) for a task, with commands to run.

    task: the task.
    data: the data.
    length: tokens of the longest training row.
    batch: rows of a batch.
    room: bytes of memory that a training may use.
    fits: members that fit in memory, fewest multiplications first.
    tried: members of the comparison that is advised first, each with the reason for choosing it.
    large: members that need more memory.
    refused: members that cannot read such rows, each with the reason.
    unknown: sentences about the limits of the ranking, such as members without measured quality.
    commands: commands of a comparison, of a training, and of a measurement of its cost.
    """

    task: str
    data: Data
    length: int
    batch: int
    room: int
    fits: list[Fit]
    tried: list[tuple[Fit, str]]
    large: list[Fit]
    refused: dict[str, str]
    unknown: list[str]
    commands: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return the result as values for JSON."""
        about = {"task": self.task, "data": self.data.name, "length": self.length, "batch": self.batch}
        return {
            **about,
            "memory_bytes": self.room,
            "members": [fit.as_json() for fit in self.fits],
            "too_large": [fit.as_json() for fit in self.large],
            "refused": self.refused,
            "not_known": self.unknown,
            "tried": {fit.name: why for fit, why in self.tried},
            "commands": self.commands,
        }


def memory_bytes(text: str | None, device: torch.device | None = None) -> int:
    """Parse a number of bytes such as "8GB" or "512MiB"; None gives the free bytes of a device.

    text: the text of --memory.
    device: the device; None is the GPU if there is one, otherwise the CPU.

    Errors: UserError for another text, for a number of fewer bytes than any training needs, and if the system does not
    report its free memory.
    """
    if text is None:
        if (free_bytes := free_memory(device)) is None:
            raise UserError("this machine does not report its free memory; give --memory, such as 8GB")
        return free_bytes
    parsed = re.fullmatch(r"(\d{1,12}(\.\d{1,12})?) ?([a-z]*)", text.strip(), re.IGNORECASE | re.ASCII)
    unit = None if parsed is None else UNITS.get(parsed[3].upper())
    if parsed is None or unit is None or not (count := int(float(parsed[1]) * unit)):
        raise UserError(f"wrong --memory: got {text!r}, expected a number of bytes above 0, such as 8GB or 512MB")
    if not parsed[3] and count < LEAST_BYTES:
        advice = f"Write {text.strip()}GB" if count < LIKELY_GIGABYTES else "Give a unit, as in 8GB or 512MB"
        raise UserError(f"wrong --memory: got {text!r}, which is {count:,} bytes. {advice}")
    return count


def members_for(task: str) -> list[str]:
    """Return the names of all members (named models) that can do a task; UserError if there are none.

    task: "lm" (predict the next token), "mask" (fill masked tokens) or "classify".
    """
    kind = READS[task]
    able = [name for name in members() if reads_what(name) == kind]
    if not able:
        raise UserError(
            f"no member for --task {task}: none reads {kind} data yet. Write a member of your own with reads={kind!r}"
        )
    return able


def rank_members(
    task: str,
    able: list[str],
    data: Data,
    settings: Settings,
    spec: str,
    bytes_there: int,
    on_progress: Callable[[int], None],
    device: str | None = None,
) -> Advice:
    """Rank members (named models) for a task by estimated cost, and choose a few to compare first.

    task: the task.
    able: names of the members that can do the task.
    data: the data.
    settings: settings of the training. The batch is halved until a member fits.
    spec: the value of --data, for the advised commands.
    bytes_there: bytes of memory that a training may use.
    on_progress: called with the number of members that have been estimated.
    device: the value of --device, for the advised commands; None if it is not given.

    Errors: UserError if no member fits in memory, or if none can read the data.
    """
    length = longest_row(data, settings)
    before = before_training() or 0  # measured first, because building the models below adds memory
    estimates, refused = _estimates(able, length, data, on_progress)
    batch = settings.batch
    while batch > 1 and not any(_process_bytes(each, batch, before) <= bytes_there for each in estimates.values()):
        batch //= 2
    every = []
    for name, estimate in estimates.items():
        process, largest_batch = _process_bytes(estimate, batch, before), _largest_batch(estimate, before, bytes_there)
        every.append(Fit(name, estimate, process, largest_batch, relative_speed(name, length, BASELINE[task])))
    fits = sorted((fit for fit in every if fit.process <= bytes_there), key=lambda fit: fit.estimate.row_flops)
    large = sorted((fit for fit in every if fit.process > bytes_there), key=lambda fit: fit.process)
    if not fits:
        least = f"; {large[0].estimate.choice.text} needs least, {size(large[0].process)}" if large else ""
        why = "" if large or not refused else f": {next(iter(refused.values()))}"
        raise UserError(
            f"no member fits: training on a row of {length:,} tokens needs more than {size(bytes_there)}{least}{why}. "
            "Give a smaller --length, or more --memory"
        )
    settings = replace(settings, batch=batch)
    tried = list(_first_comparison(task, fits, data, settings, refused))
    fits = [fit for fit in fits if fit.name not in refused]
    unknown = list(_caveats(fits, length, BASELINE[task], settings.precision, device))
    commands = _commands([fit for fit, _ in tried], spec, settings, device)
    return Advice(task, data, length, batch, bytes_there, fits, tried, large, refused, unknown, commands)


def _estimates(
    able: list[str], length: int, data: Data, on_progress: Callable[[int], None]
) -> tuple[dict[str, TrainingEstimate], dict[str, str]]:
    """Return the estimate of each member, and the reasons of the members that are left out."""
    estimates, refused = dict[str, TrainingEstimate](), dict[str, str]()
    for number, name in enumerate(able):
        on_progress(number)
        try:
            estimates[name] = estimate_training(fit_keywords(at_length(name, length), data), length)
        except UserError as error:
            refused[name] = str(error)
    return estimates, refused


def _process_bytes(estimate: TrainingEstimate, batch: int, before: int) -> float:
    return before + KEPT * estimate.peak(batch)


def _largest_batch(estimate: TrainingEstimate, before: int, bytes_there: int) -> int:
    """Return the number of rows of the largest batch that fits."""
    return max(int((bytes_there - _process_bytes(estimate, 0, before)) // (KEPT * estimate.row_bytes)), 0)


def _first_comparison(
    task: str, fits: list[Fit], data: Data, settings: Settings, refused: dict[str, str]
) -> Iterator[tuple[Fit, str]]:
    """Yield the members of the first comparison that can read the data, each with the reason for it.

    They are the baseline, the best and the fastest measured members, and the members with the fewest multiplications.
    """
    names = set[str]()
    for fit, why in _in_order(BASELINE[task], fits):
        if fit.name in names:
            continue
        names.add(fit.name)
        try:
            check_readable(fit.estimate.choice.text, model_of(fit.estimate.choice), data, settings)
        except UserError as error:
            refused[fit.name] = str(error)
            continue
        yield fit, why
        if len(names - set(refused)) == TRIED:
            return
    if not names - set(refused):
        raise UserError(next(iter(refused.values())))


def _in_order(baseline: str, fits: list[Fit]) -> Iterator[tuple[Fit, str]]:
    """Yield the members in the order of trial, some twice, each with the reason for it."""
    rivals = [fit for fit in fits if fit.name != baseline]
    yield from ((fit, "the baseline of the comparison") for fit in fits if fit.name == baseline)
    for of in table()["quality"]:
        means = {fit.name: of["members"][fit.name]["mean"] for fit in rivals if fit.name in of["members"]}
        sign = 1 if of["metric"].startswith("bits") else -1
        for fit in sorted((fit for fit in rivals if fit.name in means), key=lambda fit: sign * means[fit.name])[:1]:
            besides = f" besides {baseline}" if baseline in of["members"] else ""
            yield fit, f"the best measured member{besides}, {means[fit.name]:.2f} {of['metric']}"
    faster = {fit.name: fit.faster for fit in rivals if fit.faster is not None and fit.faster[1] > 1}
    for fit in sorted((fit for fit in rivals if fit.name in faster), key=lambda fit: -faster[fit.name][1])[:1]:
        at, ratio = faster[fit.name]
        yield fit, f"the fastest measured member, {ratio:.1f} times as fast as the baseline at {at:,} tokens"
    yield from ((fit, "the fewest multiplications of the remaining members") for fit in fits)


def _caveats(fits: list[Fit], length: int, baseline: str, precision: str, device: str | None) -> Iterator[str]:
    """Yield sentences about the limits of the ranking."""
    names = {record.name for record in fits}
    for record in table()["quality"]:
        means = ", ".join(_mean_text(numbers) for name, numbers in record["members"].items() if name in names)
        if means:
            yield (
                f"Quality: measured {record['metric']} are {means}, on {record['data']} after "
                f"{record['steps']} steps of {record['batch']} x {record['length']} tokens with {record['seeds']} "
                "seeds; the order may differ for other data, lengths and trainings."
            )
    never = [record.name for record in fits if not quality(record.name)]
    if never:
        yield f"Quality: not measured for {', '.join(never)}."
    slow = ", ".join(record.name for record in fits if record.faster is None and record.name != baseline)
    timing = "no training steps were timed"
    if any(record.faster for record in fits):
        conditions = f"against {baseline} on {table()['timed']['on']}"
        timing = f"steps of one block of width 256 were timed {conditions}" + (f", but not for {slow}" if slow else "")
    yield f"Speed: the members are ordered by additions and multiplications; {timing}."
    unsure, measured = [record.name for record in fits if not record.estimate.sure], [f"{at:,}" for at in ROWS]
    if unsure and len(unsure) == len(fits):
        yield f"Cost of rows of {length:,} tokens: extrapolated from rows of {' and '.join(measured)} tokens."
    elif unsure:
        yield (
            f"Cost of rows of {length:,} tokens: extrapolated for {', '.join(unsure)}, because these members were "
            f"measured at only one of {' and '.join(measured)} tokens."
        )
    yield "Other sizes and devices: the members have default sizes; `kinformer cost MEMBER key=value` measures others."
    if precision != "float32":
        yield f"Precision: memory is estimated for float32; activations in {precision} take less."
    free = free_memory(None if device is None else torch.device(device))
    if free is not None and fits[0].process > free:
        yield f"This machine: a training may not fit, because only {size(free)} of memory are free."


def _mean_text(record: Mapping[str, Any]) -> str:
    """Format the measured mean of a member at its measured size, with half of its confidence interval."""
    low, high = record["interval"]
    return f"{record['written']} {record['mean']:.2f} ± {(high - low) / 2:.2f}"


def _commands(tried: Sequence[Fit], data: str, settings: Settings, device: str | None) -> list[str]:
    """Return the commands to run: a comparison of all, then a training of the cheapest, and its cost."""
    texts = [fit.estimate.choice.text for fit in tried]
    ranked = min(tried, key=lambda fit: fit.estimate.row_flops).estimate.choice
    size_of = ["--batch", str(settings.batch), "--length", str(settings.length)]
    size_of += [] if settings.precision == "float32" else ["--precision", settings.precision]
    size_of += [] if device is None else ["--device", device]
    common = ["--data", data, *size_of, "--minutes", str(MINUTES)]
    words = [ranked.function.__name__, *as_texts(ranked.keywords)]
    lines = [["compare", *texts, *common, "--out", unused_folder("advised")]] if len(texts) > 1 else []
    lines += [["train", *words, *common, "--out", unused_folder(folder_name(ranked.text))], ["cost", *words, *size_of]]
    return [shlex.join(["kinformer", *line]) for line in lines]


def unused_folder(name: str) -> str:
    """Return the name of a folder in `runs` that does not exist yet, such as runs/gpt or runs/gpt-2.

    name: name of the folder; a number is appended if the folder exists.
    """
    names = (f"runs/{name}{'' if n == 1 else f'-{n}'}" for n in range(1, 1000))
    return next(folder for folder in names if not Path(folder).exists())
