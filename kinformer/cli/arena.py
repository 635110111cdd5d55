"""The command `kinformer arena`: train members on the same tasks with tuned rates, and rank them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kinformer.cli.errors import refuse_useless
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinformer.lab.arena.arena_results import TaskResults
    from kinformer.lab.data.data import Data

PAGE = "index.html"


def arena(
    ctx: typer.Context,
    members: Annotated[
        list[str] | None,
        typer.Argument(help="Members (named models) to train; default: the 12 members that are ranked."),
    ] = None,
    *,
    task: Annotated[
        list[str] | None, typer.Option(help="Task to train on, such as novel or induction; default: all. Repeatable.")
    ] = None,
    novel: Annotated[
        Path | None, typer.Option(help="Text file of the task novel, such as a book; without it this task is left out.")
    ] = None,
    others: Annotated[
        bool, typer.Option("--others", help="Also train all other members that generate text, with one seed each.")
    ] = False,
    out: Annotated[
        Path, typer.Option(callback=option_checks.folder, help="Folder for the results, one JSON file per task.")
    ] = Path("arena"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue with the results in --out; finished training runs are kept.")
    ] = False,
) -> None:
    """Train members on the same tasks by the same loop, and rank them.

    \b
    Examples:
        # The ranked members on all tasks; hours on two cores
        kinformer arena --novel book.txt --out arena
        # Two members on two tasks
        kinformer arena gpt linear_transformer --task induction --task listops
        # Go on after an interruption
        kinformer arena --novel book.txt --out arena --resume

    A task begins with gpt. The other members follow only if gpt learns the task with three seeds: 90% of the answers,
    or fewer bits per byte than gzip -9. Members are in 12 groups. The learning rate is tuned with one member of each
    group and used by the whole group. The best of three rates on validation data with a first seed is used for the
    other seeds, which are scored on test data. All members have about as many parameters as gpt.

    All members read the same number of tokens, with one exception. If a member's step takes more than five times as
    long as gpt's step, the member gets gpt's training time. It is listed in a separate table and has no rank.

    The folder holds one file per task, and index.html with tables and pictures. To merge results of several machines,
    copy their files into one folder under different names. The next `kinformer arena --out FOLDER --resume` merges
    them. If no run is left, the command only writes the page. A run that fails is reported on the page and tried again
    by the next --resume.
    """
    if members:
        refuse_useless(ctx, "with names of members", "others")
    # imported here, so that --help and early errors do not wait for torch or Matplotlib
    from kinformer.cli.support.run_folder import claimed_folder, make_folder
    from kinformer.core.did_you_mean import suggest_names
    from kinformer.lab.arena.arena_results import read_results
    from kinformer.lab.arena.arena_task import NOVEL, TASKS
    from kinformer.lab.arena.entrant import RATE_GROUPS, entrants, find_rate_group
    from kinformer.lab.arena.ranking import describe_uncompared_runs
    from kinformer.lab.arena.run_arena import open_results, read_data

    names = list(dict.fromkeys(members or (entrants() if others else RATE_GROUPS)))
    for name in names:
        find_rate_group(name)
    tasks = {arena_task.name: arena_task for arena_task in TASKS}
    for name in task or ():
        if name not in tasks:
            raise UserError(f"there is no task {name!r} in the arena{suggest_names(name, tasks)}")
    chosen = task or [name for name, arena_task in tasks.items() if novel or arena_task.data != NOVEL]
    if all(tasks[name].data != NOVEL for name in chosen):
        refuse_useless(ctx, "without the task novel", "novel")
    with from_user(ValueError, OSError):
        data = {name: read_data(tasks[name], novel) for name in dict.fromkeys(chosen)}
    with claimed_folder(out):  # another command would write the same files
        with from_user(ValueError, OSError):
            if not resume and read_results(out):
                raise UserError(
                    f"{out} holds results of an arena. Add --resume to continue, or give a new folder with --out"
                )
            results = {name: open_results(tasks[name], data[name], out) for name in data}
        make_folder(out)
        failures = _train(results, data, names, out)
        with from_user(ValueError, OSError):
            every_task = read_results(out)
    for task_results in every_task.values():
        print(_summary(task_results))
        for sentence in describe_uncompared_runs(task_results):
            print(f"{task_results.task.name}: {sentence}")
    print(f"the page is {out / PAGE}")
    if failures:
        failed = ", ".join(f"{member} on {name}" for name, by_member in failures.items() for member in by_member)
        raise UserError(f"runs failed: {failed}. The page says why; --resume tries them again", code=FAILED)


def _train(
    results: "Mapping[str, TaskResults]", data: "Mapping[str, Data]", names: list[str], out: Path
) -> dict[str, dict[str, str]]:
    """Train all members on all tasks, write the page after each task, and return the errors by task and member."""
    from kinformer.cli.support.progress_bar import progress
    from kinformer.lab.arena.run_arena import run_task
    from kinformer.lab.arena.schedule import count_missing

    missing = {name: count_missing(results[name], names) for name in results}
    failures: dict[str, dict[str, str]] = {}
    done_before = 0
    with progress("arena", sum(missing.values()), "runs", recent=None) as tell:

        def report(done: int, note: str) -> None:
            tell(done_before + done, note)

        for name in results:
            try:
                with from_user(OSError, code=FAILED):
                    if failed := run_task(results[name], data[name], names, out, report):
                        failures[name] = failed
            finally:  # also after an interruption
                _write_page(out, failures)
            done_before += missing[name]
    return failures


def _write_page(out: Path, failures: "Mapping[str, Mapping[str, str]]") -> None:
    from kinformer.checkpoint.atomic_files import write
    from kinformer.lab.arena.arena_results import read_results
    from kinformer.pages.arena_page import arena_page

    with from_user(ValueError), from_user(OSError, code=FAILED):
        write(out / PAGE, arena_page(read_results(out), failures))


def _summary(results: "TaskResults") -> str:
    """Return one line about a task: the members of each rank, or why there are none."""
    from kinformer.lab.arena.ranking import rank_members
    from kinformer.lab.arena.schedule import has_passed

    name = results.task.name
    if (passed := has_passed(results)) is not True:
        why = "gpt has not learned this task" if passed is False else "gpt has runs left"
        return f"{name}: {why}, so no members are ranked"
    ranks: dict[int, list[str]] = {}
    for row in rank_members(results):
        if row.rank is not None:
            ranks.setdefault(row.rank, []).append(f"{row.member} {row.mean:.3f}")
    return f"{name}: " + "; ".join(f"rank {rank}: {', '.join(members)}" for rank, members in ranks.items())
