"""Training of exit translators and shortcuts: affine maps between the hidden states of a frozen model."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.autocast import at_least_float32
from kinformer.core.conversion import Progress
from kinformer.core.eval_mode import evaluating
from kinformer.core.token_positions import context_of_tokens
from kinformer.models.lm import LM
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.confidence import apply_in_float32
from kinformer.nn.exits.linear_shortcut import LinearShortcut
from kinformer.nn.exits.tuned_lens import TunedLens

TOKENS = 16_384  # most tokens to train on
AT_ONCE = 2048  # tokens that the source reads in one call
BATCH, STEPS, RATE = 256, 300, 1e-3  # tokens of a step, steps of an epoch-free training, and its first learning rate
RIDGE = 0.01  # of least squares, as a share of the mean square of a coordinate
LIKELY, SAMPLED = 4096, 2048  # tokens of the vocabulary that every step reads: the likeliest, and random others


def fit_translators(source: LM, body: EarlyExit, rows: Int[Tensor, "N T"], progress: Progress) -> None:
    """Train the translators (`TunedLens`) and the shortcuts of a converted model on rows of tokens.

    A shortcut is the least-squares map from the input to the output of its layer, relative to the size of the input.
    The first tokens of a row can have states that are a thousand times as large. A translator starts as the
    least-squares map from the exit's states to the last states. It is then trained by the divergence KL(p | q) of its
    predictions q from the source's p. With a large vocabulary, q and p are normalised over the likeliest tokens and a
    weighted sample of the others, which differs from step to step.

    source: the trained model.
    body: layers of the converted model, with the same weights.
    rows: rows of tokens.
    progress: function that is called with the stage and its finished fraction.
    """
    lenses = {n: lens for n, lens in enumerate(body.heads) if isinstance(lens, TunedLens)}
    shortcuts = {n: part for n, part in enumerate(body.shortcuts or ()) if isinstance(part, LinearShortcut)}
    states, last, sums = _read_layers(source, lenses, shortcuts, rows, progress)
    for n, shortcut in shortcuts.items():
        shortcut.set_map(*sums[n].solve())
    weight = at_least_float32(source.head.weight.detach())
    generator = torch.Generator().manual_seed(0)
    wide = {n: _widen(lens.translator) for n, lens in lenses.items()}
    metric = _metric(weight)
    for n, translator in wide.items():
        fit = _LeastSquares(last)
        fit.add(states[n], last - states[n])
        translator.set_map(*fit.solve(), metric)
    _train(wide, states, last, source, weight, generator, progress)
    with torch.no_grad():
        for n, lens in lenses.items():
            for mine, trained in zip(lens.translator.own, wide[n].own, strict=True):
                mine.copy_(trained)


class _LeastSquares:
    """Sums of a least-squares fit of affine maps y = A x + b."""

    def __init__(self, like: Float[Tensor, "M D"]):
        d = like.shape[1]
        self.square = torch.zeros(d + 1, d + 1, dtype=torch.float64, device=like.device)
        self.product = torch.zeros(d + 1, d, dtype=torch.float64, device=like.device)

    def add(self, x: Float[Tensor, "M D"], y: Float[Tensor, "M D"], size: Float[Tensor, "M 1"] | float = 1.0) -> None:
        """Add examples, whose errors are divided by a size."""
        with_one = torch.cat([x, torch.ones_like(x[:, :1])], 1).double() / size
        self.square += with_one.T @ with_one
        self.product += with_one.T @ (y.double() / size)

    def solve(self) -> tuple[Float[Tensor, "D D"], Float[Tensor, " D"]]:
        """Return A and b, with a small ridge penalty."""
        ridge = RIDGE * self.square.diagonal()[:-1].mean().clamp_min(torch.finfo(torch.float64).tiny)
        both = torch.linalg.solve(self.square + ridge * torch.eye(len(self.square)).to(self.square), self.product)
        return both[:-1].T, both[-1]


def _widen(translator: LinearShortcut) -> LinearShortcut:
    """Return a copy of a translator in float32 or better."""
    # a copy, because a new translator would draw weights from the global random numbers
    return copy.deepcopy(translator).to(at_least_float32(translator.map.weight))


@torch.no_grad()
def _read_layers(
    source: LM, lenses: Mapping[int, TunedLens], shortcuts: Iterable[int], rows: Int[Tensor, "N T"], progress: Progress
) -> tuple[dict[int, Float[Tensor, "M D"]], Float[Tensor, "M D"], dict[int, _LeastSquares]]:
    """Return the normed states at each exit and at the end, and the sums of each shortcut, for up to TOKENS tokens."""
    names = tuple(str(n) for n in sorted({*lenses, *shortcuts, *(n - 1 for n in shortcuts)}))
    rows = rows[: max(1, math.ceil(TOKENS / max(rows.shape[1], 1)))]
    states, ends, sums = {n: list[Tensor]() for n in lenses}, list[Tensor](), dict[int, _LeastSquares]()
    size = max(1, AT_ONCE // max(rows.shape[1], 1))
    with evaluating(source):
        for at, piece in enumerate(rows.split(size)):
            out = source.hidden(piece, None, context_of_tokens(piece, None).replace(taps=names))
            real = piece >= 0
            taps = {int(name): at_least_float32(h[real]) for name, h in out.taps.items()}
            for n, lens in lenses.items():
                states[n].append(apply_in_float32(lens.norm, taps[n]))
            for n in shortcuts:
                x, y = taps[n - 1], taps[n]
                length = x.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
                sums.setdefault(n, _LeastSquares(x)).add(x, y - x, length / math.sqrt(x.shape[1]))
            ends.append(at_least_float32(out.y[real]))
            progress("read the layers", min((at + 1) * size / len(rows), 1.0))
    return {n: torch.cat(pieces) for n, pieces in states.items()}, torch.cat(ends), sums


def _metric(weight: Float[Tensor, "V D"]) -> Float[Tensor, "D D"]:
    """Return L with |L x| equal to the size of a change x in the logits, up to a factor."""
    square = (weight.T @ weight / len(weight)).double()
    floor = 1e-6 * square.diagonal().mean()
    lower: Tensor = torch.linalg.cholesky(square + floor * torch.eye(len(square), device=square.device))
    return lower.T


@torch.enable_grad()
def _train(
    translators: Mapping[int, LinearShortcut],
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
    parameters = [x.requires_grad_() for translator in translators.values() for x in translator.own]
    optimiser = torch.optim.Adam(parameters, lr=RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1, (step + 1) / 20) * (1 - step / STEPS))
    choices = _vocabulary(last, weight, bias, generator)
    for step, batch in zip(range(STEPS), _batches(len(last), generator), strict=False):
        tokens, extra = next(choices)
        chosen, shift = weight[tokens], bias[tokens] + extra
        log_p = torch.addmm(shift, last[batch], chosen.T).log_softmax(-1)
        for n, translator in translators.items():
            log_q = torch.addmm(shift, translator(states[n][batch]), chosen.T).log_softmax(-1)
            (log_p.exp() * (log_p - log_q)).sum(-1).mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
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
