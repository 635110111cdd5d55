"""arena_page: the page of the arena, with a table and Pareto fronts for each task."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from kinformer.lab.arena.arena_results import TaskResults
from kinformer.lab.arena.arena_task import RATES, SOLVED
from kinformer.lab.arena.entrant import BASELINE
from kinformer.lab.arena.ranking import Standing, pareto_front, standings
from kinformer.lab.arena.schedule import SEEDS, has_passed
from kinformer.lab.byte_units import size
from kinformer.lab.plot import Axes, Plot, PlotLine
from kinformer.pages.html_page import html_page
from kinformer.pages.plots import svg, svg_figure

TITLE = "kinformer: the arena"
LEAD = (
    "All members train on the same rows with the same loop and optimiser, and have about as many parameters as gpt. "
    f"The learning rate of each kind of member is the best of {', '.join(f'{rate:g}' for rate in RATES)} on validation "
    f"data with a first seed. The scores are of test data, from {len(SEEDS)} other seeds. A member's rank is 1 + the "
    "number of members whose whole 95% interval is better, so members that the seeds do not tell apart share a rank. "
    "Members with a single seed are not ranked."
)
HEADS = ("rank", "score", "95% interval", "state", "time", "memory", "parameters", "rate", "steps")
STATE = "bytes of decoding state"
NOTES = (
    "State is the size of the decoding state after a row. Time is the time of a training step divided by gpt's, "
    "measured in turns. Memory is what the forward pass of a training row keeps for the backward pass. No member is "
    "both cheaper and better than a member on a front."
)


def arena_page(results: Mapping[str, TaskResults]) -> bytes:
    """Return the page of the arena.

    results: the results of each task by name.
    """
    parts = [f"<p>{escape(LEAD)}</p>\n<p>{escape(NOTES)}</p>\n", *map(_task, results.values())]
    return html_page(TITLE, "".join(parts))


def task_table(results: TaskResults, rows: Sequence[Standing]) -> list[list[str]]:
    """Return the cells of the table of a task: the member with its sizes, and a cell for each of HEADS.

    results: the results of the task.
    rows: the members of the table.
    """
    return [
        [
            row.facts.text,
            "" if row.rank is None else str(row.rank),
            f"{row.mean:.3f}",
            "" if row.interval is None else f"{row.interval[0]:.3f} to {row.interval[1]:.3f}",
            "none" if row.facts.state_bytes is None else size(row.facts.state_bytes),
            f"{row.facts.time_ratio:.2f}",
            size(row.facts.saved_bytes),
            f"{row.facts.parameters:,}",
            f"{row.rate:g}" + (" (largest tried)" if row.rate == max(RATES) else ""),
            f"{row.steps:,}",
        ]
        for row in rows
    ]


def fronts(results: TaskResults) -> list[Plot]:
    """Return the scores of a task against four costs, with the Pareto front of each.

    The costs are decoding state, time, memory and parameters. Members that trained for equal minutes are left out,
    because they read fewer tokens.

    results: the results of the task.
    """
    rows = [row for row in standings(results) if not row.equal_minutes]
    costs = {
        STATE: {row.member: float(row.facts.state_bytes or 1) for row in rows},
        "time of a training step, gpt = 1": {row.member: row.facts.time_ratio for row in rows},
        "bytes kept for the backward pass of a row": {row.member: float(row.facts.saved_bytes) for row in rows},
        "parameters": {row.member: float(row.facts.parameters) for row in rows},
    }
    score = "bits per byte (lower is better)" if results.task.is_text else "accuracy (higher is better)"
    plots = []
    for cost, by_member in costs.items():
        points = {row.member: (by_member[row.member], row.mean) for row in rows}
        front = [points[name] for name in pareto_front(points, results.sign)]
        line = PlotLine([x for x, _ in front], [y for _, y in front], "Pareto front", "--", "tab:gray")
        log: Axes = "x" if cost == STATE else ""  # states of members differ by orders of magnitude
        plots.append(Plot(results.task.name, cost, score, [line], points=points, log=log, prefixed="x"))
    return plots


def _task(results: TaskResults) -> str:
    rows, task = standings(results), results.task
    levels = ", ".join(f"{name} {level:.3f}" for name, level in results.levels.items())
    passed = has_passed(results)
    aim = "fewer bits per byte than gzip -9" if task.is_text else f"an accuracy of {SOLVED:.0%}"
    words = {
        None: f"{BASELINE} has not finished its trainings yet.",
        True: f"{BASELINE} reaches {aim} with each seed.",
        False: f"{BASELINE} does not reach {aim} with each seed, so this task compares no members.",
    }[passed]
    facts = f"{task.steps:,} steps of {task.batch} rows; {results.data}; reference: {levels}. {words}"
    tokens = [row for row in rows if not row.equal_minutes]
    minutes = [row for row in rows if row.equal_minutes or row.member == BASELINE]
    parts = [
        f'<h2 id="{escape(task.name)}">{escape(task.name)}</h2>\n<p>{escape(facts)}</p>\n',
        _table(results, tokens),
    ]
    if len(minutes) > 1:
        parts.append("<p>For equal minutes, because a step takes over five times as long as gpt's:</p>\n")
        parts.append(_table(results, minutes))
    parts += ['<div class="drawings">\n', *_figures(results), "</div>\n"]
    return "".join(parts)


def _table(results: TaskResults, rows: Sequence[Standing]) -> str:
    heads = "".join(f"<th>{head}</th>" for head in ("member", *HEADS))
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>\n"
        for cells in task_table(results, rows)
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>\n{lines}</tbody></table></div>\n'


def _figures(results: TaskResults) -> Iterator[str]:
    for number, plot in enumerate(fronts(results)):
        label = f"{plot.title}: {plot.ylabel} against {plot.xlabel}"
        figure = svg_figure(svg(plot), label, f"{results.task.name}{number}")
        yield f"<figure>{figure}<figcaption>{escape(label)}</figcaption></figure>\n"
