"""A memory-compressed decoder trains on 8,192 tokens twice as fast as dense attention."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from kinformer.core.model import Writer
from kinformer.core.state import leaves
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine, slope
from kinformer.members.gpt import gpt
from kinformer.members.memory_compressed_transformer import memory_compressed_transformer

LENGTHS, WIDTH, HEADS, DEPTH, BLOCK = (1024, 2048, 4096, 8192), 64, 4, 5, 256
# least speed of T-DMCA, and cache size of a compressed layer, both relative to dense attention at the longest rows
FASTER, SMALLER = 2.0, 1 / 3
ROUNDS = 2
SAYS = (
    "a decoder that alternates blocks and compressed memory trains on rows of 8,192 tokens in less than half the time"
)
SOURCE = "Liu et al., 2018, arXiv:1801.10198, sections 4.2.3 and 5 (rows of 11,000 tokens); threshold of this library"


def decoders(length: int) -> dict[str, Callable[[], Writer]]:
    """Return functions that build three decoders of equal width and depth, by name.

    The first has dense attention. The second has the paper's layers LMLML: L is local attention within blocks, M is
    attention over compressed keys. The third has only layers with compressed keys.

    length: tokens of the longest row.
    """
    sizes: dict[str, Any] = {"d": WIDTH, "depth": DEPTH, "heads": HEADS, "length": length}
    return {
        "gpt": partial(gpt, **sizes),
        "LMLML": partial(memory_compressed_transformer, block=BLOCK, **sizes),
        "MMMMM": partial(memory_compressed_transformer, layers="M", **sizes),
    }


def seconds(model: Writer, tokens: Tensor) -> float:
    """Return the processor time in seconds of the loss and gradients of a decoder for one row.

    model: decoder.
    tokens: the row.
    """
    began = time.process_time()
    model(tokens).total.backward()
    return time.process_time() - began


def cache_bytes(model: Writer, length: int) -> int:
    """Return the bytes of the cache of keys and values that a decoder needs for a row.

    model: decoder.
    length: tokens in the row.
    """
    return sum(x.numel() * x.element_size() for name, x in leaves(model.start(1, length)) if name in ("k", "v"))


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS) -> Claim:
    """Compare the training time and the caches of memory-compressed decoders with dense attention.

    Three decoders train in turns: with dense attention, with the paper's layers LMLML (T-DMCA), and with only
    compressed layers. The fastest of 2 rounds counts. The claim holds if two conditions are met at 8,192 tokens. LMLML
    is at least 2 times as fast as dense attention. The cache of keys and values of compressed layers has 1/3 of the
    bytes of dense layers, within 0.01.

    seeds: seeds of weights and rows.
    lengths: tokens per row; the last one decides the verdict.
    """
    last = lengths[-1]
    took: dict[str, dict[int, list[float]]] = {}
    with torch.random.fork_rng(devices=[]):
        bytes_ = {name: cache_bytes(make(), last) for name, make in decoders(last).items()}
    for seed, length in ((seed, length) for seed in seeds for length in lengths):
        with seeded(seed):
            models = {name: make() for name, make in decoders(length).items()}
            tokens = torch.randint(256, (1, length))
            rounds = [{name: seconds(model, tokens) for name, model in models.items()} for _ in range(ROUNDS)]
        for name in models:
            quickest = min(times[name] for times in rounds)
            took.setdefault(name, {}).setdefault(length, []).append(quickest)
    ratio = [dense / short for dense, short in zip(took["gpt"][last], took["LMLML"][last], strict=True)]
    measures = (
        Measure(
            f"seconds of gpt divided by seconds of T-DMCA, one training step on a row of {last}",
            ratio,
            "least",
            FASTER,
            no_effect=1.0,
        ),
        Measure(
            f"bytes of keys and values of compressed layers divided by dense layers, for a row of {last}",
            (bytes_["MMMMM"] / bytes_["gpt"],),
            "near",
            SMALLER,
            within=0.01,
        ),
    )
    facts = {
        "bytes of keys and values of T-DMCA divided by gpt's": f"{bytes_['LMLML'] / bytes_['gpt']:.3f}",
        **{
            f"{name}, seconds per step": ", ".join(f"{mean(times):.3g} at {n} tokens" for n, times in of.items())
            + f"; growth exponent {slope(list(of), [mean(times) for times in of.values()]):.2f}"
            for name, of in took.items()
        },
    }
    lines = [PlotLine(lengths, [mean(of[n]) for n in lengths], name, "o-") for name, of in took.items()]
    plot = Plot("time of a training step", "tokens per row", "processor seconds", lines, log="xy", ticks=lengths)
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
