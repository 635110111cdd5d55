"""Counted costs of every member on rows of 1,024 and 16,384 tokens: decoding state, operations, keys.

    python bench/member_costs.py

The table is kinformer/lab/advise/member_costs.json, which `kinformer atlas` reads. Nothing is timed, so it is the
same on every machine. Each entry has the commit at which it was counted; commit all other changes before.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import torch

from kinformer.core.discover import members
from kinformer.lab.advise.member_costs import TABLE, count_member

HOME = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="these members; the other entries stay")
    parser.add_argument("--missing", action="store_true", help="the members without an entry; the other entries stay")
    options = parser.parse_args()
    commit, setup = clean_commit(HOME, TABLE), {"torch": torch.__version__, "dtype": "float32"}
    keep = TABLE.is_file() and (options.missing or options.only is not None)
    table: dict[str, Any] = json.loads(TABLE.read_text()) if keep else {"on": setup, "members": {}}
    if table["on"] != setup:
        raise SystemExit(f"the other entries were counted on {table['on']}, expected {setup}; count all members again")
    entries = table["members"]
    for name in options.only or [name for name in members() if name not in entries]:
        entries[name] = {"commit": commit, **count_member(name)}
        print(name, entries[name], flush=True)
        TABLE.write_text(json.dumps({"on": setup, "members": dict(sorted(entries.items()))}, indent=1) + "\n")


def clean_commit(checkout: Path, table: Path) -> str:
    """Return the commit of a checkout; SystemExit if it has changes outside of the table."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True).stdout

    # an untracked file may be a member or change another file, so it counts as a change
    lines = git("status", "--porcelain", "--untracked-files=all").splitlines()
    changed = [line[3:] for line in lines if (checkout / line[3:]).resolve() != table.resolve()]
    if changed:
        raise SystemExit(f"{changed[0]} has changes, so no commit names the code that counts; commit them first")
    return git("rev-parse", "--short=8", "HEAD").strip()


if __name__ == "__main__":
    main()
