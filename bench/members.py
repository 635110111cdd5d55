"""What every member takes at its default size: parameters, memory, multiplications, bytes of a decoding state.

    python bench/members.py --out kinformer/lab/advise/members.json

`kinformer advise` reads the table. All of it is counted by `kinformer.lab.cost`, so it is the same on every machine;
nothing is timed. Beside it stand the times of steps of one block, from `bench/crossover.py`.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from interleave import commit

from kinformer.core.discover import members
from kinformer.lab.advise.estimates import ROWS, SHORT, SLOW, at_length, fixed_bytes, model_of
from kinformer.lab.cost.cost import cost
from kinformer.lab.errors import UserError

TIMED = Path(__file__).parent / "results" / "crossover.json"
ON = "Intel Xeon, 2 threads, torch 2.13.0 CPU, float32, batch 1, commits 6d8b903 to fb96d02, 2026-11-22 and 23"
BESIDE = ("gpt", "bert")  # whose steps of training were raced with those of others
NAMED = {"disagreement, output": "disagreement", "routing_by_agreement, em": "routing_by_agreement"}  # their defaults
PATIENCE = 40  # seconds of a length, as it would be in proportion to a shorter one


def counted(name: str, length: int) -> dict[str, Any]:
    """One member on rows of a length; what it says where it refuses them."""
    rows = {**SHORT, **ROWS}[length]
    try:
        costs = cost(at_length(name, length).build(0), rows, length)
    except (UserError, ValueError, LookupError) as error:
        return {"refused": str(error)}
    return {
        "row_bytes": round((costs.peak - fixed_bytes(costs.weights)) / rows),
        "row_flops": costs.step_flops // rows,
        "state_bytes": costs.state,
    }


def of_member(name: str) -> dict[str, Any]:
    """One member at each length that it takes no minutes for."""
    costs_by_length, clock = dict[str, Any](), 0.0
    lengths = {**SHORT, **ROWS} if name in SLOW else ROWS
    for length, rows in lengths.items():
        if clock * length * rows > PATIENCE:
            break
        began = time.process_time()
        costs_by_length[str(length)] = counted(name, length)
        clock = (time.process_time() - began) / (length * rows)
    return costs_by_length


def timed() -> dict[str, Any]:
    """Steps of one block of members by length: times as fast as another member, with the interval."""
    ratios = json.loads(TIMED.read_text())
    by_base = {base: {NAMED.get(label, label): by for label, by in ratios[base].items()} for base in BESIDE}
    alone = {
        base: {label: by for label, by in by_label.items() if "," not in label} for base, by_label in by_base.items()
    }
    return {"on": ON, "beside": alone}


def write(table: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps({**table, "members": dict(sorted(table["members"].items()))}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="these members alone; the others and the commit stay")
    options = parser.parse_args()
    table = json.loads(options.out.read_text()) if options.out.is_file() else {}
    if options.only is None:
        rows = {str(length): count for length, count in ROWS.items()}
        table["on"] = {"torch": torch.__version__, "commit": commit(), "dtype": "float32", "rows": rows}
    costs = table.setdefault("members", {})
    table["timed"] = timed()
    for name in members() if options.only is None else options.only:
        costs[name] = {"reads": model_of(at_length(name, min(ROWS))).reads, **of_member(name)}
        print(name, costs[name], flush=True)
        write(table, options.out)
    write(table, options.out)


if __name__ == "__main__":
    main()
