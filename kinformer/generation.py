"""generate: continue prompts with any model that has `start` and `logits`, by drawing tokens or by beam search."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from kinformer.core.cache import widened
from kinformer.core.layer import Context, State
from kinformer.core.state import leaves, select
from kinformer.models.support.sliding import Sliding, beyond

FIRST = 64  # tokens that top-p looks at before it looks at more


class Text(NamedTuple):
    """Rows that are being written: their tokens, how many of the last ones the state has not read, and the state.

    `given` goes to the next call of the model: what a state has to be told once, and a call without one every time.
    `full` says that a fresh state reads rows without padding: their tokens then stand where they lie.
    """

    rows: Int[Tensor, "B T"]
    unread: int
    state: State | None
    given: dict[str, Any]
    full: bool = False


def generate(
    model: Any,
    tokens: Shaped[Tensor, "B T"] | None,
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
    hear: Callable[[Int[Tensor, " B"]], None] | None = None,
) -> Int[Tensor, "B N"]:
    """Each prompt followed by up to `steps` new tokens: [B, T + steps], with -1 after `stop` where a row has met it.

    The model runs in eval mode, without gradients, and is left as it was.

    model: a language model, or a sequence-to-sequence model, which also has `begin` and `end`.
    tokens: prompts, padded with -1 on the left where their lengths differ. None is `model.begin` alone, which is not
        returned.
    steps: how many tokens to write at most.
    temperature: tokens are drawn from softmax(logits / temperature); 0 takes the likeliest, the first of equal ones.
    top_k: draw from so many of the likeliest alone.
    top_p: draw from the fewest likeliest whose probabilities reach this.
    beam: above 1, search instead of drawing. Each step keeps so many of the likeliest continuations, by the sum of
        log-probabilities without length normalisation, so short rows are favoured; the likeliest row that ended, or
        was not finished, is returned.
    stop: the token that ends a row; `model.end` unless given.
    seed: draws the same text for the same batch.
    state: what to go on from; it is spent then. None starts a new one.
    source: what a sequence-to-sequence model translates; it is read once.
    recompute: keep no state, and read the whole row at each step: for models that have none.
    hear: told the new tokens [B] of each step; when drawing only.

    A model whose learned positions are full reads their last half again from position 0, and goes on.

    Errors: ValueError for arguments without a meaning, NoState from a model that cannot decode; a UserWarning beyond
    the length that the model was trained on. Source: top-k: Fan et al., 2018, arXiv:1805.04833; top-p: Holtzman et
    al., 2020, arXiv:1904.09751.
    """
    _check(steps, temperature, top_k, top_p, beam, state, recompute)
    if not callable(getattr(model, "start", None)) or not callable(getattr(model, "logits", None)):
        raise TypeError(f"{type(model).__name__} has no start and logits, so it cannot go on; give an LM or a Seq2Seq")
    device = next(model.parameters()).device
    prompt, padded = _prompt(model, tokens, source, state)
    prompt = prompt.to(device, torch.long)
    stop = getattr(model, "end", None) if stop is None else stop
    length = prompt.shape[1] + steps
    most = _read_at_once(model, _told(state) + length)
    reader = model if most is None else Sliding(model, most)
    given: dict[str, Any] = {} if source is None else {"source": source.to(device)}
    with _evaluating(model), torch.no_grad():
        full = state is None and not recompute and not padded and most is None
        if state is not None:
            state = _longer(model, state, length if most is None else most)
            state = state if most is None else reader.goes_on(state)
        elif not recompute:
            state = reader.start(len(prompt), length)
        text = Text(prompt, prompt.shape[1], state, given, full)
        if beam > 1:
            rows = _search(reader, text, steps, beam, -1 if stop is None else stop)
        else:
            rows = _draw(reader, text, steps, stop, _sampler(temperature, top_k, top_p, seed, device), hear)
    return rows if tokens is not None else rows[:, 1:]


# Drawing -------------------------------------------------------------------------------------------------------------


def _draw(
    model: Any,
    text: Text,
    steps: int,
    stop: int | None,
    choose: Callable[[Tensor], Tensor],
    hear: Callable[[Tensor], None] | None,
) -> Int[Tensor, "B N"]:
    done = torch.zeros(len(text.rows), dtype=torch.bool, device=text.rows.device)
    width = text.rows.shape[1] + steps
    for step in range(steps):
        if stop is not None and step and bool(done.all()):
            break
        logits, text = _read(model, text)
        new = choose(logits)
        if stop is not None:
            new = torch.where(done, -1, new)
            done, text = done | (new == stop), text._replace(full=False)
        if hear is not None:
            hear(new)
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
    if k >= logits.shape[-1]:
        return logits
    least = logits.topk(k, sorted=False).values.amin(-1, keepdim=True)
    return _down_to(logits, least, k - (logits > least).sum(-1, keepdim=True))


def keep_top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """The fewest largest logits of each row whose probabilities reach p, all for p=1; -inf in place of the others."""
    if p >= 1:
        return logits
    size, norm = min(FIRST, logits.shape[-1]), logits.logsumexp(-1, keepdim=True)
    while True:
        largest = logits.topk(size).values  # [B size], falling
        probability = (largest - norm).exp()
        kept = ((probability.cumsum(-1) - probability) < p).sum(-1, keepdim=True)
        if size == logits.shape[-1] or bool((kept < size).all()):
            break
        size = min(8 * size, logits.shape[-1])
    least = largest.take_along_dim(kept - 1, -1)
    return _down_to(logits, least, kept - (logits > least).sum(-1, keepdim=True))


def _down_to(logits: Float[Tensor, "B V"], least: Float[Tensor, "B 1"], equal: Int[Tensor, "B 1"]) -> Tensor:
    """The logits above `least`, and so many of those that equal it, the first ones; -inf in place of the others."""
    same = logits == least
    return logits.masked_fill((logits < least) | (same & (same.cumsum(-1) > equal)), -torch.inf)


# Beam search ---------------------------------------------------------------------------------------------------------


def _search(model: Any, text: Text, steps: int, beam: int, stop: int) -> Int[Tensor, "B N"]:
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
    scores = (score[..., None] + logits.log_softmax(-1).unflatten(0, (batch, rows))).flatten(1)  # [B R*V]
    kept = keep_top_k(scores, most)
    # those that are kept in the order of their places, then by score, equal ones as they stand
    places = torch.where(kept > -torch.inf, 1, 0).topk(min(most, kept.shape[1])).indices.sort(-1).values
    found = kept.take_along_dim(places, -1)
    found, order = torch.sort(found, dim=-1, descending=True, stable=True)
    places = places.take_along_dim(order, -1)
    first = torch.arange(batch, device=score.device)[:, None] * rows
    return found, first + places // logits.shape[-1], places % logits.shape[-1]


# One step ------------------------------------------------------------------------------------------------------------


def _read(model: Any, text: Text) -> tuple[Float[Tensor, "B V"], Text]:
    """The logits after the last token of each row, and the text with everything read."""
    rows, length = text.rows, text.rows.shape[1]
    first, ctx = 0 if text.state is None else length - text.unread, None
    if text.full:
        ctx = Context(torch.arange(first, length, device=rows.device).expand(len(rows), -1), run=True, full=True)
    out = model.logits(rows[:, first:], text.state, ctx, last=True, **text.given)
    logits = out.y[:, -1].to(torch.promote_types(out.y.dtype, torch.float32))
    return logits, text._replace(state=out.state, unread=0, given=text.given if out.state is None else {})


def _written(text: Text, new: Int[Tensor, " B"]) -> Text:
    return text._replace(rows=torch.cat([text.rows, new[:, None]], 1), unread=text.unread + 1)


def _taken(text: Text, rows: Int[Tensor, " R"]) -> Text:
    state = None if text.state is None else select(text.state, rows)
    given = {name: value[rows] for name, value in text.given.items()}
    return Text(text.rows[rows], text.unread, state, given, text.full)


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
    model: Any, tokens: Shaped[Tensor, "B T"] | None, source: Int[Tensor, "R S"] | None, state: State | None
) -> tuple[Int[Tensor, "B T"], bool]:
    """The prompt, and whether any of it is padding."""
    if tokens is None:
        begin = getattr(model, "begin", None)
        if source is None or begin is None:
            raise ValueError("tokens=None starts from a model's begin token and needs a source; give a prompt [B, T]")
        return torch.full((len(source), 1), begin), False
    if tokens.dtype == torch.bool or tokens.is_floating_point():
        raise ValueError(f"a prompt holds token ids, whole numbers, and {tokens.dtype} came; give tokens.long()")
    if not tokens.shape[1]:
        raise ValueError("the prompt is empty (T = 0); give at least one token for each row")
    ends = (tokens[:, -1] < 0).nonzero()[:, 0].tolist()
    if ends:
        raise ValueError(f"row {ends[0]} of the prompt ends with padding (-1); give it a token, and pad on the left")
    for what, rows in (("source", None if source is None else len(source)), ("state", _batch(state))):
        if rows not in (None, len(tokens)):
            raise ValueError(f"the prompt has {len(tokens)} rows and the {what} {rows}; give both the same number")
    return tokens, bool((tokens < 0).any())


def _longer(model: Any, state: State, length: int) -> State:
    """A state with room for `length` tokens more, so that no cache is full while they are written."""
    return widened(state, model.start(1, _told(state) + length))


def _told(state: State | None) -> int:
    """How many tokens the longest row of a state has read."""
    found = [] if state is None else [leaf for name, leaf in leaves(state) if name == "now" and len(leaf)]
    return max((int(leaf.max()) for leaf in found), default=0)


def _batch(state: State | None) -> int | None:
    found = [] if state is None else leaves(state)
    return len(found[0][1]) if found else None


def _read_at_once(model: Any, length: int) -> int | None:
    """How many tokens a model reads before it slides, where it must; a warning beyond the length of its training."""
    if beyond(model, length - 1):
        return cast(int, model.window)
    trained = getattr(model, "trained_length", None)
    table = getattr(model, "window", None)
    if trained is not None and table is None and length > trained and not getattr(model, "lanes", False):
        warnings.warn(
            f"{length} tokens are more than the {trained} of a row in training: what stands beyond may make no sense; "
            "generate fewer, or train with a larger length",
            stacklevel=3,
        )
    return None


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
