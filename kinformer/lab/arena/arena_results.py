"""Results of the arena: JSON files of one folder, which may come from several machines."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import write
from kinformer.core.from_json import from_json
from kinformer.lab.arena.arena_task import ArenaTask

SLOW = 5.0  # a member with a larger time ratio trains for gpt's time


@dataclass(frozen=True)
class EntrantFacts:
    """Sizes and costs of an entrant on the rows of a task.

    text: the member with its keywords.
    parameters: number of learned numbers.
    state_bytes: bytes of the decoding state after a row; None if the model has no state.
    row_flops: additions and multiplications of a forward pass over a row.
    saved_bytes: bytes that the forward pass of a training row keeps for the backward pass.
    time_ratio: time of a training step divided by gpt's, the median of alternating measurements; 1 for gpt.
    """

    text: str
    parameters: int
    state_bytes: int | None
    row_flops: int
    saved_bytes: int
    time_ratio: float

    @property
    def is_slow(self) -> bool:
        """Whether a step takes over five times as long as gpt's; the member then trains for gpt's time."""
        return self.time_ratio > SLOW


@dataclass(frozen=True)
class ArenaRun:
    """A training run of an entrant on a task.

    member: name of the member.
    rate: peak learning rate, after the warm-up.
    seed: seed of the weights and batches; seed 0 only tunes the rate.
    steps: training steps. A member that trains for gpt's time has fewer than the task.
    valid: score on validation data at the end, which decides the rate; None if the run stopped, because the loss was
        NaN or infinite.
    test: score on test data at the end; None if the run stopped.
    curve: pairs of a step and the score on validation data.
    seconds: training time. Other load of the machine is in it, so compare `EntrantFacts.time_ratio` instead.
    machine: versions and processor.
    """

    member: str
    rate: float
    seed: int
    steps: int
    valid: float | None
    test: float | None
    curve: tuple[tuple[int, float], ...]
    seconds: float
    machine: str

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
    runs: the training runs.
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

        The steps of a slow member follow from a timed ratio, so they may differ between machines. A member that is slow
        on one machine counts as slow.

        other: results of the same task.

        Errors: ValueError if the task, the fingerprint of the data or the steps of a member differ.
        """
        for name, is_same in (
            ("task", self.task == other.task),
            ("data", _fingerprint(self.data) == _fingerprint(other.data)),
        ):
            if not is_same:
                raise ValueError(
                    f"results of the task {self.task.name!r} differ in {name}: got {getattr(other, name)}, expected "
                    f"{getattr(self, name)}. Keep them in separate folders"
                )
        steps = {run.member: run.steps for run in self.runs}
        facts = {**other.facts, **self.facts}
        facts |= {name: fact for name, fact in other.facts.items() if fact.is_slow and not facts[name].is_slow}
        slow = {name for name, fact in facts.items() if fact.is_slow}
        for run in other.runs:
            if run.member not in slow and run.steps != steps.get(run.member, run.steps):
                raise ValueError(
                    f"training runs of {run.member} on {self.task.name!r} differ: got {run.steps} steps, expected "
                    f"{steps[run.member]}. Keep them in separate folders"
                )
        keys = {run.key for run in self.runs}
        self.facts = facts
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
    runs = ",\n".join(f"  {json.dumps(_as_entry(run))}" for run in sorted(results.runs, key=lambda run: run.key))
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
        task, data, levels = ArenaTask(**record["task"]), record["data"], record["levels"]
        facts = {name: EntrantFacts(**fields) for name, fields in record["facts"].items()}
        return TaskResults(task, data, levels, facts, list(_runs(record["runs"])))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        content = f"JSON without the field {error}" if isinstance(error, KeyError) else f"other content ({error})"
        raise ValueError(
            f"cannot read {path}: got {content}, expected a result file of kinformer arena. Move it out of the folder"
        ) from error


def _fingerprint(data: str) -> str:
    """Return the fingerprint of the data without its name, which differs if a text lies under another name."""
    return data.rpartition(", fingerprint ")[2]


def _as_entry(run: ArenaRun) -> dict[str, Any]:
    entry = asdict(run)
    entry["on"] = entry.pop("machine")  # the name of the field in all files
    return entry


def _runs(entries: Iterable[Mapping[str, Any]]) -> Iterator[ArenaRun]:
    for entry in entries:
        fields = dict(entry)
        fields["curve"] = tuple((int(step), float(score)) for step, score in fields["curve"])
        fields["machine"] = fields.pop("on")
        yield ArenaRun(**fields)
