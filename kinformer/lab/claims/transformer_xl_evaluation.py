"""A Transformer-XL evaluates a text faster than a model that reads a whole window for each token."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.attend.executors import reference
from kinformer.core.layer import State
from kinformer.core.model import Writer
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.cost import counting
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import Plot, PlotLine, seed_mean, slope
from kinformer.lab.train.attention_hooks import reading_through
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt
from kinformer.members.transformer_xl import transformer_xl

LENGTHS, ROUNDS = (64, 128, 256, 512, 1024), 5  # keys that a token reads; measurements of time, the fastest counts
SIZES: dict[str, Any] = {"d": 256, "depth": 2, "heads": 4}
COMPARED: dict[str, Any] = {"d": 64, "depth": 4, "heads": 4, "segment": 16, "memory": 24}
STEPS, ROWS, RATE, TOKENS = 30, 8, 3e-3, 160  # training of the compared model, and tokens of its test rows
LINEAR, LEAST, EQUAL = 0.25, 0.4, 1e-5
SAYS = "evaluation with a memory is faster than a window for each token, by a factor that grows with the window"
SOURCE = "Dai et al., 2019, arXiv:1901.02860, sections 3.2 and 4.5, table 9 (363 to 1,874 times as fast)"
Call = Callable[[], object]


def window_call(length: int) -> Call:
    """Return a call of a `gpt` that scores one token after a whole window.

    length: tokens of the window.
    """
    # the band excludes no key of a window; with it, `counting` counts only pairs with an earlier key
    model = gpt(**SIZES, length=length, pattern=f"Causal() & Band({length - 1})").eval()
    tokens = torch.randint(256, (1, length))
    return lambda: model.logits(tokens, last=True)


def segment_call(length: int) -> Call:
    """Return a call of a `transformer_xl` that scores a segment, whose tokens read a full memory.

    The call may be made once, because it uses up its memory.

    length: tokens of the segment, and number of keys that each of its tokens reads.
    """
    model = transformer_xl(**SIZES, segment=length, memory=length, same_length=True).eval()
    first, second = torch.randint(256, (2, 1, length))
    state = model.logits(first, model.start(1, 2 * length)).state
    return lambda: model.logits(second, state)


def seconds(call: Call) -> float:
    """Return the processor time of a call in seconds.

    call: the call.
    """
    began = time.process_time()
    call()
    return time.process_time() - began


def operations(call: Call) -> float:
    """Return the number of additions and multiplications of a call.

    Attention counts only the pairs of query and key that its pattern allows.

    call: the call.
    """
    with counting() as tally:
        call()
    return float(tally.flops)


@torch.no_grad()
def speed_ratios(length: int, seed: int) -> dict[str, float]:
    """Return the cost of a token with a window, divided by its cost with a memory, by unit.

    Windows and segments are timed in turns, and the fastest of `ROUNDS` rounds counts. A segment scores `length`
    tokens, a window one.

    length: number of keys that a scored token reads.
    seed: seed of weights and tokens.
    """
    with seeded(seed):
        rounds = [(seconds(window_call(length)), seconds(segment_call(length))) for _ in range(ROUNDS)]
        window, segment = (min(times) for times in zip(*rounds, strict=True))
        counts = operations(window_call(length)) / operations(segment_call(length))
    return {"seconds": window / segment * length, "operations": counts * length}


def trained_model(seed: int, steps: int) -> Writer:
    """Return a `transformer_xl` that was trained briefly on text.

    seed: seed of the weights and of the training.
    steps: number of training steps.
    """
    with seeded(seed):
        model = transformer_xl(**COMPARED)
        length = COMPARED["segment"]
        text = read_text("stdlib")
        fit(model, text, steps=steps, batch=ROWS, length=length, lr=RATE, seed=seed, valid_bytes=1024)
    return model


@torch.no_grad()
def recurrence_error(model: Writer, tokens: Int[Tensor, "B T"], segment: int) -> float:
    """Return the largest difference of logits between segments with a memory and dense attention.

    Dense attention computes all scores of a row, and masks the keys that `Causal() & Segment(segment, memory)`
    excludes. It is compared with a memory of hidden states, as in training, and with a cache of keys, as in evaluation.
    All are computed in float64.

    model: a `transformer_xl`; it is converted to float64.
    tokens: the rows.
    segment: tokens of a segment.
    """
    model.double().eval()
    with reading_through(lambda name, request, executor: reference.read(request)):
        dense = model.logits(tokens).y
    return max(float((in_segments(model.train(mode), tokens, segment) - dense).abs().max()) for mode in (True, False))


def in_segments(model: Writer, tokens: Int[Tensor, "B T"], segment: int) -> Float[Tensor, "B T V"]:
    """Return the logits of rows that are read segment by segment, with a state that is carried on.

    model: the model.
    tokens: the rows.
    segment: tokens of a segment.
    """
    state: State = model.start(*tokens.shape)
    logits = []
    for piece in tokens.split(segment, 1):
        out = model.logits(piece, state)
        state = out.state
        logits.append(out.y)
    return torch.cat(logits, 1)


def claim(seeds: Sequence[int], steps: int = STEPS, lengths: Sequence[int] = LENGTHS) -> Claim:
    """Compare the cost of evaluation with a memory and with a window, and check the memory's outputs.

    The window is read by a `gpt`, anew for each token, as Al-Rfou et al. (2018) evaluate. The memory is read by a
    `transformer_xl` of equal width and depth, segment by segment. In both a scored token reads an equal number of keys,
    the attention length, from 64 to 1,024. Weights are random, because the cost does not depend on them. The ratio of
    costs is measured in processor seconds and in counted operations (additions and multiplications).

    The claim holds if three conditions are met. Both ratios grow with an exponent of 1, within 0.25, in the attention
    length. At the longest attention both are at least 0.4 times the attention length. The logits of a briefly trained
    `transformer_xl` with 4 layers equal dense attention under `Causal() & Segment(L, M)` within 1e-5.

    The paper measured ratios of 363, 773, 1,409 and 1,874 at attention lengths 800, 1,800, 2,800 and 3,800 on a GPU.
    These are 0.43 to 0.50 times the attention length. The width here is 256. With width 128 the attention itself takes
    a larger part of the time, and the ratio of seconds is about 0.33 times the longest attention length.

    seeds: seeds of weights and tokens.
    steps: number of training steps of the model that is compared with dense attention.
    lengths: attention lengths; the last one decides.
    """
    ratios: dict[str, list[list[float]]] = {"seconds": [], "operations": []}
    for seed in seeds:
        measured = [speed_ratios(length, seed) for length in lengths]
        for unit, of_seeds in ratios.items():
            of_seeds.append([ratio[unit] for ratio in measured])
    tokens = read_text("stdlib").part("valid").tokens[: 2 * TOKENS].view(2, TOKENS).long()
    segment = COMPARED["segment"]
    errors = [recurrence_error(trained_model(seed, steps), tokens, segment) for seed in seeds]
    measures = [
        *(_growth_measure(unit, of_seeds, lengths) for unit, of_seeds in ratios.items()),
        *(_level_measure(unit, of_seeds, lengths[-1]) for unit, of_seeds in ratios.items()),
        Measure("largest difference of logits from dense attention, float64", errors, "most", EQUAL),
    ]
    facts = {
        f"times as many {unit} per token at attention lengths {', '.join(map(str, lengths))}": ", ".join(
            f"{ratio:,.0f}" for ratio in seed_mean(of_seeds)
        )
        for unit, of_seeds in ratios.items()
    }
    facts["ratios of seconds divided by the attention length, by seed"] = ", ".join(
        f"{of_seed[-1] / lengths[-1]:.2f}" for of_seed in ratios["seconds"]
    )
    facts["largest difference from dense attention"] = f"{mean(errors):.1e}, mean of the seeds"
    return Claim(SAYS, SOURCE, tuple(measures), facts, (_plot(ratios, lengths),))


def _growth_measure(unit: str, ratios: Sequence[Sequence[float]], lengths: Sequence[int]) -> Measure:
    quantity = f"growth exponent in the attention length of the ratio of {unit} per token"
    return Measure(quantity, [slope(lengths, of_seed) for of_seed in ratios], "near", 1.0, within=LINEAR)


def _level_measure(unit: str, ratios: Sequence[Sequence[float]], length: int) -> Measure:
    quantity = f"ratio of {unit} per token at attention length {length}, divided by that length"
    return Measure(quantity, [of_seed[-1] / length for of_seed in ratios], "least", LEAST, no_effect=1 / length)


def _plot(ratios: Mapping[str, Sequence[Sequence[float]]], lengths: Sequence[int]) -> Plot:
    lines = []
    for unit, of_seeds in ratios.items():
        means = seed_mean(of_seeds)
        lines.append(PlotLine(lengths, means, f"{unit}: A^{slope(lengths, means):.2f}", "o-"))
    lines.append(PlotLine(lengths, [LEAST * length for length in lengths], f"{LEAST:g} A", "--", "tab:gray"))
    return Plot(
        "cost of a token with a window, divided by its cost with a memory",
        "attention length A, in tokens",
        "ratio",
        lines,
        log="xy",
        ticks=lengths,
    )
