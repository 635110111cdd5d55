"""arena_page: the page of the arena, with a table and Pareto fronts for each task."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from types import MappingProxyType

from kinformer.lab.arena.arena_results import SLOW, TaskResults
from kinformer.lab.arena.arena_task import RATES, SOLVED
from kinformer.lab.arena.entrant import BASELINE, RATE_GROUPS
from kinformer.lab.arena.ranking import Standing, describe_uncompared_runs, pareto_front, rank_members
from kinformer.lab.arena.schedule import SEEDS, has_passed
from kinformer.lab.byte_units import size
from kinformer.lab.plot import Axes, Plot, PlotLine
from kinformer.pages.html_page import html_page
from kinformer.pages.plots import svg, svg_figure

TITLE = "kinformer: the arena"
LEAD = (
    "All members train on the same rows with the same loop and optimiser, and have about as many parameters as gpt. "
    f"Members are in {len(RATE_GROUPS)} groups. The rate is tuned with one member of each group and used by the whole "
    f"group. It is the best of {', '.join(f'{rate:g}' for rate in RATES)} on validation data with a first seed. The "
    f"scores are of test data, from {len(SEEDS)} other seeds. A member's rank is 1 + the number of members whose whole "
    "95% interval is better. Two members with overlapping intervals can still have different ranks. Members with a "
    "single seed, and members with a run that stopped because the loss was NaN or infinite, are not ranked."
)
HEADS = ("rank", "score", "95% interval", "state", "time", "memory", "parameters", "rate", "steps")
STATE = "bytes of decoding state"
NOTES = (
    "State: size of the decoding state after a row. Time: forward and backward pass divided by gpt's, the median of "
    "three alternating measurements. Memory: bytes that the forward pass of one row stores for the backward pass. The "
    "intervals of accuracies count the seeds and the finite number of test rows. The fronts have only ranked members. "
    "No ranked member is both cheaper and better than a member on a front."
)
EQUAL_TIME = (
    f"These members trained for gpt's time, because their steps take over {SLOW:g} times as long. gpt is shown for "
    "comparison. The number of steps follows from a measured time, so it differs between machines."
)


def arena_page(
    results: Mapping[str, TaskResults], failures: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> bytes:
    """Return the page of the arena.

    results: the results of each task by name.
    failures: error messages of failed runs, by the names of the task and of the member.
    """
    parts = [f"<p>{escape(LEAD)}</p>\n<p>{escape(NOTES)}</p>\n", *map(_failures, failures, failures.values())]
    parts += map(_task, results.values())
    return html_page(TITLE, "".join(parts))


def task_table(rows: Sequence[Standing]) -> list[list[str]]:
    """Return the cells of the table of a task: the member with its sizes, and a cell for each of HEADS.

    rows: the members of the table.
    """
    return [
        [
            row.facts.text,
            _rank(row),
            "" if row.mean is None else f"{row.mean:.3f}",
            "" if row.interval is None else f"{row.interval[0]:.3f} to {row.interval[1]:.3f}",
            "none" if row.facts.state_bytes is None else size(row.facts.state_bytes),
            f"{row.facts.time_ratio:.2f}",
            size(row.facts.saved_bytes),
            f"{row.facts.parameters:,}",
            f"{row.rate:g}" + {max(RATES): " (largest tried)", min(RATES): " (smallest tried)"}.get(row.rate, ""),
            " to ".join(f"{steps:,}" for steps in dict.fromkeys(row.steps)),
        ]
        for row in rows
    ]


def _rank(row: Standing) -> str:
    if row.stopped:
        return f"{row.stopped} of {row.stopped + len(row.scores)} stopped"
    return "" if row.rank is None else str(row.rank)


def front_plots(results: TaskResults) -> list[Plot]:
    """Return the scores of a task against four costs, with the Pareto front of each.

    The costs are decoding state, time, memory and parameters. Only ranked members are drawn, because scores of fewer
    seeds or fewer tokens are not comparable. A member without a decoding state is left out of its plot.

    results: the results of the task.
    """
    rows = {row.member: row for row in rank_members(results) if row.rank is not None}
    facts = {name: row.facts for name, row in rows.items()}
    costs = {
        STATE: {name: float(fact.state_bytes) for name, fact in facts.items() if fact.state_bytes is not None},
        "time of a training step, gpt = 1": {name: fact.time_ratio for name, fact in facts.items()},
        "bytes stored for the backward pass of a row": {name: float(fact.saved_bytes) for name, fact in facts.items()},
        "parameters": {name: float(fact.parameters) for name, fact in facts.items()},
    }
    score = "bits per byte (lower is better)" if results.task.is_text else "accuracy (higher is better)"
    plots = []
    for cost, by_member in costs.items():
        points = {name: (by_member[name], mean) for name in by_member if (mean := rows[name].mean) is not None}
        if not points:
            continue
        front = [points[name] for name in pareto_front(points, results.sign)]
        line = PlotLine([x for x, _ in front], [y for _, y in front], "Pareto front", "--", "tab:gray")
        log: Axes = "x" if cost == STATE else ""  # states of members differ by orders of magnitude
        plots.append(Plot(results.task.name, cost, score, [line], points=points, log=log, prefixed="x"))
    return plots


def _task(results: TaskResults) -> str:
    rows, task = rank_members(results), results.task
    levels = ", ".join(f"{name} {level:.3f}" for name, level in results.levels.items())
    passed = has_passed(results)
    aim = "fewer bits per byte than gzip -9" if task.is_text else f"an accuracy of {SOLVED:.0%}"
    words = {
        None: f"{BASELINE} has not finished its runs yet.",
        True: f"{BASELINE} reaches {aim} with each seed.",
        False: f"{BASELINE} does not reach {aim} with each seed, so this task compares no members.",
    }[passed]
    facts = f"{task.steps:,} steps of {task.batch} rows; {results.data}; reference: {levels}. {words}"
    tokens = [row for row in rows if not row.facts.is_slow]
    equal_time = [row for row in rows if row.facts.is_slow or row.member == BASELINE]
    uncompared = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in describe_uncompared_runs(results))
    parts = [f'<h2 id="{escape(task.name)}">{escape(task.name)}</h2>\n<p>{escape(facts)}</p>\n', _table(tokens)]
    if any(row.facts.is_slow for row in equal_time):
        parts.append(f"<p>{escape(EQUAL_TIME)}</p>\n")
        parts.append(_table(equal_time))
    parts.append(uncompared)
    parts += ['<div class="drawings">\n', *_figures(results), "</div>\n"]
    return "".join(parts)


def _failures(task: str, failures: Mapping[str, str]) -> str:
    return "".join(
        f"<p>A run of {escape(member)} on {escape(task)} failed: {escape(message)}</p>\n"
        for member, message in failures.items()
    )


def _table(rows: Sequence[Standing]) -> str:
    heads = "".join(f"<th>{head}</th>" for head in ("member", *HEADS))
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>\n" for cells in task_table(rows)
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>\n{lines}</tbody></table></div>\n'


def _figures(results: TaskResults) -> Iterator[str]:
    for number, plot in enumerate(front_plots(results)):
        label = f"{plot.title}: {plot.ylabel} against {plot.xlabel}"
        figure = svg_figure(svg(plot), label, f"{results.task.name}{number}")
        yield f"<figure>{figure}<figcaption>{escape(label)}</figcaption></figure>\n"
