"""generate: continue prompts with any model that has `start` and `logits`, by drawing tokens or by beam search."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.layer import Out, State
from kinformer.core.state import leaves, select


@runtime_checkable
class Generative(Protocol):
    """What can be continued: a language model, or a sequence-to-sequence model, which also has `begin` and `end`."""

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> State: ...

    @property
    def logits(self) -> Callable[..., Out]: ...


class Text(NamedTuple):
    """Rows that are being written: their tokens, how many of the last ones the state has not read, and the state.

    `source` goes to cross-attention in the next call: without a state in every one, with a state in the first alone.
    """

    rows: Int[Tensor, "B T"]
    unread: int
    state: State | None
    source: Int[Tensor, "R S"] | None


def generate(
    model: nn.Module,
    tokens: Int[Tensor, "B T"] | None,
    steps: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    beam: int = 1,
    stop: int | None = None,
    seed: int | None = None,
    state: State | None = None,
    source: Int[Tensor, "R S"] | None = None,
    recompute: bool = False,
) -> Int[Tensor, "B N"]:
    """Each prompt followed by up to `steps` new tokens: [B, T + steps], with -1 after `stop` where a row has met it.

    Prompts of different lengths are padded with -1 on the left. A token is drawn from softmax(logits / temperature), of
    the `top_k` likeliest tokens or of the fewest likeliest whose probabilities reach `top_p`; temperature=0 takes the
    likeliest, the first of equal ones. The same `seed` draws the same text for the same batch.

    `beam` > 1 searches instead of drawing: at each step it keeps the `beam` likeliest continuations, and a row ends
    where its `stop` is among the `beam` likeliest continuations of the step. The likeliest of the rows that ended and
    of those unfinished after the last step is returned. Likeliest means the largest sum of log-probabilities; there is
    no length normalisation, so short rows are favoured.

    `source` is what a sequence-to-sequence model translates; it is read once. Its prompt begins with `model.begin`:
    tokens=None is that alone (T is 0 in what is returned), and `stop` is `model.end` unless given. `state` goes on from
    a state, which is spent then; `recompute=True` keeps none and reads the whole row at each step.

    The model runs in eval mode, without gradients, and is left as it was. Errors: ValueError for arguments without a
    meaning, NoState from a model that cannot decode. Source: top-k: Fan et al., 2018, arXiv:1805.04833; top-p: Holtzman
    et al., 2020, arXiv:1904.09751.
    """
    _check(steps, temperature, top_k, top_p, beam, state, recompute)
    if not isinstance(model, Generative):
        raise TypeError(f"{type(model).__name__} has no start and logits, so it cannot go on; give an LM or a Seq2Seq")
    weight = next(model.parameters())
    prompt = _prompt(model, tokens, source, state).to(weight.device, torch.long)
    stop = getattr(model, "end", -1) if stop is None else stop
    with _evaluating(model), torch.no_grad():
        if state is None and not recompute:
            state = model.start(len(prompt), prompt.shape[1] + steps, dtype=weight.dtype, device=weight.device)
        text = Text(prompt, prompt.shape[1], state, None if source is None else source.to(weight.device))
        if beam > 1:
            rows = _search(model, text, steps, beam, stop)
        else:
            rows = _draw(model, text, steps, stop, _sampler(temperature, top_k, top_p, seed, weight.device))
    return rows if tokens is not None else rows[:, 1:]


# Drawing -------------------------------------------------------------------------------------------------------------


def _draw(
    model: Generative, text: Text, steps: int, stop: int, choose: Callable[[Tensor], Tensor]
) -> Int[Tensor, "B N"]:
    done = torch.zeros(len(text.rows), dtype=torch.bool, device=text.rows.device)
    width = text.rows.shape[1] + steps
    for _ in range(steps):
        if bool(done.all()):
            break
        logits, text = _read(model, text)
        new = torch.where(done, -1, choose(logits))
        done = done | (new == stop)
        text = _written(text, new)
    return _padded(text.rows, width)


def _sampler(
    temperature: float, top_k: int | None, top_p: float | None, seed: int | None, device: torch.device
) -> Callable[[Tensor], Tensor]:
    if temperature == 0:
        return lambda logits: logits.argmax(-1)
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)

    def choose(logits: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature
        logits = logits if top_k is None else keep_top_k(logits, top_k)
        logits = logits if top_p is None else keep_top_p(logits, top_p)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

    return choose


def keep_top_k(logits: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """The k largest logits of each row, the first of equal ones; -inf in place of the others."""
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices
    return _only(logits, order, torch.arange(logits.shape[-1], device=logits.device).expand_as(order) < k)


def keep_top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """The fewest largest logits of each row whose probabilities reach p, all for p=1; -inf in place of the others."""
    sorted_, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    probability = sorted_.softmax(-1)
    before = probability.cumsum(-1) - probability
    return _only(logits, order, (before < p) | (p >= 1))


def _only(logits: Tensor, order: Int[Tensor, "B V"], kept: Bool[Tensor, "B V"]) -> Tensor:
    return logits.masked_fill(~torch.zeros_like(kept).scatter(-1, order, kept), -torch.inf)


# Beam search ---------------------------------------------------------------------------------------------------------


def _search(model: Generative, text: Text, steps: int, beam: int, stop: int) -> Int[Tensor, "B N"]:
    batch, width = text.rows.shape[0], text.rows.shape[1] + steps
    score = torch.zeros(batch, 1, device=text.rows.device)  # of each row that goes on: at first the prompt alone
    best, best_score = _padded(text.rows, width), torch.full_like(score[:, 0], -torch.inf)
    every = torch.arange(batch, device=score.device)
    for _ in range(steps):
        logits, text = _read(model, text)
        score, parent, new = _continued(score, logits, beam)
        text = _written(_taken(text, parent.flatten()), new.flatten())
        rows = _padded(text.rows, width).unflatten(0, score.shape)
        ends = new == stop
        ended, which = score.masked_fill(~ends, -torch.inf).max(1)
        best = torch.where((ended > best_score)[:, None], rows[every, which], best)
        best_score = torch.maximum(best_score, ended)
        # an ended row leaves its place empty: sums only fall, so what ranked below it could never have overtaken it
        score = score.masked_fill(ends, -torch.inf)
        if bool((best_score >= score.amax(1)).all()):
            break
    likeliest, which = score.max(1)
    rows = _padded(text.rows, width).unflatten(0, score.shape)[every, which]
    return torch.where((best_score >= likeliest)[:, None], best, rows)


def _continued(
    score: Float[Tensor, "B R"], logits: Float[Tensor, "BR V"], most: int
) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"], Int[Tensor, "B N"]]:
    """The likeliest ways to go on, best first, the smaller row and token first among equals: score, row and token."""
    batch, rows = score.shape
    scores = score[..., None] + logits.log_softmax(-1).unflatten(0, (batch, rows))
    score, order = (x[:, :most] for x in torch.sort(scores.flatten(1), dim=-1, descending=True, stable=True))
    first = torch.arange(batch, device=score.device)[:, None] * rows
    return score, first + order // logits.shape[-1], order % logits.shape[-1]


# One step ------------------------------------------------------------------------------------------------------------


def _read(model: Generative, text: Text) -> tuple[Float[Tensor, "B V"], Text]:
    """The logits after the last token of each row, and the text with everything read."""
    unread = text.rows if text.state is None else text.rows[:, text.rows.shape[1] - text.unread :]
    source = {} if text.source is None else {"source": text.source}
    out = model.logits(unread, text.state, **source)
    logits = out.y[:, -1].to(torch.promote_types(out.y.dtype, torch.float32))
    return logits, text._replace(state=out.state, unread=0, source=text.source if out.state is None else None)


def _written(text: Text, new: Int[Tensor, " B"]) -> Text:
    return text._replace(rows=torch.cat([text.rows, new[:, None]], 1), unread=text.unread + 1)


def _taken(text: Text, rows: Int[Tensor, " R"]) -> Text:
    state = None if text.state is None else select(text.state, rows)
    return Text(text.rows[rows], text.unread, state, None if text.source is None else text.source[rows])


def _padded(rows: Int[Tensor, "B T"], width: int) -> Int[Tensor, "B N"]:
    return nn.functional.pad(rows, (0, width - rows.shape[1]), value=-1)


# What came in --------------------------------------------------------------------------------------------------------


def _check(
    steps: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    beam: int,
    state: State | None,
    recompute: bool,
) -> None:
    if steps < 0:
        raise ValueError(f"steps={steps} is negative; give the number of tokens to generate")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} is no number from 0 up; 0 takes the likeliest, 1 draws as it is")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} leaves no token; give 1 or more, or None for all")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} is no probability above 0; give up to 1, or None for all tokens")
    if beam < 1:
        raise ValueError(f"beam={beam} keeps no row; give 1 to draw, or more to search")
    if beam > 1 and (temperature not in (0, 1) or top_k is not None or top_p is not None):
        raise ValueError(f"beam={beam} draws nothing, so temperature, top_k and top_p are refused; drop them or it")
    if recompute and state is not None:
        raise ValueError("recompute=True reads the whole row at each step and takes no state; drop one of the two")


def _prompt(
    model: Generative, tokens: Int[Tensor, "B T"] | None, source: Int[Tensor, "R S"] | None, state: State | None
) -> Int[Tensor, "B T"]:
    if tokens is None:
        begin = getattr(model, "begin", None)
        if source is None or begin is None:
            raise ValueError("tokens=None starts from a model's begin token and needs a source; give a prompt [B, T]")
        return torch.full((len(source), 1), begin)
    if not tokens.shape[1]:
        raise ValueError("the prompt is empty (T = 0); give at least one token for each row")
    padded = (tokens[:, -1] < 0).nonzero()[:, 0].tolist()
    if padded:
        raise ValueError(f"row {padded[0]} of the prompt ends with padding (-1); give it a token, and pad on the left")
    for what, rows in (("source", None if source is None else len(source)), ("state", _batch(state))):
        if rows not in (None, len(tokens)):
            raise ValueError(f"the prompt has {len(tokens)} rows and the {what} {rows}; give both the same number")
    return tokens


def _batch(state: State | None) -> int | None:
    found = [] if state is None else leaves(state)
    return len(found[0][1]) if found else None


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
