"""Ranking of the members (named models) to try for a task, for `kinformer advise`."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kinformer.core.discover import members
from kinformer.core.keywords import as_texts
from kinformer.lab.advise.arena_scores import ArenaScores, arena_tasks
from kinformer.lab.advise.caveats import caveats
from kinformer.lab.advise.estimates import (
    TrainingEstimate,
    at_length,
    estimate_training,
    model_of,
    reach_of,
    reads_what,
    relative_speed,
)
from kinformer.lab.advise.fit import Fit
from kinformer.lab.advise.member_costs import LENGTHS, decoding_state
from kinformer.lab.advise.recommendation import Recommendation, recommend
from kinformer.lab.advise.training_minutes import STEPS, TIMED, training_minutes
from kinformer.lab.byte_units import size
from kinformer.lab.cost.cost import KEPT
from kinformer.lab.cost.free_memory import free_memory
from kinformer.lab.cost.resident_memory import before_training
from kinformer.lab.data.data import Data
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import UserError
from kinformer.lab.machine import default_device
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
PLACEHOLDER = {"lm": "text=PATH", "mask": "text=PATH", "classify": "labelled=FILE.tsv"}  # of --data


@dataclass(frozen=True)
class Advice:
    """The recommended members (named models) for a task, with costs and commands.

    task: the task.
    data: name of the data; None without --data.
    length: tokens of the longest training row.
    batch: rows of a batch.
    room: bytes of memory that a training may use.
    chosen: the recommended members, each with the reason.
    commands: a command for each of them, which trains it.
    comparison: the command that compares them; None for a single member.
    fits: members that fit in memory; the recommended ones first, then by operations.
    large: members that need more memory.
    refused: members that cannot read such rows, each with the reason.
    notes: sentences about the limits of the advice, such as members without measured quality.
    tasks: tasks of the arena with the scores of the members; empty if no quality is known.
    """

    task: str
    data: str | None
    length: int
    batch: int
    room: int
    chosen: list[Recommendation]
    commands: list[str]
    comparison: str | None
    fits: list[Fit]
    large: list[Fit]
    refused: dict[str, str]
    notes: list[str]
    tasks: tuple[ArenaScores, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the result as values for JSON."""
        choices = zip(self.chosen, self.commands, strict=True)
        return {
            **{"task": self.task, "data": self.data, "length": self.length, "batch": self.batch},
            "memory_bytes": self.room,
            "choices": [
                {"member": choice.fit.estimate.choice.text, "reason": choice.reason, "command": command}
                for choice, command in choices
            ],
            "comparison": self.comparison,
            "members": [fit.as_json(self.tasks) for fit in self.fits],
            "too_large": [fit.as_json(self.tasks) for fit in self.large],
            "refused": self.refused,
            "notes": self.notes,
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
    data: Data | None,
    settings: Settings,
    spec: str | None,
    bytes_there: int,
    on_progress: Callable[[int], None],
    device: str | None = None,
) -> Advice:
    """Estimate the costs of members (named models) for a task, and recommend up to three of them.

    task: the task.
    able: names of the members that can do the task.
    data: the data; None stands for bytes of a text.
    settings: settings of the training. The batch is halved until a member of known quality or the baseline fits, or
        else any member.
    spec: the value of --data, for the advised commands; None gives a placeholder.
    bytes_there: bytes of memory that a training may use.
    on_progress: called with the number of members that have been estimated.
    device: the value of --device, for the advised commands; None if it is not given.

    Errors: UserError if no member fits in memory, or if none can read the data.
    """
    length = settings.length if data is None else longest_row(data, settings)
    baseline, tasks = BASELINE[task], arena_tasks() if task == "lm" else ()
    before = before_training() or 0  # measured first, because building the models below adds memory
    estimates, refused = _estimates(able, length, data, on_progress)
    ranked = {name for each in tasks for name in each.ranked} or {baseline}
    preferred = [estimate for name, estimate in estimates.items() if name in ranked]
    batch = _fitting_batch(preferred, settings.batch, before, bytes_there)
    batch = batch or _fitting_batch(list(estimates.values()), settings.batch, before, bytes_there) or 1
    every = []
    for name, estimate in estimates.items():
        process, largest_batch = _process_bytes(estimate, batch, before), _largest_batch(estimate, before, bytes_there)
        speed, reach = relative_speed(name, length, baseline), reach_of(name) if task == "lm" else None
        every.append(Fit(name, estimate, process, largest_batch, speed, length, reach))
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
    chosen, fits = _recommend_readable(fits, baseline, tasks, data, settings, refused)
    names = [choice.fit.name for choice in chosen]
    fits.sort(key=lambda fit: names.index(fit.name) if fit.name in names else len(names))
    commands, comparison = _commands(task, [choice.fit for choice in chosen], spec, data, settings, device)
    notes = list(caveats(task, chosen, fits, tasks, length, baseline))
    if tasks and data is not None and not isinstance(data, TextData):
        notes.append(
            f"Data: members are compared by scores on a novel, not on {data.name}. The page docs/arena.md has scores "
            "on other tasks."
        )
    notes.append(
        f"Minutes: each command trains for about {STEPS} steps or more, from a step that was timed here on one row of "
        f"{min(length, TIMED)} tokens. The comparison gives all members the longest of these times."
    )
    notes += _caveats_of_machine(chosen, settings.precision, device)
    return Advice(
        *(task, None if data is None else data.name, length, batch, bytes_there, chosen, commands, comparison),
        *(fits, large, refused, notes, tasks),
    )


