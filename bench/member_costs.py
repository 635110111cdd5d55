"""Counted costs of every member on rows of 1,024 and 16,384 tokens: decoding state, operations, keys.

    python bench/member_costs.py

The table is kinformer/lab/advise/member_costs.json, which `kinformer atlas` reads. Nothing is timed, so it is the
same on every machine.
"""

import argparse
import json
from typing import Any

import torch
from interleave import commit

from kinformer.core.discover import members
from kinformer.lab.advise.member_costs import TABLE, count_member


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="these members; the other entries stay")
    parser.add_argument("--missing", action="store_true", help="the members without an entry; the other entries stay")
    options = parser.parse_args()
    keep = TABLE.is_file() and (options.missing or options.only is not None)
    table: dict[str, Any] = json.loads(TABLE.read_text()) if keep else {"members": {}}
    table["on"] = {"torch": torch.__version__, "commit": commit(), "dtype": "float32"}
    entries = table["members"]
    for name in options.only or [name for name in members() if name not in entries]:
        entries[name] = count_member(name)
        print(name, entries[name], flush=True)
        TABLE.write_text(json.dumps({"on": table["on"], "members": dict(sorted(entries.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
