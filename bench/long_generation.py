"""Time per token and memory of generation of 100,000 tokens, by members whose decoding state does not grow."""

import resource
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch
from interleave import setup_with_words

import kinformer as kf
from kinformer.core.discover import find_member
from kinformer.models.lm import LM

TOKENS, SPAN = 100_000, 10_000  # tokens of the text; tokens that a median is taken over
NEW = 4_000  # tokens of a new text afterwards, which shows how fast the machine is by then
SIZE: Mapping[str, object] = {"d": 64, "depth": 2, "heads": 2}
MEMBERS: Mapping[str, Mapping[str, object]] = {
    "gpt in a window of 64": {"pattern": "Causal() & Band(64)", "position": "none"},
    "longformer_lm": {},
    "transformer_xl": {},
    "compressive_transformer": {},
    "linear_transformer": {"length": TOKENS + 3},
}


def measure(name: str) -> None:
    """Print a row of the table: milliseconds per token of the long text and of a new one after it, and memory."""
    torch.manual_seed(0)
    model = find_member(name.split()[0])(**SIZE, **MEMBERS[name])
    memory: list[float] = []
    seconds = token_seconds(model, TOKENS, lambda count: memory.append(resident_megabytes()))
    early, late = (median(part) * 1e3 for part in (seconds[SPAN : 2 * SPAN], seconds[-SPAN:]))
    new = median(token_seconds(model, NEW)[NEW // 2 :]) * 1e3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {name} | {early:.2f} | {late:.2f} | {new:.2f} | {late / early:.2f} | {late / new:.2f} | {memory[0]:,.0f} | "
        f"{memory[-1]:,.0f} | {memory[-1] / memory[0]:.3f} | {peak:,.0f} |",
        flush=True,
    )


def token_seconds(model: LM, tokens: int, after_span: Callable[[int], None] = lambda count: None) -> "array[float]":
    """The seconds of each new token of a text; `after_span` is called after each 10,000 of them."""
    seconds, begin = array("d"), time.perf_counter()
    for count, _ in enumerate(kf.stream(model, [1, 2, 3], tokens, temperature=0, stop=-1), 1):
        now = time.perf_counter()
        seconds.append(now - begin)
        if count % SPAN == 0:
            after_span(count)
        begin = time.perf_counter()
    return seconds


def resident_megabytes() -> float:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    _, names = setup_with_words(f"{__doc__} Batch 1, {SIZE}.", "names of members; default: all")
    if len(names) == 1:
        measure(names[0])
        return
    spans = f"| member | ms, tokens {SPAN:,} to {2 * SPAN:,} | ms, last {SPAN:,} | ms, a new text afterwards | "
    memory = f"MB after {SPAN:,} | MB at the end | end over first | peak MB |"
    print(f"{spans}last over first | last over new | {memory}\n{'|---' * 10}|")
    for name in names or MEMBERS:  # each in a process of its own
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        print(done.stdout.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
