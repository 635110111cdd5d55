"""score: the log-probability of each token of texts, by a model that predicts the next token."""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.autocast import at_least_float32
from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import Out
from kinformer.core.mechanism import NoState
from kinformer.core.model import Model, display_name
from kinformer.core.quote import quote
from kinformer.decoding.byte_tokenizer import tokenizer_of_model
from kinformer.decoding.pad_sequences import pad_sequences
from kinformer.models.support.sliding_reader import must_slide, read_in_windows
from kinformer.models.support.text_model import TextModel

LOGITS = 2**24  # numbers of logits at a time: 64 MiB in float32


class TokenScores(NamedTuple):
    """The tokens of a text, and what a model expected in their places.

    tokens: token ids.
    log_probabilities: natural logarithm of the probability of each token given the tokens before it. The first token is
        not predicted: NaN.
    is_greedy: True at tokens that were the model's likeliest; False for the first.
    """

    tokens: Int[Tensor, " T"]
    log_probabilities: Float[Tensor, " T"]
    is_greedy: Bool[Tensor, " T"]

    @property
    def total(self) -> float:
        """The log-probability of the text after its first token, in nats."""
        return self.log_probabilities[1:].double().sum().item()


def score(
    model: Any,
    texts: str | bytes | Iterable[str | bytes | Sequence[int]],
    *,
    on_progress: Callable[[int], None] = lambda texts: None,
) -> list[TokenScores]:
    """Return the log-probability of each token of each text.

    Choose it to rank texts, to find surprising words, or to compute a perplexity.

        (scores,) = kf.score(kf.load("runs/llama"), "def main():")
        print(scores.total, scores.log_probabilities)

    Each text is read on its own, in windows if it is longer than the learned positions of the model. No token is put
    before it: models such as Llama expect a begin token, which `kinformer score` adds. Give their texts as ids:

        rows = [[*model.tokenizer.begins, *model.tokenizer.encode(text)] for text in texts]

    model: a model that predicts the next token of a text, such as gpt.
    texts: one text or several; the model's own tokenizer reads them, or else each byte is a token. In place of a text,
        the list may have its token ids.
    on_progress: called with the number of texts that are scored.

    Errors: TypeError for other texts. ValueError for another kind of model, and for token ids that the model does not
    have. ValueError for a text if the model has an unknown tokenizer.
    """
    if not isinstance(model, TextModel):
        name = display_name(model) if isinstance(model, Model) else quote(model)
        raise ValueError(
            f"score needs a model that predicts the next token of a text: got {name}{_reads(model)}. Use one such as "
            "gpt"
        )
    rows = _token_rows(texts, tokenizer_of_model(model).encode)
    for row in rows:
        if row and not 0 <= min(row) <= max(row) < model.vocab:
            wrong = min(row) if min(row) < 0 else max(row)
            raise ValueError(f"a text has the token id {wrong}: expected 0 to {model.vocab - 1}. Leave padding out")
    scored: dict[int, TokenScores] = {}
    longest = max(map(len, rows), default=0)
    must_slide(model, longest)
    with evaluating(model), torch.no_grad():
        for batch in _batches(rows, max(LOGITS // model.vocab, 1)):
            scored |= _score_batch(model, batch)
            on_progress(len(scored))
    return [scored[n] for n in range(len(rows))]


def _reads(model: Any) -> str:
    """Return a phrase about what a model of another kind reads; "" for any other value."""
    if not isinstance(model, Model):
        return ""
    return ", a masked language model" if model.reads == "masked" else f", which reads {model.reads}"


def _token_rows(texts: Any, encode: Callable[[str | bytes], Sequence[int]]) -> list[list[int]]:
    """Return the token ids of each text; TypeError for anything but texts and rows of ids."""
    rows: list[list[int]] = []
    try:
        if isinstance(texts, Mapping):
            raise TypeError
        for text in [texts] if isinstance(texts, str | bytes) else texts:
            ids = encode(text) if isinstance(text, str | bytes) else getattr(text, "tolist", lambda text=text: text)()
            if isinstance(ids, Mapping) or any(isinstance(token, bool) for token in ids):
                raise TypeError
            rows.append([operator.index(token) for token in ids])
    except TypeError as error:
        raise TypeError(
            f"wrong texts: got {quote(texts)}, expected texts or lists of token ids. Give [ids] for one text"
        ) from error
    return rows


def _batches(rows: Sequence[Sequence[int]], most: int) -> Iterator[dict[int, Sequence[int]]]:
    """Yield rows by their number, of similar lengths, with at most `most` tokens unless one row is longer."""
    batch: dict[int, Sequence[int]] = {}
    for n in sorted(range(len(rows)), key=lambda n: len(rows[n])):
        if batch and (len(batch) + 1) * len(rows[n]) > most:
            yield batch
            batch = {}
        batch[n] = rows[n]
    if batch:
        yield batch


def _score_batch(model: TextModel, rows: dict[int, Sequence[int]]) -> dict[int, TokenScores]:
    tokens = pad_sequences(list(rows.values())).to(next(model.parameters()).device)
    width = tokens.shape[1]
    if width < 2:
        scores = tokens.new_full((*tokens.shape, 2), 0, dtype=torch.float32)[:, :0]
    else:
        pairs = torch.stack([tokens[:, :-1], tokens[:, 1:]], -1)
        scores = read_in_windows(lambda window: _scores(model, window), pairs, model.window).y
    result = {}
    for (n, row), values in zip(rows.items(), scores.cpu(), strict=True):
        values = values[: max(len(row) - 1, 0)]
        first = values.new_full((min(len(row), 1), 2), torch.nan)
        numbers, is_greedy = torch.cat([first, values]).unbind(-1)
        result[n] = TokenScores(torch.tensor(row, dtype=torch.long), numbers, is_greedy == 1)
    return result


def _scores(model: TextModel, pairs: Int[Tensor, "B T 2"]) -> Out:
    """Return the log-probability of each next token, and 1 if it was the likeliest; in pieces if the row is long."""
    read, targets = pairs.unbind(-1)
    piece = max(LOGITS // (model.vocab * len(read)), 1)
    state = None
    if piece < read.shape[1]:
        try:
            state = model.start(*read.shape)
        except NoState:
            piece = read.shape[1]
    parts = []
    for at in range(0, read.shape[1], piece):
        out = model.logits(read[:, at : at + piece], state)
        state, y = out.state, at_least_float32(out.y)
        aims = targets[:, at : at + piece].clamp_min(0)[..., None]
        logs = y.log_softmax(-1).gather(-1, aims)
        parts.append(torch.cat([logs, (y.argmax(-1, keepdim=True) == aims).to(logs.dtype)], -1))
    return Out(torch.cat(parts, 1))
