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
SOURCE = "Bhojanapalli et al., 2020, arXiv:2002.07028, theorem 1; softmax forgets a shift per row, which is worth one"


class FitError(NamedTuple):
    """Errors by the width of queries and keys, from width 1.

    weights: half the sum of a row's absolute differences after the fit, mean over rows.
    logits: least possible root mean square error of the logits, each row centred.
    """

    weights: list[float]
    logits: list[float]


def random_weights(seed: int, length: int = LENGTH) -> Float[Tensor, "T T"]:
    """Return random attention weights in float64; each row sums to 1.

    seed: seed of the weights.
    length: number of tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    return (SPREAD * torch.randn(length, length, generator=generator, dtype=torch.float64)).softmax(-1)


def attention_weights(projection: QKV, x: Float[Tensor, "1 T D"]) -> Float[Tensor, "T T"]:
    """Return the attention weights of a row, read from the output for one-hot values.

    projection: projection of queries and keys.
    x: states of the tokens.
    """
    pos = torch.arange(x.shape[1])[None]
    q, k = projection.queries(x, pos).q, projection.keys(x, pos).k
    return attend(q, k, torch.eye(x.shape[1], dtype=x.dtype)[None, None], impl="reference").y[0, 0]


def fit_attention(
    weights: Float[Tensor, "T T"], width: int, seed: int, iterations: int = ITERATIONS
) -> Float[Tensor, "T T"]:
    """Fit the attention of a head over distinct tokens to given weights, by cross-entropy.

    weights: attention weights to reach.
    width: width of queries and keys.
    seed: seed of the first projection.
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
    """Return the least possible error of logits of this rank, by the Eckart-Young theorem.

    A constant may be added to each row of logits, because the softmax ignores it.

    weights: attention weights to reach.
    width: width of queries and keys, which bounds the rank.
    """
    logits = weights.log()
    beyond = torch.linalg.svdvals(logits - logits.mean(-1, keepdim=True))[width:]
    return float((beyond.square().sum() / weights.numel()).sqrt())


def measure_errors(seed: int, length: int = LENGTH, iterations: int = ITERATIONS) -> FitError:
    """Return the errors for random weights at each width up to the number of tokens.

    seed: seed of the weights and of the fits.
    length: number of tokens.
    iterations: largest number of optimiser iterations.
    """
    weights, widths = random_weights(seed, length), range(1, length + 1)
    apart = [(fit_attention(weights, width, seed, iterations) - weights).abs().sum(-1).mean() / 2 for width in widths]
    return FitError([float(error) for error in apart], [least_logit_error(weights, width) for width in widths])


def claim(seeds: Sequence[int], length: int = LENGTH, iterations: int = ITERATIONS) -> Claim:
    """Fit random attention weights over 8 tokens with every width of queries and keys.

    The claim holds if two conditions are met. At width L - 2 the smallest error over seeds is at least 1e-4. At width L
    - 1 the largest error over seeds is at most 1e-5. An error is half the sum of a row's absolute differences, mean
    over rows.

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
