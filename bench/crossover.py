"""Steps of training of members of one block by length, against `gpt` and `bert`: from where on each is the faster.

`python bench/crossover.py [MEMBER ...] [LENGTH ...]` measures these alone, and then writes no file. Members whose
blocks share something have two blocks, against two of the plain member. `informer` and `set_transformer`, which read
no text, are raced against themselves with attention to every pair; their lengths are known rows and elements.
"""

import inspect
import json
import math
import sys
from collections.abc import Sequence
from itertools import cycle, pairwise
from pathlib import Path

import torch
from interleave import Contender, Middle, middle, race, ready, setup_with_words
from matplotlib.figure import Figure

from kinformer.core.discover import find_member
from kinformer.core.model import Model

SIZES = {"d": 256, "depth": 1, "heads": 4}
LENGTHS, MOST = (1_024, 4_096, 16_384), 20.0  # tokens; seconds of a step, beyond which a member is left out
OF_GPT: dict[str, dict[str, object]] = {
    "sparse_transformer": {},
    "longformer_lm": {"window": 64},
    "topk_transformer": {},
    "sinkhorn_transformer": {"block": 64},
    "bp_transformer": {},
    "memory_compressed_transformer": {"layers": "M"},
    "low_rank_band": {},
    "linear_transformer": {},
    "performer": {},
    "rfa": {},
    "luna": {"form": "decoder"},
    "average_attention": {},
    "routing_transformer": {},
    "reformer": {},
    "localness": {"form": "decoder", "local": 1},
    "gaussian_transformer": {"form": "decoder"},
    "hard_coded_gaussian": {"form": "decoder"},
    "hard_coded_gaussian, Band(8)": {"form": "decoder", "pattern": "Band(8)"},
    "synthesizer": {},
    "synthesizer, random": {"scores": "random"},
    "synthesizer, dense": {"scores": "dense"},
    "disagreement, output": {},
    "disagreement, subspace": {"subspace": 1.0, "output": 0.0},
    "disagreement, position": {"position": 1.0, "output": 0.0},
    "collaborative": {},
    "collaborative, shared=d": {"shared": SIZES["d"]},
    "multi_scale": {"form": "decoder", "norm": "pre", "scales": (16, 32, 64, 128)},
    "talking_heads": {},
    "routing_by_agreement, em": {"lower": 1},
    "routing_by_agreement, dynamic": {"lower": 1, "routing": "dynamic"},
}
OF_BERT: dict[str, dict[str, object]] = {
    "longformer": {},
    "bigbird": {"block": 64},
    "etc": {},
    "blockbert": {"blocks": 4},
    "sinkhorn_encoder": {"block": 64},
    "star_transformer": {},
    "linformer": {},
    "clustered_transformer": {},
    "nystromformer": {},
    "csalr": {"size": 64},
    "luna": {},
    "poolingformer": {},
    "localness": {"local": 1},
    "gaussian_transformer": {},
    "hard_coded_gaussian": {"form": "encoder"},
    "hard_coded_gaussian, Band(8)": {"form": "encoder", "pattern": "Band(8)"},
    "camtl": {},
    "guided_attention": {},
    "multi_scale": {"scales": (16, 32, 64, 128)},
}
OF_TWO: dict[str, dict[str, object]] = {
    "lazyformer, decoder": {"form": "decoder"},
    "predictive_attention, decoder": {"form": "decoder"},
}
OF_TWO_BERTS: dict[str, dict[str, object]] = {"lazyformer": {}, "predictive_attention": {}}
OF_FULL: dict[str, dict[str, object]] = {"informer": {"attention": "probsparse"}}
OF_PAIRS: dict[str, dict[str, object]] = {"set_transformer": {"inducing": 16}}
BASES: dict[str, tuple[dict[str, object], dict[str, dict[str, object]]]] = {
    "gpt": ({}, OF_GPT),
    "bert": ({}, OF_BERT),
    "gpt, two blocks": ({"depth": 2}, OF_TWO),
    "bert, two blocks": ({"depth": 2}, OF_TWO_BERTS),
    "informer, attention=full": ({"attention": "full"}, OF_FULL),
    "set_transformer, inducing=none": ({"inducing": None}, OF_PAIRS),
}
# they hold numbers for every pair of tokens, of which four heads have 4 GB at 16,384
PAIRS, PAIRED = (
    4_096,
    {
        "localness",
        "gaussian_transformer",
        "hard_coded_gaussian",
        "synthesizer",
        "synthesizer, random",
        "synthesizer, dense",
        "disagreement, position",
        "talking_heads",
        "camtl",
        "guided_attention",
        "lazyformer",
        "lazyformer, decoder",
        "predictive_attention",
        "predictive_attention, decoder",
    },
)
RESULTS = Path(__file__).parent / "results"


def member_of(label: str) -> str:
    """The member that a label begins with."""
    return label.partition(",")[0]


