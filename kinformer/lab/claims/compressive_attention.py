"""Attention rises from the oldest memories of a Compressive Transformer to its compressed memories."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from kinformer.core.token_positions import NumberedState
from kinformer.lab.claims.support.compressive_models import (
    LENGTH,
    ROWS,
    SIZES,
    build_with_equal_start,
    measure_test_bits,
    train_on_text,
)
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import Plot, PlotLine, seed_mean
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention

STEPS, MINUTES = 200, 1
SEGMENT: int = SIZES["segment"]
# segments to fill both memories, and segments whose attention is measured
FILLED, MEASURED = 1 + SIZES["rate"], 24
BUCKETS = 6  # of each region, as in the paper
REGIONS = ("compressed memory", "memory", "segment")
SAYS = "attention per slot rises from the oldest memories to the compressed memories"
SOURCE = "Rae et al., 2019, arXiv:1911.05507, section 5.5 and its figure of attention by position"
PAPER_SIZES = "enwik8, 20,000 sequences, three regions of 768 places, 24 layers of width 1024"


@torch.no_grad()
def attention_by_slot(model: LM, text: Shaped[Tensor, " N"]) -> Float[Tensor, " S"]:
    """Return the mean attention of a query to each slot, the oldest first, over layers, heads and queries.

    The slots are the compressed memories, then the memories, then the places of the segment. Rows of the text are read
    segment by segment, and counted once all slots are filled. In the segment a query reads only earlier places, and
    the others count as 0.

    model: a Compressive Transformer in eval mode.
    text: bytes of the text.
    """
    segments = FILLED + MEASURED
    rows = text[: ROWS * segments * SEGMENT].long().view(ROWS, segments, SEGMENT)
    slots = SIZES["compressed"] + SIZES["memory"] + SEGMENT
    received: list[Tensor] = []

    def note(mechanism: Any, inputs: Any, out: Any) -> None:
        queries, keys, _, ctx = inputs
        received.append(mechanism.received_attention(queries, keys, out.y, ctx))

    hooks = [part.mechanism.register_forward_hook(note) for part in model.modules() if isinstance(part, Attention)]
    try:
        state = model.start(ROWS, segments * SEGMENT)
        for n in range(segments):
            if n == FILLED:
                received.clear()
            state = cast(NumberedState, model.logits(rows[:, n], state).state)
    finally:
        for hook in hooks:
            hook.remove()
    weights = torch.stack(received)
    assert weights.shape == (len(hooks) * MEASURED, ROWS, slots), "a memory was not full"
    return weights.double().mean((0, 1)) / SEGMENT


def by_bucket(slots: Float[Tensor, " S"]) -> list[float]:
    """Return the mean attention per slot in six buckets of each region, the oldest first.

    slots: mean attention to each slot, from `attention_by_slot`.
    """
    buckets: list[float] = slots.view(len(REGIONS) * BUCKETS, -1).mean(1).tolist()
    return buckets


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train small Compressive Transformers on text, and measure their attention to each slot.

    Each region, compressed memory, memory and segment, has 24 slots in six buckets of equal size. The claim holds if
    the attention per slot is larger in the compressed memory than in the oldest bucket of the memory. The ratio of the
    two must be above 1. It is measured on test text, as a mean over layers, heads and queries.

    The paper reads it off a figure, for a model trained on enwik8 with three regions of 768 places. It trains for days;
    the models here learn from about 0.1 MB of Python source.

    seeds: seeds of the weights and of the trainings.
    steps: number of training steps.
    """
    text = read_text("stdlib")
    buckets, bits = [], []
    for seed in seeds:
        model = train_on_text(build_with_equal_start(seed, compression="conv"), text, seed, steps)
        buckets.append(by_bucket(attention_by_slot(model, text.test)))
        bits.append(measure_test_bits(model, text))
    ratios = [mean(values[:BUCKETS]) / values[BUCKETS] for values in buckets]
    middle = seed_mean(buckets)
    places = range(1, len(middle) + 1)
    regions = {name: middle[n * BUCKETS : (n + 1) * BUCKETS] for n, name in enumerate(REGIONS)}
    facts = {
        f"attention per slot, {name}": f"{mean(values):.5f}, by bucket from the oldest: "
        + ", ".join(f"{value:.5f}" for value in values)
        for name, values in regions.items()
    }
    facts["bits per byte of test"] = f"{mean(bits):.3f}"
    facts["steps of training"] = f"{steps} of {ROWS} rows of {LENGTH} bytes, {SIZES['depth']} layers"
    facts["the paper's scale"] = PAPER_SIZES
    lines = [PlotLine(places, values, "", "-", "tab:gray", 0.5) for values in buckets]
    for n, (name, values) in enumerate(regions.items()):
        lines.append(PlotLine(places[n * BUCKETS : (n + 1) * BUCKETS], values, name, "o-"))
    plot = Plot(
        f"attention by age, the oldest left, {steps} steps",
        f"bucket of {SEGMENT // BUCKETS} slots",
        "mean attention per slot",
        lines,
        marks=[BUCKETS + 0.5, 2 * BUCKETS + 0.5],
        log="y",
    )
    measure = Measure("attention per slot, compressed memory divided by oldest memory", ratios, "least", 1)
    return Claim(SAYS, SOURCE, (measure,), facts, (plot,))
