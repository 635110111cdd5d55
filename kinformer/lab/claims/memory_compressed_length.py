"""Memory-compressed attention: rows of eight thousand tokens for less time and memory than dense attention takes."""

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
FASTER, SMALLER = 2.0, 1 / 3  # T-DMCA's and a compressed layer's, at the longest
ROUNDS = 2
SAYS = (
    "a decoder that reads blocks and compressed memory by turns takes rows of 8,192 tokens in less than half the time"
)
SOURCE = "Liu et al., 2018, arXiv:1801.10198, sections 4.2.3 and 5 (rows of 11,000 tokens); threshold of this library"


def decoders(length: int) -> dict[str, Callable[[], Writer]]:
    """Dense attention, the paper's LMLML, and its compressed layers alone, of one width and depth."""
    sizes: dict[str, Any] = {"d": WIDTH, "depth": DEPTH, "heads": HEADS, "length": length}
    return {
        "gpt": partial(gpt, **sizes),
        "LMLML": partial(memory_compressed_transformer, block=BLOCK, **sizes),
        "MMMMM": partial(memory_compressed_transformer, layers="M", **sizes),
    }


def seconds(model: Writer, tokens: Tensor) -> float:
    """Of the processor, for a row's loss and its gradients."""
    began = time.process_time()
    model(tokens).total.backward()
    return time.process_time() - began


def cache_bytes(model: Writer, length: int) -> int:
    """Bytes of keys and values for decoding a row."""
    return sum(x.numel() * x.element_size() for name, x in leaves(model.start(1, length)) if name in ("k", "v"))


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS) -> Claim:
    """Steps of training of each by turns, the quickest of a few; what each keeps of a row that it goes on with."""
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
        Measure(f"gpt's seconds over T-DMCA's, a step on a row of {last}", ratio, "least", FASTER, no_effect=1.0),
        Measure(
            f"bytes of keys and values of compressed layers over dense ones, for a row of {last}",
            (bytes_["MMMMM"] / bytes_["gpt"],),
            "near",
            SMALLER,
            within=0.01,
        ),
    )
    facts = {
        "bytes of T-DMCA over gpt's": f"{bytes_['LMLML'] / bytes_['gpt']:.3f}",
        **{
            f"{name}, seconds a step": ", ".join(f"{mean(times):.3g} for {n}" for n, times in of.items())
            + f"; exponent {slope(list(of), [mean(times) for times in of.values()]):.2f}"
            for name, of in took.items()
        },
    }
    lines = [PlotLine(lengths, [mean(of[n]) for n in lengths], name, "o-") for name, of in took.items()]
    plot = Plot(
        "seconds of a step of training", "tokens of a row", "seconds of the processor", lines, log="xy", ticks=lengths
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
