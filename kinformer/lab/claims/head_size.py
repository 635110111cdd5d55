"""Attention over L tokens needs heads of width L - 1 to reach arbitrary attention weights."""

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
TINY = 1e-300  # lower bound of a weight, if a step of the fit goes too far
LEFT, TINY_ERROR = 1e-4, 1e-5  # errors of the weights: clearly wrong, and practically exact
SAYS = "queries and keys of width L - 1 reach any attention weights over L tokens, and width L - 2 does not"
SOURCE = "Bhojanapalli et al., 2020, arXiv:2002.07028, theorem 1; softmax is invariant to a constant per row"


class FitError(NamedTuple):
    """Errors of attention fitted to given weights, for each width of queries and keys from 1 on.

    weights: errors of the fitted weights: half the sum of absolute differences for a query, mean over queries.
    logits: least possible root mean square errors of the logits. A constant may be added to the logits of a query.
    """

    weights: list[float]
    logits: list[float]


def random_weights(seed: int, length: int = LENGTH) -> Float[Tensor, "T T"]:
    """Return random attention weights [query, key] in float64; the weights of each query sum to 1.

    seed: seed of the weights.
    length: number of tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    return (SPREAD * torch.randn(length, length, generator=generator, dtype=torch.float64)).softmax(-1)


def attention_weights(projection: QKV, x: Float[Tensor, "1 T D"]) -> Float[Tensor, "T T"]:
    """Return the attention weights [query, key] of one head over a row of tokens.

    They are the outputs for one-hot values.

    projection: projection of tokens to queries and keys.
    x: hidden states of the tokens.
    """
    pos = torch.arange(x.shape[1])[None]
    q, k = projection.queries(x, pos).q, projection.keys(x, pos).k
    return attend(q, k, torch.eye(x.shape[1], dtype=x.dtype)[None, None], impl="reference").y[0, 0]


def fit_attention(
    weights: Float[Tensor, "T T"], width: int, seed: int, iterations: int = ITERATIONS
) -> Float[Tensor, "T T"]:
    """Train the projection of a head until its attention is near given weights; return its weights.

    The loss is the cross-entropy. All tokens of the row are different.

    weights: attention weights to reach, [query, key].
    width: width of queries and keys.
    seed: seed of the initial projection.
    iterations: largest number of optimiser iterations.
    """
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
    """Return the least root mean square error of attention logits for a width of queries and keys.

    The width bounds the rank of the logits, and the Eckart-Young theorem gives the error of the nearest matrix of a
    rank. A constant may be added to the logits of each query, because the softmax does not depend on it.

    weights: attention weights to reach.
    width: width of queries and keys, which bounds the rank.
    """
    logits = weights.log()
    beyond = torch.linalg.svdvals(logits - logits.mean(-1, keepdim=True))[width:]
    return float((beyond.square().sum() / weights.numel()).sqrt())


def measure_errors(seed: int, length: int = LENGTH, iterations: int = ITERATIONS) -> FitError:
    """Fit random attention weights at each width of queries and keys up to the number of tokens.

    seed: seed of the weights and of the fits.
    length: number of tokens.
    iterations: largest number of optimiser iterations.
    """
    weights, widths = random_weights(seed, length), range(1, length + 1)
    apart = [(fit_attention(weights, width, seed, iterations) - weights).abs().sum(-1).mean() / 2 for width in widths]
    return FitError([float(error) for error in apart], [least_logit_error(weights, width) for width in widths])


def claim(seeds: Sequence[int], length: int = LENGTH, iterations: int = ITERATIONS) -> Claim:
    """Fit random attention weights over L = 8 tokens with every width of queries and keys.

    The error of a fit is half the sum of absolute differences between the fitted and the given weights of a query,
    mean over queries. The claim holds
    if two conditions are met. At width L - 2 the smallest error over seeds is at least 1e-4. At width L - 1 the largest
    error over seeds is at most 1e-5.

    seeds: seeds of the weights.
    length: number of tokens L.
    iterations: largest number of optimiser iterations of a fit.
    """
    runs = [measure_errors(seed, length, iterations) for seed in seeds]
    measures = (
        Measure(
            f"smallest error of the weights at width {length - 2}",
            (min(run.weights[-3] for run in runs),),
            "least",
            LEFT,
        ),
        Measure(
            f"largest error of the weights at width {length - 1}",
            (max(run.weights[-2] for run in runs),),
            "most",
            TINY_ERROR,
            no_effect=LEFT,
        ),
    )
    facts = {
        f"least possible error of logits at width {width}": f"{mean(run.logits[width - 1] for run in runs):.2g}"
        for width in (length // 2, length - 2, length - 1)
    }
    lines = [
        PlotLine(range(1, length + 1), [max(error, 1e-16) for error in seed_mean(errors)], label, "o-")
        for label, errors in (
            ("weights, fitted", [run.weights for run in runs]),
            ("logits, least possible", [run.logits for run in runs]),
        )
    ]
    plot = Plot(
        f"random weights over {length} tokens",
        "width of queries and keys",
        "error",
        lines,
        marks=(length - 1,),
        log="y",
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