def _estimates(
    able: list[str], length: int, data: Data | None, on_progress: Callable[[int], None]
) -> tuple[dict[str, TrainingEstimate], dict[str, str]]:
    """Return the estimate of each member, and the reasons of the members that are left out."""
    estimates, refused = dict[str, TrainingEstimate](), dict[str, str]()
    for number, name in enumerate(able):
        on_progress(number)
        try:
            choice = at_length(name, length)
            estimate = estimate_training(choice if data is None else fit_keywords(choice, data), length)
        except UserError as error:
            refused[name] = str(error)
            continue
        # a state that grows up to a limit is known better from the longer rows of the other table
        state = decoding_state(name, length) if length > min(LENGTHS) else None
        estimates[name] = estimate if state is None else replace(estimate, state_bytes=state)
    return estimates, refused


def _fitting_batch(estimates: list[TrainingEstimate], batch: int, before: int, bytes_there: int) -> int:
    """Return the batch, halved until a member fits; 0 if none fits with a single row."""
    while batch and not any(_process_bytes(estimate, batch, before) <= bytes_there for estimate in estimates):
        batch //= 2
    return batch


def _process_bytes(estimate: TrainingEstimate, batch: int, before: int) -> float:
    return before + KEPT * estimate.peak(batch)


def _largest_batch(estimate: TrainingEstimate, before: int, bytes_there: int) -> int:
    """Return the number of rows of the largest batch that fits."""
    return max(int((bytes_there - _process_bytes(estimate, 0, before)) // (KEPT * estimate.row_bytes)), 0)


def _recommend_readable(
    fits: list[Fit],
    baseline: str,
    tasks: Sequence[ArenaScores],
    data: Data | None,
    settings: Settings,
    refused: dict[str, str],
) -> tuple[list[Recommendation], list[Fit]]:
    """Return the recommended members, which can all read the data, and the members that fit without refused ones."""
    while True:
        chosen = recommend(fits, baseline, tasks)
        unreadable = {} if data is None else _unreadable([choice.fit for choice in chosen], data, settings)
        if not unreadable:
            return chosen, fits
        refused.update(unreadable)
        fits = [fit for fit in fits if fit.name not in refused]
        if not fits:
            raise UserError(list(unreadable.values())[-1])  # `refused` may begin with a reason that has no data in it


def _unreadable(fits: Sequence[Fit], data: Data, settings: Settings) -> dict[str, str]:
    """Return the members that refuse the data, each with the reason."""
    reasons = {}
    for fit in fits:
        try:
            check_readable(fit.estimate.choice.text, model_of(fit.estimate.choice), data, settings)
        except UserError as error:
            reasons[fit.name] = str(error)
    return reasons


def _caveats_of_machine(chosen: Sequence[Recommendation], precision: str, device: str | None) -> Iterator[str]:
    yield "Other sizes and devices: the members have default sizes; `kinformer cost MEMBER key=value` measures others."
    if precision != "float32":
        yield f"Precision: memory is estimated for float32; activations in {precision} take less."
    free = free_memory(None if device is None else torch.device(device))
    if free is not None and max(choice.fit.process for choice in chosen) > free:
        yield f"This machine: a training may not fit, because only {size(free)} of memory are free."


def _commands(
    task: str, fits: Sequence[Fit], spec: str | None, data: Data | None, settings: Settings, device: str | None
) -> tuple[list[str], str | None]:
    """Return a command to train each member, and one that compares them; None for a single member."""
    common = ["--data", PLACEHOLDER[task] if spec is None else spec, "--batch", str(settings.batch)]
    common += ["--length", str(settings.length)] if data is None or data.sized else []
    common += [] if settings.precision == "float32" else ["--precision", settings.precision]
    common += [] if device is None else ["--device", device]
    choices = [fit.estimate.choice for fit in fits]
    where = default_device() if device is None else torch.device(device)
    minutes = [training_minutes(fit.estimate, fit.length, settings.batch, settings.precision, where) for fit in fits]
    lines = [
        [
            *("train", choice.name, *as_texts(choice.keywords), *common, "--minutes", str(count)),
            *("--out", unused_folder(folder_name(choice.text))),
        ]
        for choice, count in zip(choices, minutes, strict=True)
    ]
    compare = ["compare", *(choice.text for choice in choices), *common, "--minutes", str(max(minutes))]
    compare += ["--out", unused_folder("advised")]
    joined = [shlex.join(["kinformer", *line]) for line in (*lines, compare)]
    return joined[:-1], joined[-1] if len(choices) > 1 else None


def unused_folder(name: str) -> str:
    """Return the name of a folder in `runs` that does not exist yet, such as runs/gpt or runs/gpt-2.

    name: name of the folder; a number is appended if the folder exists.
    """
    names = (f"runs/{name}{'' if n == 1 else f'-{n}'}" for n in range(1, 1000))
    return next(folder for folder in names if not Path(folder).exists())
