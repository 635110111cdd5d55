"""The command `kinformer arena`: train members on the same tasks with tuned rates, and rank them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kinformer.cli.errors import refuse_useless
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, UserError, from_user

if TYPE_CHECKING:
    from kinformer.lab.arena.arena_results import TaskResults

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
        bool, typer.Option("--resume", help="Continue with the results in --out; finished trainings are kept.")
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
    or fewer bits per byte than gzip -9. Three learning rates are tried for each kind of member with a first seed. The
    best one on validation data is used for the other seeds, which are scored on test data. All members have about
    as many parameters as gpt and read as many tokens. A member whose step takes over five times as long as gpt's
    trains for as long as gpt instead, and stands in a second table.

    The folder holds one file per task, and index.html with tables and pictures. Results of several machines are merged
    if their files lie in one folder. Without any training left, the command only writes the page.
    """
    if members:
        refuse_useless(ctx, "with names of members", "others")
    # imported here, so that --help and early errors do not wait for torch or Matplotlib
    from kinformer.checkpoint.atomic_files import write
    from kinformer.cli.support.progress_bar import progress
    from kinformer.cli.support.run_folder import make_folder
    from kinformer.core.did_you_mean import suggest_names
    from kinformer.lab.arena.arena_results import read_results
    from kinformer.lab.arena.arena_task import NOVEL, TASKS
    from kinformer.lab.arena.entrant import KINDS, entrants, rate_kind
    from kinformer.lab.arena.run_arena import open_results, read_data, run_task
    from kinformer.lab.arena.schedule import count_missing
    from kinformer.pages.arena_page import arena_page

    names = list(dict.fromkeys(members or (entrants() if others else KINDS)))
    for name in names:
        rate_kind(name)
    tasks = {arena_task.name: arena_task for arena_task in TASKS}
    for name in task or ():
        if name not in tasks:
            raise UserError(f"there is no task {name!r} in the arena{suggest_names(name, tasks)}")
    chosen = task or [name for name, arena_task in tasks.items() if novel or arena_task.data != NOVEL]
    if all(tasks[name].data != NOVEL for name in chosen):
        refuse_useless(ctx, "without the task novel", "novel")
    with from_user(ValueError, OSError):
        if not resume and read_results(out):
            raise UserError(f"{out} holds results of an arena; --resume continues it, and another --out starts anew")
        data = {name: read_data(tasks[name], novel) for name in dict.fromkeys(chosen)}
        results = {name: open_results(tasks[name], data[name], out) for name in data}
    make_folder(out)
    missing = {name: count_missing(results[name], names) for name in results}
    done_before = 0
    with progress("arena", sum(missing.values()), "trainings", recent=None) as tell:

        def report(done: float, note: str) -> None:
            tell(int(done_before + done), note)

        for name in results:
            with from_user(ValueError), from_user(OSError, code=FAILED):
                run_task(results[name], data[name], names, out, report)
            done_before += missing[name]
    every_task = read_results(out)
    with from_user(OSError, code=FAILED):
        write(out / PAGE, arena_page(every_task))
    for task_results in every_task.values():
        print(_summary(task_results))
    print(f"the page is {out / PAGE}")


def _summary(results: "TaskResults") -> str:
    """Return one line about a task: the members of each rank, or why there are none."""
    from kinformer.lab.arena.ranking import standings
    from kinformer.lab.arena.schedule import has_passed

    name = results.task.name
    if (passed := has_passed(results)) is not True:
        why = "gpt has not learned this task" if passed is False else "gpt has trainings left"
        return f"{name}: {why}, so no members are ranked"
    ranks: dict[int, list[str]] = {}
    for row in standings(results):
        if row.rank is not None:
            ranks.setdefault(row.rank, []).append(f"{row.member} {row.mean:.3f}")
    return f"{name}: " + "; ".join(f"rank {rank}: {', '.join(members)}" for rank, members in ranks.items())
