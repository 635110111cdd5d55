"""Time per token and memory of generation of 100,000 tokens, by members whose decoding state does not grow."""

import resource
import subprocess
import sys
import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from statistics import quantiles

import torch
from interleave import setup_with_words

import kinformer as kf
from kinformer.core.discover import find_member

TOKENS, SPAN = 100_000, 10_000  # tokens of the text; tokens that a time is taken over
SIZE: Mapping[str, object] = {"d": 64, "depth": 2, "heads": 2}
MEMBERS: Mapping[str, Mapping[str, object]] = {
    "gpt in a window of 64": {"pattern": "Causal() & Band(64)", "position": "none"},
    "longformer_lm": {},
    "transformer_xl": {},
    "compressive_transformer": {},
    "linear_transformer": {"length": TOKENS + 3},
}


def measure(name: str) -> None:
    """Print a row of the table: the time that a tenth of the tokens stay below, in two spans, and the memory."""
    torch.manual_seed(0)
    model = find_member(name.split()[0])(**SIZE, **MEMBERS[name])
    seconds, memory, begin = array("d"), list[float](), time.perf_counter()
    for count, _ in enumerate(kf.stream(model, [1, 2, 3], TOKENS, temperature=0, stop=-1), 1):
        now = time.perf_counter()
        seconds.append(now - begin)
        if count in (SPAN, TOKENS):
            memory.append(resident_megabytes())
        begin = time.perf_counter()
    # other work on the machine only adds time
    early, late = (quantiles(part, n=10)[0] * 1e3 for part in (seconds[SPAN : 2 * SPAN], seconds[-SPAN:]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {name} | {early:.2f} | {late:.2f} | {late / early:.2f} | {memory[0]:,.0f} | {memory[1]:,.0f} | "
        f"{memory[1] / memory[0]:.3f} | {peak:,.0f} |",
        flush=True,
    )


def resident_megabytes() -> float:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    _, names = setup_with_words(f"{__doc__} Batch 1, {SIZE}.", "names of members; default: all")
    if len(names) == 1:
        measure(names[0])
        return
    print("A tenth of the tokens take less than these times.\n")
    print(f"| member | ms, tokens {SPAN:,} to {2 * SPAN:,} | ms, last {SPAN:,} | last over first | ", end="")
    print(f"MB after {SPAN:,} | MB at the end | end over first | peak MB |\n|---|---|---|---|---|---|---|---|")
    for name in names or MEMBERS:  # each in a process of its own
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        print(done.stdout.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
