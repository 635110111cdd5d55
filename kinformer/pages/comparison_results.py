"""Results of a comparison of members (named models): their numbers, a table, and results.json."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kinformer.checkpoint.atomic_files import write as write_file
from kinformer.core.discover import members
from kinformer.lab.byte_units import size
from kinformer.lab.compare.interval import SURE, Interval, unresolved_pairs
from kinformer.pages.terminal_safe_text import printable

MEMORY = (
    "Memory is the peak of a fresh process that trains (`kinformer cost`). State is the size of the "
    "decoding state of one row of the training length."
)


@dataclass(frozen=True)
class MemberResult:
    """Results of one member (named model) in a comparison; the numbers are means over its seeds.

    name: the member as the user wrote it.
    folder: folder of its trained model.
    member: name of the member function.
    keywords: keywords of the member.
    parameters: number of parameters.
    lr: highest learning rate of the reported trainings.
    measures: metrics on validation data by name; members are compared by the first one.
    interval: 95% confidence interval of the first metric over seeds; None for a single seed.
    tokens_per_second: tokens per second in training.
    ms_per_token: milliseconds per generated token; None if the model does not generate token by token.
    steps, minutes: number of training steps, and minutes of training.
    points: points of the learning curve.
    prompt, sample, answer: text that the model read, text that it generated, and the right answer if there is one.
    shown: words that follow the name of the member and describe the sample, such as "continues".
    state_bytes: bytes of the decoding state of a row of the training length; None if the model has no state.
    peak_bytes: peak memory in bytes of a process that trains the model.
    lengths: speed and memory for rows of several lengths.
    runs: results of each seed.
    point: value of each setting and keyword that the grid varies, at the best point.
    grid: each point of the grid, as {"point": values by name, "mean": mean of the first metric on validation data}; the
        mean is None if a loss was not finite. Empty without a grid.
    """

    name: str
    folder: str
    member: str
    keywords: dict[str, Any]
    parameters: int
    lr: float
    measures: dict[str, float]
    interval: Interval | None
    tokens_per_second: float
    ms_per_token: float | None
    steps: int
    minutes: float
    points: list[dict[str, float]]
    prompt: str
    sample: str
    shown: str
    answer: str | None
    state_bytes: int | None
    peak_bytes: int
    lengths: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    point: dict[str, float | str] = field(default_factory=dict)
    grid: list[dict[str, Any]] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The metric that ranks the members of a comparison: the first of `measures`."""
        return next(iter(self.measures.values()))

    @property
    def is_continuation(self) -> bool:
        """Whether the sample continues the prompt; `shown` then begins with "continues"."""
        return self.shown.startswith("continues")

    def as_json(self) -> dict[str, Any]:
        """Return the member's entry of results.json, with each metric under its own name."""
        record: dict[str, Any] = {}
        for name, value in asdict(self).items():
            record |= (
                {measure.replace(" ", "_"): n for measure, n in value.items()} if name == "measures" else {name: value}
            )
        return record


