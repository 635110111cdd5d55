"""Training of exit translators: affine maps from hidden states at exits to a frozen model's predictions."""

import math
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32
from kinformer.core.conversion import Progress
from kinformer.core.eval_mode import evaluating
from kinformer.core.token_positions import context_of_tokens
from kinformer.models.lm import LM
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.tuned_lens import TunedLens

TOKENS = 16_384  # most tokens to train on
AT_ONCE = 2048  # tokens that the source reads in one call
BATCH, STEPS, RATE = 256, 300, 1e-3  # tokens of a step, steps of an epoch-free training, and its first learning rate
RIDGE = 0.01  # of least squares, as a share of the mean square of a coordinate
LIKELY, SAMPLED = 4096, 2048  # tokens of the vocabulary that every step reads: the likeliest, and random others


def fit_translators(source: LM, body: EarlyExit, rows: Int[Tensor, "N T"], progress: Progress) -> None:
    """Train the translators (`TunedLens`) of a converted model on rows of tokens.

    Each starts as the least-squares map from the exit's states to the last states, and is then trained by the
    divergence KL(p | q) of its predictions q from the source's p. With a large vocabulary, q and p are normalised over
    the likeliest tokens and a weighted sample of the others, which differs from step to step.

    source: the trained model.
    body: layers of the converted model, with the same weights.
    rows: rows of tokens.
    progress: function that is called with the stage and its finished fraction.
    """
    lenses = {n: lens for n, lens in enumerate(body.heads) if isinstance(lens, TunedLens)}
    states, last = _states(source, lenses, rows, progress)
    weight = at_least_float32(source.head.weight.detach())
    generator = torch.Generator().manual_seed(0)
    wide = {n: _widen(lens) for n, lens in lenses.items()}
    metric = _metric(weight)
    for n, lens in wide.items():
        _start(lens, states[n], last, metric)
    _train(wide, states, last, source, weight, generator, progress)
    with torch.no_grad():
        for n, lens in lenses.items():
            for mine, trained in zip(lens.own, wide[n].own, strict=True):
                mine.copy_(trained)


def _widen(lens: TunedLens) -> TunedLens:
    """Return a translator with the same map in float32 or better, without a norm."""
    like = at_least_float32(lens.map.weight)
    rank = None if lens.low is None else lens.low.out_features
    return TunedLens(lens.map.out_features, nn.Identity(), rank=rank).to(like)


@torch.no_grad()
def _states(
    source: LM, lenses: Mapping[int, TunedLens], rows: Int[Tensor, "N T"], progress: Progress
) -> tuple[dict[int, Float[Tensor, "M D"]], Float[Tensor, "M D"]]:
    """Return the normed states at each exit and at the end, for up to TOKENS tokens of the rows."""
    names = tuple(str(n) for n in lenses)
    rows = rows[: max(1, math.ceil(TOKENS / max(rows.shape[1], 1)))]
    states, ends = {n: list[Tensor]() for n in lenses}, list[Tensor]()
    size = max(1, AT_ONCE // max(rows.shape[1], 1))
    with evaluating(source):
        for at, piece in enumerate(rows.split(size)):
            ctx = context_of_tokens(piece, None).replace(taps=names)
            out = source.hidden(piece, None, ctx)
            real = piece >= 0
            for n, lens in lenses.items():
                states[n].append(at_least_float32(lens.norm(out.taps[str(n)])[real]))
            ends.append(at_least_float32(out.y[real]))
            progress("read the layers", min((at + 1) * size / len(rows), 1.0))
    return {n: torch.cat(pieces) for n, pieces in states.items()}, torch.cat(ends)


def _metric(weight: Float[Tensor, "V D"]) -> Float[Tensor, "D D"]:
    """Return L with |L x| equal to the size of a change x in the logits, up to a factor."""
    square = (weight.T @ weight / len(weight)).double()
    floor = 1e-6 * square.diagonal().mean()
    lower: Tensor = torch.linalg.cholesky(square + floor * torch.eye(len(square), device=square.device))
    return lower.T


def _start(lens: TunedLens, z: Float[Tensor, "M D"], last: Float[Tensor, "M D"], metric: Float[Tensor, "D D"]) -> None:
    """Set a translator to the least-squares map from the states of an exit to the last states."""
    x = torch.cat([z, torch.ones_like(z[:, :1])], 1).double()
    square = x.T @ x
    square.diagonal().add_(RIDGE * square.diagonal()[:-1].mean())
    both = torch.linalg.solve(square, x.T @ (last - z).double())  # [D + 1, D]
    lens.set_map(both[:-1].T, both[-1], metric)


def _train(
    lenses: Mapping[int, TunedLens],
    states: Mapping[int, Float[Tensor, "M D"]],
    last: Float[Tensor, "M D"],
    source: LM,
    weight: Float[Tensor, "V D"],
    generator: torch.Generator,
    progress: Progress,
) -> None:
    """Train translators by the divergence of their predictions from the source's."""
    bias = getattr(source.head, "bias", None)
    bias = last.new_zeros(len(weight)) if bias is None else at_least_float32(bias.detach())
    parameters = [x.requires_grad_() for lens in lenses.values() for x in lens.own]
    optimiser = torch.optim.Adam(parameters, lr=RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1, (step + 1) / 20) * (1 - step / STEPS))
    choices = _vocabulary(last, weight, bias, generator)
    for step, batch in zip(range(STEPS), _batches(len(last), generator), strict=False):
        tokens, extra = next(choices)
        chosen, shift = weight[tokens], bias[tokens] + extra
        log_p = torch.addmm(shift, last[batch], chosen.T).log_softmax(-1)
        for n, lens in lenses.items():
            log_q = torch.addmm(shift, lens.translate(states[n][batch]), chosen.T).log_softmax(-1)
            (log_p.exp() * (log_p - log_q)).sum(-1).mean().backward()
        optimiser.step(), optimiser.zero_grad(), schedule.step()
        progress("train the translators", (step + 1) / STEPS)


def _batches(count: int, generator: torch.Generator) -> Iterator[Int[Tensor, " _"]]:
    """Yield the numbers of the tokens of each step, without end."""
    while True:
        yield from torch.randperm(count, generator=generator).split(BATCH)


def _vocabulary(
    last: Float[Tensor, "M D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, " V"], generator: torch.Generator
) -> Iterator[tuple[Int[Tensor, " _"], Float[Tensor, " _"]]]:
    """Yield the vocabulary of each step, and a number to add to each logit, so that sums over it are unbiased."""
    if len(weight) <= LIKELY + SAMPLED:
        while True:
            yield torch.arange(len(weight), device=weight.device), torch.zeros_like(bias)
    few = torch.randperm(len(last), generator=generator)[: 4 * BATCH]
    mean = sum(torch.addmm(bias, piece, weight.T).softmax(-1).sum(0) for piece in last[few].split(BATCH))
    assert isinstance(mean, Tensor)
    order = mean.argsort(descending=True)
    likely, others = order[:LIKELY], order[LIKELY:]
    extra = bias.new_zeros(LIKELY + SAMPLED)
    extra[LIKELY:] = math.log(len(others) / SAMPLED)
    while True:
        sample = torch.randperm(len(others), generator=generator)[:SAMPLED].to(others.device)
        yield torch.cat([likely, others[sample]]), extra
