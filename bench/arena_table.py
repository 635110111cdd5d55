"""Table of the scores of all members in the arena, from the result files of `kinformer arena`.

    python bench/arena_table.py

The table is kinformer/lab/advise/arena.json, which `kinformer advise` and `kinformer atlas` read. The result files are
in bench/arena; without them the table is not written.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kinformer.lab.advise.arena_scores import BITS, TABLE, ArenaScore
from kinformer.lab.arena.arena_results import TaskResults, read_results
from kinformer.lab.arena.ranking import Standing, rank_members
from kinformer.lab.arena.schedule import SEEDS, has_passed

RESULTS = Path(__file__).with_name("arena")
PAGE = Path(__file__).parents[1] / "docs" / "arena.md"
BEGIN, END = "<!-- scores -->", "<!-- end of scores -->"  # marks around the scores on the page
DIGITS = 5  # of scores, as in the result files


def arena_table(folder: Path) -> dict[str, Any]:
    """Return the table of all result files of a folder, which may be missing."""
    return {"tasks": [task_record(results) for results in read_results(folder).values()]}


def task_record(results: TaskResults) -> dict[str, Any]:
    """Return the metric, budget and reference levels of a task, and the score of each member."""
    task = results.task
    budget = {"steps": task.steps, "batch": task.batch}
    return {
        "name": task.name,
        "metric": BITS if task.is_text else "accuracy",
        "sign": results.sign,
        "data": results.data,
        "budget": {**budget, "length": task.length} if task.is_text else budget,
        "levels": results.levels,
        "passed": has_passed(results) is True,
        "members": {row.member: member_record(row) for row in rank_members(results)},
    }


def member_record(row: Standing) -> dict[str, Any]:
    """Return the score of a member in a task."""
    mean, seeds = None if row.mean is None else round(row.mean, DIGITS), len(row.scores)
    score = ArenaScore(row.facts.text, mean, None, row.rank, seeds, row.stopped, row.facts.is_slow)
    interval = None if row.interval is None else [round(end, DIGITS) for end in row.interval]
    return {**asdict(score), "interval": interval}


def scores_in_markdown(table: dict[str, Any]) -> str:
    """Return a Markdown table of mean scores, intervals and ranks.

    It has a row for each member with all seeds, and a column for each task. The intervals are those of the ranking.

    table: the table of `arena_table`.
    """
    tasks = [task for task in table["tasks"] if task["passed"]]
    names = [name for task in tasks for name, score in task["members"].items() if score["seeds"] == len(SEEDS)]
    heads = ["member", *(task["name"] for task in tasks)]
    rows = [heads, ["---"] * len(heads)]
    rows += [[name, *(_cell(task["members"].get(name)) for task in tasks)] for name in dict.fromkeys(names)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(score: dict[str, Any] | None) -> str:
    if score is None or score["mean"] is None:
        return ""
    rank = "not ranked" if score["rank"] is None else f"rank {score['rank']}"
    interval = "" if score["interval"] is None else "{:.3f} to {:.3f}, ".format(*score["interval"])
    return f"{score['mean']:.3f} ({interval}{rank})"


def main(folder: Path = RESULTS, path: Path = TABLE, page: Path = PAGE) -> None:
    """Write the table; SystemExit if there are no result files, because an empty table would replace the scores."""
    if not (table := arena_table(folder))["tasks"]:
        raise SystemExit(f"cannot make the table: got no result files in {folder}. Copy files of an arena there")
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    before, _, after = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{scores_in_markdown(table)}{END}{after.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
