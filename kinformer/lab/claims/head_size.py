"""Head size: heads narrower than a row is long cannot give some attention weights, and wide enough ones give any."""

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.attend import attend
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine, seed_mean
from kinformer.nn.projections.qkv import QKV

LENGTH, SPREAD, ITERATIONS = 8, 2.0, 1000
TINY = 1e-300  # a weight of 0, where a step of the fit goes too far
LEFT, TINY_ERROR = 1e-4, 1e-5  # of the weights: clearly off, and as good as exact
SAYS = "queries and keys of width L - 1 give any attention weights over L tokens, and of width L - 2 they do not"
SOURCE = "Bhojanapalli et al., 2020, arXiv:2002.07028, theorem 1; softmax forgets a shift per row, which is worth one"


class FitError(NamedTuple):
    """By the width of queries and keys, from 1: how far off what was fitted is, and the least that logits must be.

    weights: half the sum of a row's differences, the mean over rows.
    logits: the root of the mean square of differences, each row's mean taken away.
    """

    weights: list[float]
    logits: list[float]


def random_weights(seed: int, length: int = LENGTH) -> Float[Tensor, "T T"]:
    """Random weights, rows of which sum to 1, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return (SPREAD * torch.randn(length, length, generator=generator, dtype=torch.float64)).softmax(-1)


def attention_weights(projection: QKV, x: Float[Tensor, "1 T D"]) -> Float[Tensor, "T T"]:
    """The attention weights of a row, read off with one-hot values."""
    pos = torch.arange(x.shape[1])[None]
    q, k = projection.queries(x, pos).q, projection.keys(x, pos).k
    return attend(q, k, torch.eye(x.shape[1], dtype=x.dtype)[None, None], impl="reference").y[0, 0]


def fit_attention(
    weights: Float[Tensor, "T T"], width: int, seed: int, iterations: int = ITERATIONS
) -> Float[Tensor, "T T"]:
    """Fit the attention of a head of this width over distinct tokens to the given weights, by cross-entropy."""
    length = len(weights)
    with seeded(seed):
        projection = QKV(length, 1, head_dim=width, bias=False).to(weights.dtype)
    x = torch.eye(length, dtype=weights.dtype)[None]
    optimiser = torch.optim.LBFGS(
        projection.parameters(),
        max_iter=iterations,
        history_size=50,
        tolerance_grad=1e-13,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        loss = -(weights * attention_weights(projection, x).clamp_min(TINY).log()).sum(-1).mean()
        loss.backward()
        return loss

    optimiser.step(loss)
    return attention_weights(projection, x).detach()


def least_logit_error(weights: Float[Tensor, "T T"], width: int) -> float:
    """How far logits of this rank must be from those of the weights, whatever is added to a row (Eckart and Young)."""
    logits = weights.log()
    beyond = torch.linalg.svdvals(logits - logits.mean(-1, keepdim=True))[width:]
    return float((beyond.square().sum() / weights.numel()).sqrt())


def measure_errors(seed: int, length: int = LENGTH, iterations: int = ITERATIONS) -> FitError:
    """Of weights that were drawn, for each width up to the length of a row."""
    weights, widths = random_weights(seed, length), range(1, length + 1)
    apart = [(fit_attention(weights, width, seed, iterations) - weights).abs().sum(-1).mean() / 2 for width in widths]
    return FitError([float(error) for error in apart], [least_logit_error(weights, width) for width in widths])


def claim(seeds: Sequence[int], length: int = LENGTH, iterations: int = ITERATIONS) -> Claim:
    """Weights drawn by seeds, fitted by every width."""
    runs = [measure_errors(seed, length, iterations) for seed in seeds]
    measures = (
        Measure(f"the least that width {length - 2} is off", (min(run.weights[-3] for run in runs),), "least", LEFT),
        Measure(
            f"the most that width {length - 1} is off",
            (max(run.weights[-2] for run in runs),),
            "most",
            TINY_ERROR,
            no_effect=LEFT,
        ),
    )
    facts = {
        f"least error of logits at width {width}": f"{mean(run.logits[width - 1] for run in runs):.2g}"
        for width in (length // 2, length - 2, length - 1)
    }
    lines = [
        PlotLine(range(1, length + 1), [max(error, 1e-16) for error in seed_mean(errors)], label, "o-")
        for label, errors in (
            ("weights, fitted", [run.weights for run in runs]),
            ("logits, the least possible", [run.logits for run in runs]),
        )
    ]
    plot = Plot(
        f"random weights over {length} tokens",
        "width of queries and keys",
        "off by",
        lines,
        marks=(length - 1,),
        log="y",
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