def build_member(label: str, length: int, keywords: dict[str, object]) -> Model:
    """A member of these sizes, as long as the row where it has a length."""
    function = find_member(member_of(label))
    names = inspect.signature(function).parameters
    sizes = {key: value for key, value in {**SIZES, "length": length, "context": length}.items() if key in names}
    return function(**{**sizes, **keywords}).train()


def step(model: Model, length: int) -> Contender:
    """The loss of a row of random bytes, or of numbers, and its gradients."""
    rows = model.sample(1, length, 0)

    def call() -> None:
        model.zero_grad()
        model(rows).total.backward()

    return ready(call)


def race_of(
    base: str, sizes: dict[str, object], members: dict[str, dict[str, object]], lengths: Sequence[int], rounds: int
) -> dict[str, dict[int, Middle]]:
    """How many times as fast as `base` each of them is, at each length that it can be asked at."""
    ratios: dict[str, dict[int, Middle]] = {name: {} for name in members}
    slow: set[str] = set()
    for length in lengths:
        asked_now = {
            name: {**sizes, **keywords}
            for name, keywords in members.items()
            if name not in slow and (length <= PAIRS or name not in PAIRED)
        }
        if not asked_now:
            break
        contenders = {name: step(build_member(name, length, keywords), length) for name, keywords in asked_now.items()}
        seconds = race({base: step(build_member(base, length, sizes), length), **contenders}, rounds)
        for name in asked_now:
            ratio = middle(other / ours for ours, other in zip(seconds[name], seconds[base], strict=True))
            ratios[name][length] = ratio
            took = middle(duration * 1e3 for duration in seconds[name]).median
            times = f"{ratio.median:6.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
            print(f"{length:>7,}  {name:<32} {took:9,.1f} ms  {times} {base}")
            if 16 * took > 1e3 * MOST:
                slow.add(name)
        print(flush=True)
    return ratios


def crossing(by: dict[int, Middle]) -> str:
    """Where the line through the measured ratios, both axes logarithmic, passes 1; beyond them only which side."""
    if by[min(by)].median >= 1:
        return f"below {min(by):,}"
    for (short, first), (long, other) in pairwise(sorted(by.items())):
        if other.median >= 1:
            share = -math.log(first.median) / (math.log(other.median) - math.log(first.median))
            return f"{short * (long / short) ** share:,.0f}"
    return f"above {max(by):,}"


def show(results: dict[str, dict[str, dict[int, Middle]]], lengths: Sequence[int]) -> None:
    """A table for each base."""
    for base, members in results.items():
        print(f"| times as fast as {base} | " + " | ".join(f"{n:,}" for n in lengths) + " | faster from |")
        print("|---" * (2 + len(lengths)) + "|")
        for name, by in members.items():
            cells = [f"{by[n].median:.2f} [{by[n].low:.2f}, {by[n].high:.2f}]" if n in by else "" for n in lengths]
            print(f"| {name} | {' | '.join(cells)} | {crossing(by)} |")
        print()


def write(results: dict[str, dict[str, dict[int, Middle]]]) -> None:
    """bench/results/crossover.json and .png."""
    figure = Figure(figsize=(6 * len(results), 5), layout="constrained")
    for axes, (base, members) in zip(figure.subplots(1, len(results), sharey=True), results.items(), strict=True):
        for (name, by), mark in zip(members.items(), cycle("osD^vPX*<>"), strict=False):
            style = ("-", "--", ":")[len(axes.lines) // 10 % 3]  # ten colours, then they come again
            axes.plot(list(by), [ratio.median for ratio in by.values()], marker=mark, linestyle=style, label=name)
        axes.axhline(1, color="gray", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="length", ylabel=f"times as fast as {base}")
        axes.set_xticks(LENGTHS, [f"{n:,}" for n in LENGTHS], minor=False)
        axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10], ["0.1", "0.2", "0.5", "1", "2", "5", "10"])
        axes.minorticks_off()
        axes.legend(fontsize=6)
    figure.suptitle("A step of training, one block of width 256, batch 1, float32 on a CPU")
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "crossover.png", dpi=120)
    (RESULTS / "crossover.json").write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    rounds, words = setup_with_words(
        f"{__doc__} float32, batch 1, {SIZES}.", "members and lengths to measure; all of them if none"
    )
    names = [word for word in words if not word.isdecimal()]
    lengths = [int(word) for word in words if word.isdecimal()] or LENGTHS
    known_members = {member_of(label) for _, members in BASES.values() for label in members}
    if unknown := sorted(set(names) - known_members):
        sys.exit(f"there is no {unknown[0]} here; choose of {', '.join(sorted(known_members))}")
    results = {}
    for base, (sizes, members) in BASES.items():
        chosen = {label: words for label, words in members.items() if not names or member_of(label) in names}
        if chosen:
            results[base] = race_of(base, sizes, chosen, lengths, rounds)
    show(results, lengths)
    if not words:
        write(results)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
