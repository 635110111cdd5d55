"""What a comparison found: numbers, a table of them, and a file that holds the same."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kinformer.checkpoint.atomic_files import write as write_file
from kinformer.lab.byte_units import size
from kinformer.pages.interval import SURE, Interval, unresolved_pairs
from kinformer.pages.terminal_safe_text import printable

MEMORY = (
    "Memory is that of a fresh process that trains on the CPU (`kinformer cost`); state is what decoding keeps of a "
    "row as long as those of training."
)


@dataclass(frozen=True)
class MemberResult:
    """One member: how it was written, where its model is, and what was measured of it: means over its seeds.

    interval: that of the first measure over seeds, None for a single one. milliseconds: None where it does not write
    token by token. runs: what each seed gave. tried: the mean on valid at each of several rates, None where a loss was
    not finite. shown: what `prompt`, `sample` and `answer` are, in words. state_bytes: of a row of the training's
    length, None without a state. peak_bytes: of a process that trains it. lengths: speed and memory of longer rows.
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
    tried: Mapping[str, float | None]

    @property
    def value(self) -> float:
        """By what members are compared: the first of the measures."""
        return next(iter(self.measures.values()))

    @property
    def is_continuation(self) -> bool:
        """Whether the sample goes on from the prompt."""
        return self.shown.startswith("goes on")

    def as_json(self) -> dict[str, Any]:
        """It as it stands in results.json, each measure under its own name."""
        record: dict[str, Any] = {}
        for name, value in asdict(self).items():
            record |= (
                {measure.replace(" ", "_"): n for measure, n in value.items()} if name == "measures" else {name: value}
            )
        return record


@dataclass(frozen=True)
class Results:
    """The settings, what the measure of no member is compared with, and a row per member.

    On a text these are the bits per byte of general compressors on the same bytes, and for members that fill in the
    entropy of single ones; on a task what guessing scores.
    """

    settings: dict[str, Any]
    levels: dict[str, float]
    members: list[MemberResult]

    @property
    def unresolved_pairs(self) -> list[tuple[str, str]]:
        """The members whose intervals overlap, two by two."""
        return unresolved_pairs({row.name: row.interval for row in self.members})

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        named = "compressors" if "train_bytes" in self.settings and "unigram entropy" not in self.levels else "levels"
        rows = [row.as_json() for row in self.members]
        record = {"settings": self.settings, named: self.levels, "members": rows, "not_resolved": self.unresolved_pairs}
        write_file(path, (json.dumps(record, indent=2) + "\n").encode())

    def show(self, console: Console, folder: Path) -> None:
        """Print the samples, then the table."""
        for row in self.members:
            if not row.shown:
                continue
            console.print(f"\n{row.name} {row.shown}:", style="bold" if row.answer is None else "", markup=False)
            console.print(printable(row.prompt), style="dim", end="" if row.is_continuation else "\n", markup=False)
            if row.answer is None:
                console.print(printable(row.sample), markup=False)
        console.print(self.table())
        files = "results.json, report.html, curves.png, and a folder for each member"
        for line in (*self.notes(), f"In {folder}: {files}."):
            console.print(line, markup=False)

    def notes(self) -> list[str]:
        """What a reader of the table must know, a sentence or two each."""
        settings = self.settings
        notes = [f"Of {settings['measured']} of {settings['data']}. {settings['hardware']}."]
        if "train_bytes" in settings:
            many = "xz -9e" in self.levels
            less = " The compressors start from nothing on the same bytes; the members" if many else " The members"
            notes[0] += f"{less} had {settings['train_bytes']:,} others to learn from."
        elif "guessing" in self.levels:
            notes[0] += " Accuracy is the share of answers that are right, on rows that nobody learned from."
        notes += settings["matched"]
        return [note for note in (*notes, self._resolution(), *self._rates(), MEMORY) if note]

    def _resolution(self) -> str:
        """Which members are not told apart."""
        if len(self.members) < 2:
            return ""
        if self.members[0].interval is None:
            return "One seed each: nothing tells chance from merit, and no order is resolved; --seeds 3 may."
        pairs = ", ".join(f"{name} and {other}" for name, other in self.unresolved_pairs)
        count = len(self.members[0].runs)
        return f"Means of {count} seeds, with the {SURE:.0%} interval of each mean (Student's t). " + (
            f"Not resolved, since their intervals overlap: {pairs}." if pairs else "All members are told apart."
        )

    def _rates(self) -> list[str]:
        """At what rate each member is reported, and where a better one may lie outside of those that were tried."""
        sentences = []
        for row in self.members:
            if row.tried:
                means = ", ".join(f"{lr}: {'not finite' if v is None else f'{v:.3f}'}" for lr, v in row.tried.items())
                ends = [float(lr) for lr, value in row.tried.items() if value is not None]
                edge = " at the edge of what was tried;" if row.lr in (min(ends), max(ends)) else ""
                sentences.append(f"{row.name}:{edge} lr {row.lr:g}, the best on valid ({means}).")
        return sentences

    def table(self) -> Table:
        """The numbers, as they are printed."""
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

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The headings of the table, and a row of words for each member."""
        first, *measure_names = self.members[0].measures
        measure_names = [name for name in measure_names if all(name in row.measures for row in self.members)]
        rates = ["lr"] * any(row.tried for row in self.members)
        speed = f"{self.settings.get('counted', 'tokens')}/s"
        heads = ["member", "parameters", first, *measure_names, *rates, speed, "ms per token", "state", "memory"]
        rows = []
        for row in self.members:
            spread = "" if row.interval is None else f" ± {(row.interval[1] - row.interval[0]) / 2:.3f}"
            values = [f"{row.value:.3f}{spread}", *(f"{row.measures[name]:.3f}" for name in measure_names)]
            rate = [f"{row.lr:g}"] * len(rates)
            clock = "-" if row.ms_per_token is None else f"{row.ms_per_token:.1f}"
            state = "-" if row.state_bytes is None else size(row.state_bytes)
            speed = f"{row.tokens_per_second:,.0f}"
            rows.append([row.name, f"{row.parameters:,}", *values, *rate, speed, clock, state, size(row.peak_bytes)])
        return heads, rows