def value_text(value: float | str) -> str:
    """Return a value of a grid as a user types it.

    value: the value.
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def point_text(point: Mapping[str, float | str]) -> str:
    """Return a point of a grid in words, such as "lr=0.001, window=64".

    point: the value of each setting and keyword, by name.
    """
    return ", ".join(f"{name}={value_text(value)}" for name, value in point.items())


@dataclass(frozen=True)
class Results:
    """Results of a comparison of members (named models), with its settings and reference levels.

    settings: everything besides the members on which the numbers depend, such as data and batch.
    levels: reference values by name. For a text, these are bits per byte of general compressors on the same bytes. For
        masked models, this is the entropy of single bytes; for a task, the score of guessing.
    members: results of each member.
    """

    settings: dict[str, Any]
    levels: dict[str, float]
    members: list[MemberResult]

    @property
    def unresolved_pairs(self) -> list[tuple[str, str]]:
        """Pairs of members that cannot be ranked, because their confidence intervals overlap."""
        return unresolved_pairs({row.name: row.interval for row in self.members})

    def save(self, path: Path) -> None:
        """Write all results as JSON.

        path: the file to write.
        """
        named = "compressors" if "train_bytes" in self.settings and "unigram entropy" not in self.levels else "levels"
        rows = [row.as_json() for row in self.members]
        record = {"settings": self.settings, named: self.levels, "members": rows, "not_resolved": self.unresolved_pairs}
        write_file(path, (json.dumps(record, indent=2) + "\n").encode())

    def show(self, console: Console, folder: Path) -> None:
        """Print the samples, the table, the notes, and the list of files.

        console: rich console to print on.
        folder: folder of the comparison, for the list of files.
        """
        for row in self.members:
            if not row.shown:
                continue
            console.print(f"\n{row.name} {row.shown}:", style="bold" if row.answer is None else "", markup=False)
            console.print(printable(row.prompt), style="dim", end="" if row.is_continuation else "\n", markup=False)
            if row.answer is None:
                console.print(printable(row.sample), markup=False)
        if self.members[0].grid:
            console.print(self.grid_table())
        console.print(self.table())
        pictures = "curves.png, grid.png" if self.members[0].grid else "curves.png"
        files = f"results.json, report.html, {pictures}, and a folder for each member"
        for line in (*self.notes(), f"In {folder}: {files}.", *self._next_command(folder)):
            console.print(line, markup=False)

    def _next_command(self, folder: Path) -> list[str]:
        """Return the command that generates text with the best member, if it is one of the library that can."""
        able = [row for row in self.members if row.is_continuation and row.member in members()]
        if not able:
            return []
        best = min(able, key=lambda row: row.value)
        place = shlex.quote(f"{folder}/{best.folder}")
        return [f"`kinformer generate {place} --prompt TEXT` generates text with {best.name}."]

    def notes(self) -> list[str]:
        """Return the notes that explain the table, each of one or two sentences."""
        settings = self.settings
        notes = [f"Measured on {settings['measured']} of {settings['data']}. {settings['hardware']}."]
        if "train_bytes" in settings:
            many = "xz -9e" in self.levels
            less = " The compressors start untrained on the same bytes; the members" if many else " The members"
            notes[0] += f"{less} trained on {settings['train_bytes']:,} other bytes."
        elif "guessing" in self.levels:
            notes[0] += " Accuracy is the share of right answers on rows that are not in the training data."
        notes += settings["matched"]
        return [note for note in (*notes, *self._guesses(), self._resolution(), *self._best_points(), MEMORY) if note]

    def _resolution(self) -> str:
        """Return a note on the pairs of members that the comparison cannot rank."""
        if len(self.members) < 2:
            return ""
        if self.members[0].interval is None:
            return "With one seed each, differences may be chance, so the members cannot be ranked. Try --seeds 3."
        pairs = ", ".join(f"{name} and {other}" for name, other in self.unresolved_pairs)
        count = len(self.members[0].runs)
        return f"Means of {count} seeds, with the {SURE:.0%} confidence interval of each mean (Student's t). " + (
            f"These pairs cannot be ranked, because their intervals overlap: {pairs}."
            if pairs
            else "No two intervals overlap."
        )

    def _best_points(self) -> list[str]:
        """Return a note on the best point of the grid of each member, and on values at the edge of the grid."""
        sentences = []
        for row in self.members:
            if row.grid:
                edges = [name for name, value in row.point.items() if self._is_at_edge(name, value)]
                edge = f" A better {' or '.join(edges)} may lie outside the grid." if edges else ""
                sentences.append(f"{row.name}: {point_text(row.point)} is best on validation data.{edge}")
        return sentences

    def _is_at_edge(self, name: str, value: float | str) -> bool:
        """True for the smallest or largest of several numbers on an axis of the grid."""
        values = self.settings["grid"][name]
        numbers = [number for number in values if isinstance(number, int | float)]
        return len(values) > 1 and len(numbers) == len(values) and value in (min(numbers), max(numbers))

    def _guesses(self) -> list[str]:
        """Return a warning for each member that is not better than a guess."""
        guess = self.settings.get("guess")
        if guess is None:
            return []
        sign = 1 if guess["metric"]["better"] == "less" else -1
        level = f"{guess['name']} ({guess['value']:.3f})"
        return [
            f"Warning: {row.name}: {row.value:,.3f} is not better than {level}. Train longer, or with a smaller lr."
            for row in self.members
            if sign * row.value >= sign * guess["value"]
        ]

    def grid_cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the rows of a table with the validation metric of each member at each point.

        The best point of each member has a star. Both lists are empty without a grid.
        """
        if not self.members or not self.members[0].grid:
            return [], []
        axes, rows = list(self.members[0].point), []
        for place, entry in enumerate(self.members[0].grid):
            means = [row.grid[place]["mean"] for row in self.members]
            best = ["*" if entry["point"] == row.point else "" for row in self.members]
            cells = ["not finite" if mean is None else f"{mean:.3f}" for mean in means]
            values = [value_text(entry["point"][name]) for name in axes]
            rows.append([*values, *(f"{star}{cell}" for star, cell in zip(best, cells, strict=True))])
        return [*axes, *(row.name for row in self.members)], rows

    def table(self) -> Table:
        """Return the table of the numbers of all members, as it is printed."""
        heads, rows = self.cells()
        table = Table(title=f"{self.settings['budget']} of training each", title_justify="left")
        table.add_column(heads[0], overflow="fold")
        for heading in heads[1:]:
            table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
        for cells in rows:
            table.add_row(*cells)
        table.add_section()
        for name, value in self.levels.items():
            table.add_row(name, "", f"{value:.3f}")
        return table

    def grid_table(self) -> Table:
        """Return the table of the validation metric at each point of the grid, as it is printed."""
        heads, rows = self.grid_cells()
        measure = next(iter(self.members[0].measures))
        table = Table(title=f"{measure} on validation data at each point (* best)", title_justify="left")
        for heading in heads:
            table.add_column(heading, justify="right", overflow="fold")
        for cells in rows:
            table.add_row(*cells)
        return table

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings of the table, and for each member the texts of its row."""
        first, *measure_names = self.members[0].measures
        measure_names = [name for name in measure_names if all(name in row.measures for row in self.members)]
        axes = list(self.members[0].point)
        speed = f"{self.settings.get('counted', 'tokens')}/s"
        best = [f"best {name}" for name in axes]
        heads = ["member", "parameters", first, *measure_names, *best, speed, "ms per token", "state", "memory"]
        rows = []
        for row in self.members:
            spread = "" if row.interval is None else f" ± {(row.interval[1] - row.interval[0]) / 2:.3f}"
            values = [f"{row.value:.3f}{spread}", *(f"{row.measures[name]:.3f}" for name in measure_names)]
            point = [value_text(row.point[name]) for name in axes]
            clock = "-" if row.ms_per_token is None else f"{row.ms_per_token:.1f}"
            state = "-" if row.state_bytes is None else size(row.state_bytes)
            speed = f"{row.tokens_per_second:,.0f}"
            rows.append([row.name, f"{row.parameters:,}", *values, *point, speed, clock, state, size(row.peak_bytes)])
        return heads, rows
