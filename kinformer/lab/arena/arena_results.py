"""Results of the arena: JSON files of one folder, which may come from several machines."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import write
from kinformer.core.from_json import from_json
from kinformer.lab.arena.arena_task import ArenaTask


@dataclass(frozen=True)
class EntrantFacts:
    """Sizes and costs of an entrant on the rows of a task.

    text: the member with its keywords.
    parameters: number of learned numbers.
    state_bytes: bytes of the decoding state after a row; None if the model has no state.
    row_flops: additions and multiplications of a forward pass over a row.
    saved_bytes: bytes that the forward pass of a training row keeps for the backward pass.
    time_ratio: time of a training step divided by gpt's, measured in turns; 1 for gpt.
    """

    text: str
    parameters: int
    state_bytes: int | None
    row_flops: int
    saved_bytes: int
    time_ratio: float


@dataclass(frozen=True)
class ArenaRun:
    """One training of an entrant on a task.

    member: name of the member.
    rate: highest learning rate.
    seed: seed of the weights and batches; seed 0 only tunes the rate.
    steps: training steps. A member that trains for equal minutes in place of equal tokens has fewer than the task.
    valid: score on validation data at the end, which decides the rate; None if a loss was not finite.
    test: score on test data at the end; None if a loss was not finite.
    curve: pairs of a step and the score on validation data.
    seconds: training time. Other load of the machine is in it, so compare `EntrantFacts.time_ratio` instead.
    on: versions and processor.
    """

    member: str
    rate: float
    seed: int
    steps: int
    valid: float | None
    test: float | None
    curve: tuple[tuple[int, float], ...]
    seconds: float
    on: str

    @property
    def key(self) -> tuple[str, float, int]:
        """Member, rate and seed, which identify a run of a task."""
        return self.member, self.rate, self.seed


@dataclass
class TaskResults:
    """All results of one task.

    task: the task.
    data: name and fingerprint of the data.
    levels: reference scores by name, such as the score of guessing.
    facts: sizes and costs of each entrant by name.
    runs: the trainings.
    """

    task: ArenaTask
    data: str
    levels: dict[str, float]
    facts: dict[str, EntrantFacts] = field(default_factory=dict)
    runs: list[ArenaRun] = field(default_factory=list)

    @property
    def sign(self) -> int:
        """1 if lower scores are better, -1 if higher scores are better."""
        return 1 if self.task.is_text else -1

    def of_member(self, member: str) -> list[ArenaRun]:
        """Return the runs of a member.

        member: name of the member.
        """
        return [run for run in self.runs if run.member == member]

    def add(self, other: "TaskResults") -> None:
        """Add the results of another file; a run that is present already stays as it is.

        other: results of the same task.

        Errors: ValueError if the task or the data of the other file differs, or the steps of a member.
        """
        for name in ("task", "data"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(
                    f"results of the task {self.task.name!r} differ in {name}: got {getattr(other, name)}, expected "
                    f"{getattr(self, name)}. Keep them in separate folders"
                )
        steps = {run.member: run.steps for run in self.runs}
        for run in other.runs:
            if run.steps != steps.get(run.member, run.steps):
                raise ValueError(
                    f"trainings of {run.member} on {self.task.name!r} differ: got {run.steps} steps, expected "
                    f"{steps[run.member]}. Keep them in separate folders"
                )
        keys = {run.key for run in self.runs}
        self.facts = {**other.facts, **self.facts}
        self.runs += [run for run in other.runs if run.key not in keys]


def write_results(results: TaskResults, path: Path) -> None:
    """Write the results of a task as JSON, with one run per line.

    results: the results.
    path: the file.

    Errors: OSError if the file cannot be written.
    """
    head = {
        "task": asdict(results.task),
        "data": results.data,
        "levels": results.levels,
        "facts": {name: asdict(facts) for name, facts in sorted(results.facts.items())},
    }
    runs = ",\n".join(f"  {json.dumps(asdict(run))}" for run in sorted(results.runs, key=lambda run: run.key))
    text = json.dumps(head, indent=1)[:-2]
    write(path, f'{text},\n "runs": [\n{runs}\n ]\n}}\n'.encode())


def read_results(folder: Path) -> dict[str, TaskResults]:
    """Return the results of each task from all JSON files of a folder, whatever their names.

    The files of several machines are merged when they lie in one folder.

    folder: the folder; it may be missing.

    Errors: ValueError, in one line, for a file that holds no results, or for files of one task that differ.
    """
    merged: dict[str, TaskResults] = {}
    for path in sorted(folder.glob("*.json")):
        results = read_file(path)
        try:
            if (earlier := merged.setdefault(results.task.name, results)) is not results:
                earlier.add(results)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return merged


def read_file(path: Path) -> TaskResults:
    """Return the results of one file.

    path: the file.

    Errors: ValueError, in one line, if the file holds no results of the arena; OSError if it cannot be read.
    """
    try:
        record = from_json(path.read_bytes())
        facts = {name: EntrantFacts(**fields) for name, fields in record["facts"].items()}
        return TaskResults(
            ArenaTask(**record["task"]), record["data"], record["levels"], facts, list(_runs(record["runs"]))
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} holds no results of the arena: {type(error).__name__}: {error}") from error


def _runs(entries: Iterable[Mapping[str, Any]]) -> Iterator[ArenaRun]:
    for entry in entries:
        yield ArenaRun(**{**entry, "curve": tuple((int(step), float(score)) for step, score in entry["curve"])})
