"""Average attention network: a step of decoding costs the same after any number of tokens, and gives what a whole row
gives."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kinformer.core.model import Writer
from kinformer.core.state import leaves
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine, seed_mean, slope
from kinformer.members.average_attention import average_attention
from kinformer.members.gpt import gpt

LENGTHS = (16, 64, 256, 1024)
WIDTH, DEPTH, VOCAB = 32, 2, 64
FLAT = 0.01  # an exponent of 0 is a flat cost, one of 1 a cost that grows as the row
SAYS = "a step of decoding costs as much after a thousand tokens as after ten, and steps give what a whole row gives"
SOURCE = "Zhang et al., 2018, arXiv:1805.00631, abstract and section 3.2 (more than four times as fast, timed)"


class Touched(TorchDispatchMode):
    """How many numbers go into operators and come out of them while it lasts: work that no clock is needed for."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        values = (*args, *(out if isinstance(out, tuple | list) else (out,)))
        self.numbers += sum(value.numel() for value in values if isinstance(value, Tensor))
        return out


@torch.no_grad()
def step(model: Writer, row: Tensor) -> tuple[int, int]:
    """The numbers that the step after a row touches, and the bytes of the state that it reads."""
    model.eval()
    state = model.logits(row, model.start(1, row.shape[1] + 1), last=True).state
    state_bytes = sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(state))
    token = row[:, -1:].clone()
    with Touched() as touched:
        model.logits(token, state, last=True)
    return touched.numbers, state_bytes


@torch.no_grad()
def stepwise_error(model: Writer, row: Tensor) -> float:
    """How far logits of a row that is read token by token are from those of the whole."""
    model.double().eval()
    state, steps = model.start(1, row.shape[1]), []
    for token in row.split(1, 1):
        out = model.logits(token, state)
        state = out.state
        steps.append(out.y)
    return float((torch.cat(steps, 1) - model.logits(row).y).abs().max())


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS) -> Claim:
    """Work and state of a step after rows of each length, of this decoder and of gpt, for random weights and rows."""
    work: dict[str, list[list[int]]] = {"average_attention": [], "gpt": []}
    state_bytes: dict[str, list[list[int]]] = {"average_attention": [], "gpt": []}
    away = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        rows = [torch.randint(VOCAB, (1, length), generator=generator) for length in lengths]
        with seeded(seed):
            ours = average_attention(d=WIDTH, depth=DEPTH, vocab=VOCAB)
            models = {"average_attention": ours, "gpt": gpt(d=WIDTH, depth=DEPTH, vocab=VOCAB, length=2 * lengths[-1])}
        for name, model in models.items():
            numbers, bytes_ = zip(*(step(model, row) for row in rows), strict=True)
            work[name].append(list(numbers))
            state_bytes[name].append(list(bytes_))
        away.append(stepwise_error(ours, rows[min(1, len(rows) - 1)]))
    measures = (
        Measure("exponent of a step's work in the tokens before it", powers(work, lengths), "near", 0.0, within=FLAT),
        Measure("exponent of the state's bytes", powers(state_bytes, lengths), "near", 0.0, within=FLAT),
        Measure("furthest of token by token from the whole row, float64", away, "most", 1e-10),
    )
    facts = {
        f"{unit} of a step after {', '.join(map(str, lengths))} tokens, {name}": ", ".join(
            f"{mean(column):,.0f}" for column in zip(*of[name], strict=True)
        )
        for unit, of in (("numbers touched", work), ("bytes of state", state_bytes))
        for name in models
    }
    means = {name: seed_mean(numbers) for name, numbers in work.items()}
    lines = [PlotLine(lengths, y, f"{name}, times {y[-1] / y[0]:.2f}", "o-") for name, y in means.items()]
    plot = Plot(
        "numbers that a step touches", "tokens before it", "numbers", lines, log="x", ticks=lengths, ylim=(0, None)
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))


def powers(counts: dict[str, list[list[int]]], lengths: Sequence[int]) -> list[float]:
    """The exponent of each seed's numbers."""
    return [slope(lengths, numbers) for numbers in counts["average_attention"]]
