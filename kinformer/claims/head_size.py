"""Head size: heads narrower than a row is long cannot give some attention weights, and wide enough ones give any."""

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.claims.support.verdict import Claim, Measure

LENGTH, SPREAD, ITERATIONS = 8, 2.0, 1000
LEFT, NONE = 1e-4, 1e-5  # of the weights: clearly off, and as good as exact
SAYS = "queries and keys of width L - 1 give any attention weights over L tokens, and of width L - 2 they do not"
SOURCE = "Bhojanapalli et al., 2020, arXiv:2002.07028, theorem 1; softmax forgets a shift per row, which is worth one"


class Off(NamedTuple):
    """By the width of queries and keys, from 1: how far off what was fitted is, and the least that logits must be.

    weights: half the sum of a row's differences, the mean over rows.
    logits: the root of the mean square of differences, each row's mean taken away.
    """

    weights: list[float]
    logits: list[float]


def wanted(seed: int, length: int = LENGTH) -> Float[Tensor, "T T"]:
    """Random weights, rows of which sum to 1, in float64."""
    drawn = torch.Generator().manual_seed(seed)
    return (SPREAD * torch.randn(length, length, generator=drawn, dtype=torch.float64)).softmax(-1)


def fitted(weights: Float[Tensor, "T T"], width: int, seed: int, iterations: int = ITERATIONS) -> Float[Tensor, "T T"]:
    """Weights of queries and keys of this width that were fitted to these, by their cross-entropy."""
    drawn = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(len(weights), width, generator=drawn, dtype=weights.dtype).requires_grad_() for _ in range(2))
    optimiser = torch.optim.LBFGS(
        [q, k], max_iter=iterations, history_size=50, tolerance_grad=1e-13, tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = -(weights * (q @ k.mT / width**0.5).log_softmax(-1)).sum(-1).mean()
        found.backward()
        return found

    optimiser.step(loss)
    return (q @ k.mT / width**0.5).softmax(-1).detach()


def least(weights: Float[Tensor, "T T"], width: int) -> float:
    """How far logits of this rank must be from those of the weights, whatever is added to a row (Eckart and Young)."""
    logits = weights.log()
    beyond = torch.linalg.svdvals(logits - logits.mean(-1, keepdim=True))[width:]
    return float((beyond.square().sum() / weights.numel()).sqrt())


def off(seed: int, length: int = LENGTH, iterations: int = ITERATIONS) -> Off:
    """Of weights that were drawn, for each width up to the length of a row."""
    weights, widths = wanted(seed, length), range(1, length + 1)
    apart = [(fitted(weights, width, seed, iterations) - weights).abs().sum(-1).mean() / 2 for width in widths]
    return Off([float(one) for one in apart], [least(weights, width) for width in widths])


def claim(seeds: Sequence[int], length: int = LENGTH, iterations: int = ITERATIONS) -> Claim:
    """Weights drawn by seeds, fitted by every width."""
    found = [off(seed, length, iterations) for seed in seeds]
    measures = (
        Measure(f"what width {length - 2} is off", [one.weights[-3] for one in found], "least", LEFT),
        Measure(f"what width {length - 1} is off", [one.weights[-2] for one in found], "most", NONE, nothing=LEFT),
    )
    told = {
        f"least error of logits at width {width}": f"{mean(one.logits[width - 1] for one in found):.2g}"
        for width in (length // 2, length - 2, length - 1)
    }
    return Claim(SAYS, SOURCE, measures, told, {f"random weights over {length} tokens": partial(_draw, found)})


def _draw(found: list[Off], axes: Any) -> None:
    widths = range(1, len(found[0].weights) + 1)
    for numbers, label in zip(zip(*found, strict=True), ("weights, fitted", "logits, the least possible"), strict=True):
        means = [max(mean(each), 1e-16) for each in zip(*numbers, strict=True)]
        axes.semilogy(widths, means, "o-", label=label)
    axes.axvline(len(widths) - 1, color="tab:gray", linestyle="--", linewidth=0.7)
    axes.set(xlabel="width of queries and keys", ylabel="off by")
    axes.legend(fontsize=8)
