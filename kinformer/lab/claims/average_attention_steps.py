"""An average attention decoder takes equal work per step, however many tokens it has read."""

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
FLAT = 0.01  # exponent 0: the cost is constant; exponent 1: the cost grows with the row
SAYS = "a decoding step costs the same after a thousand tokens as after ten, and steps give the results of a whole row"
SOURCE = "Zhang et al., 2018, arXiv:1805.00631, abstract and section 3.2 (more than four times as fast, timed)"


class Touched(TorchDispatchMode):
    """Context that counts the numbers in all inputs and outputs of PyTorch operators.

    The count measures the work of a call without a clock."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        values = (*args, *(out if isinstance(out, tuple | list) else (out,)))
        self.numbers += sum(value.numel() for value in values if isinstance(value, Tensor))
        return out


@torch.no_grad()
def step(model: Writer, row: Tensor) -> tuple[int, int]:
    """Return the work of the decoding step after a row of tokens, and the size of the decoding state.

    The work is the count of numbers that operators read and write in the step. The size is in bytes.

    model: decoder.
    row: tokens before the step.
    """
    model.eval()
    state = model.logits(row, model.start(1, row.shape[1] + 1), last=True).state
    state_bytes = sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(state))
    token = row[:, -1:].clone()
    with Touched() as touched:
        model.logits(token, state, last=True)
    return touched.numbers, state_bytes


@torch.no_grad()
def stepwise_error(model: Writer, row: Tensor) -> float:
    """Return the largest difference of a decoder's logits, token by token and for the whole row at once.

    Both are computed in float64.

    model: decoder; it is converted to float64.
    row: tokens to read.
    """
    model.double().eval()
    state, steps = model.start(1, row.shape[1]), []
    for token in row.split(1, 1):
        out = model.logits(token, state)
        state = out.state
        steps.append(out.y)
    return float((torch.cat(steps, 1) - model.logits(row).y).abs().max())


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS) -> Claim:
    """Measure the work and the state size of a decoding step after rows of several lengths.

    The work is the count of numbers that operators read and write in a step. The decoder `average_attention` and a
    `gpt` are measured, with random weights and rows. The claim holds if work and state size of `average_attention` grow
    with an exponent of 0, within 0.01, in the number of earlier tokens. Its logits token by token must also equal the
    logits of the whole row within 1e-10. `gpt` is only a comparison.

    seeds: seeds of weights and rows.
    lengths: numbers of tokens before the step.
    """
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
        Measure(
            "growth exponent of a step's work in the number of earlier tokens",
            powers(work, lengths),
            "near",
            0.0,
            within=FLAT,
        ),
        Measure(
            "growth exponent of the state's bytes in the number of earlier tokens",
            powers(state_bytes, lengths),
            "near",
            0.0,
            within=FLAT,
        ),
        Measure("largest difference of logits, token by token against the whole row, float64", away, "most", 1e-10),
    )
    facts = {
        f"{unit} of a step after {', '.join(map(str, lengths))} tokens, {name}": ", ".join(
            f"{mean(column):,.0f}" for column in zip(*of[name], strict=True)
        )
        for unit, of in (("numbers touched", work), ("bytes of state", state_bytes))
        for name in models
    }
    means = {name: seed_mean(numbers) for name, numbers in work.items()}
    lines = [PlotLine(lengths, y, f"{name}, grows {y[-1] / y[0]:.2f} times", "o-") for name, y in means.items()]
    plot = Plot(
        "numbers that a decoding step touches",
        "tokens before the step",
        "numbers",
        lines,
        log="x",
        ticks=lengths,
        ylim=(0, None),
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))


def powers(counts: dict[str, list[list[int]]], lengths: Sequence[int]) -> list[float]:
    """Return, for each seed, the exponent with which a count of `average_attention` grows in the length.

    counts: for each model and seed, a count (of work or of bytes) per length.
    lengths: numbers of tokens before the step.
    """
    return [slope(lengths, numbers) for numbers in counts["average_attention"]]
