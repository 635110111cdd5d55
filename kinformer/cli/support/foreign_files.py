"""Check that a command does not write among files that kinformer did not write."""

import re
from collections.abc import Iterator
from pathlib import Path

from kinformer.checkpoint.atomic_files import contents
from kinformer.checkpoint.model_files import BEST, CONFIG, METRICS, TOKENIZER, WEIGHTS
from kinformer.core.from_json import from_json
from kinformer.lab.errors import UserError

# files of runs, of comparisons, and of the commands that add results to a run
OWN = re.compile(
    "|".join(map(re.escape, (CONFIG, TOKENIZER, WEIGHTS)))
    + r"|metrics\.jsonl|trainer\.safetensors|report\.html|events\.out\.tfevents\..*|run-.*\.wandb"
    r"|(trainer|wandb|exits|knn-lm|phases|comparison|results)\.json|(curves|grid|exits|knn-lm)\.png"
)
ENTRY = {CONFIG: "member", "results.json": "members", METRICS: "metric"}  # an entry that such a file of kinformer has
KEPT = (CONFIG, f"{BEST}/{CONFIG}", "results.json")  # files that --overwrite replaces only if kinformer wrote them
DEPTH = 3  # of the folders that are searched for such files: MEMBER/SEED/best
NAMED = 3  # most files that a message names


def refuse_foreign(out: Path, overwrite: bool, resume: bool) -> None:
    """Refuse a folder with files that kinformer did not write, unless --overwrite permits it.

    A file that kinformer would replace but did not write, such as another program's config.json, is always refused.

    out: the folder.
    overwrite: True if --overwrite is given, which permits it.
    resume: True if --resume is given, which permits it in a folder that holds a run or a comparison.

    Hidden files are ignored. Errors: UserError that names up to three of the files.
    """
    for name in KEPT:
        if _is_of_another_program(out / name):
            raise UserError(
                f"{out / name} was not written by kinformer, and --overwrite does not replace foreign files. Give "
                "another --out"
            )
    if overwrite or (resume and any((out / name).is_file() for name in (WEIGHTS, "comparison.json"))):
        return
    if names := list(foreign_files(out)):
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        raise UserError(
            f"{out} holds files that kinformer did not write: {', '.join(names[:NAMED])}{more}. Give another --out, or "
            "--overwrite to write beside them"
        )


def foreign_files(out: Path) -> Iterator[str]:
    """Yield the names of files and folders in a folder that kinformer did not write, in order.

    out: the folder. Hidden files are left out. A folder in it counts as written by kinformer if it holds a file of a
        run.
    """
    if out.is_dir():
        for path in sorted(out.iterdir()):
            if not path.name.startswith(".") and not _is_own(path, DEPTH):
                yield f"{path.name}/" if path.is_dir() else path.name


def _is_own(path: Path, depth: int) -> bool:
    if not path.is_dir():
        return OWN.fullmatch(path.name) is not None and not _is_of_another_program(path)
    if path.is_symlink() or not depth or any(map(_is_of_another_program, inside := list(path.iterdir()))):
        return False
    return not inside or any(_is_own(child, depth - 1) for child in inside)


def _is_of_another_program(path: Path) -> bool:
    """True for a file without an entry that kinformer's file of this name has; a damaged file may be kinformer's."""
    if path.name not in ENTRY:
        return False
    try:
        text = contents(path)
        record = from_json(text.partition(b"\n")[0] if path.name == METRICS and text else text)
    except (OSError, ValueError):
        return path.name == METRICS and path.is_file() and path.stat().st_size > 0
    return not (isinstance(record, dict) and ENTRY[path.name] in record)
