"""Milliseconds per decoded token, early and late in a long text: flat where what is read does not grow."""

import time
from collections.abc import Mapping
from statistics import median

import torch
from interleave import setup

from kinformer.core.discover import find_member
from kinformer.core.model import Writer

LENGTH, SPAN = 2_048, 128  # tokens of a text; tokens that a median is taken over
PLACES = (256, 512, 1_024, 1_920)
MEMBERS: Mapping[str, Mapping[str, object]] = {
    "gpt": {"length": LENGTH},
    "gpt in a window of 64": {"length": LENGTH, "pattern": "Causal() & Band(64)"},
    "longformer_lm": {},
    "transformer_xl": {},
    "linear_transformer": {"length": LENGTH},
    "performer": {"length": LENGTH},
}


def decoded(model: Writer) -> list[float]:
    """Seconds of each step."""
    state, token, seconds = model.start(1, LENGTH), torch.zeros(1, 1, dtype=torch.long), []
    with torch.no_grad():
        for _ in range(LENGTH):
            begin = time.perf_counter()
            state = model.logits(token, state, last=True).state
            seconds.append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    rounds = setup(f"{__doc__} Batch 1, every member at its own sizes.")
    print("| member | " + " | ".join(f"token {n:,}" for n in PLACES) + " | last over first |")
    print("|---" * (2 + len(PLACES)) + "|")
    for name, keywords in MEMBERS.items():
        torch.manual_seed(0)
        model = find_member(name.split()[0])(**keywords).eval()
        turns = [decoded(model) for _ in range(rounds)]
        # the least of some turns: whatever else the machine does only adds
        at = [min(median(turn[n - SPAN // 2 : n + SPAN // 2]) for turn in turns) * 1e3 for n in PLACES]
        print(f"| {name} | " + " | ".join(f"{ms:.2f}" for ms in at) + f" | {at[-1] / at[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
