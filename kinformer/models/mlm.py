"""MLM: a masked language model that predicts masked tokens."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_in_range, check_option
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.loss import Loss, masked_mean, sum_over_layers, token_nll, weighted_loss
from kinformer.core.mechanism import NoState
from kinformer.core.model import EvaluationSums, Metric, accuracy, random_tokens, sum_and_count
from kinformer.core.token_positions import context_of_tokens
from kinformer.models.support.row_encoder import Encoder
from kinformer.models.support.sliding_reader import fit_to_window, read_in_windows
from kinformer.models.support.tied_head import tie_head
from kinformer.nn.norms.layer import LayerNorm

CHOSEN, MASKED, DRAWN = 0.15, 0.8, 0.1

Tokens = Int[Tensor, "B T"] | TokenBatch
Segment = Callable[[Tensor, Any], Tensor]
GELU = Literal["gelu", "gelu_tanh"]  # exact, and approximated as in the training of GPT-2


class MLM(Encoder):
    """Masked language model: an encoder that predicts masked tokens from both sides.

    Choose it to learn representations of text; choose `LM` to generate text. It chooses 15% of the tokens. Of these,
    80% are replaced by the id `mask`, 10% by a random token, and 10% stay unchanged. By default the id `mask` is equal
    to `vocab` and is never predicted. The loss is over the chosen tokens. -1 is padding, at the ends of a row only.

    In training, the choice follows from the row's tokens and from `progress`, so it does not depend on other rows.
    Without `progress` it is random like dropout, seeded by `torch.manual_seed`. In eval mode, and in `judge`, the
    choice follows only from the row's tokens and is always the same. If a `TokenBatch` (tokens with marks) marks scored
    tokens, exactly these are replaced by `mask`.

    vocab, d, body, kwargs: arguments of `Encoder`; eps also applies to the head's norm.
    segment: function from tokens and their tokenizer (None for bytes) to the segment number of each token. The body
        gets the numbers as the label "segment", and `kinds` selects vectors by them. In training the function gets the
        original text, so a segment is known even if its end is hidden. When a trained model fills in gaps, the function
        gets the text with the gaps.
    mask: id of masked tokens, if it is one of the tokens, as in BERT's published vocabulary; by default `vocab`.
    activation: nonlinearity of the head's layer, "gelu" or its approximation "gelu_tanh".
    of_read: True passes the tokens after masking to `segment`, for segments that depend on the model's input.

    Errors: NoState from `start`; ValueError for a weight in `penalties` of a loss that no part reports.
    Source: Devlin et al., 2018, arXiv:1810.04805, section 3.1.
    """

    reads: ClassVar[str] = "masked"
    metric = Metric("bits per masked byte", "bits")
    tops: ClassVar[tuple[str, ...]] = ("transform", "head")

    def __init__(
        self,
        vocab: int,
        d: int,
        body: Layer,
        *,
        mask: int | None = None,
        segment: Segment | None = None,
        of_read: bool = False,
        activation: GELU = "gelu",
        **kwargs: Any,
    ):
        super().__init__(vocab, d, body, extra=1 if mask is None else 0, **kwargs)
        self.segment, self.of_read = segment, of_read
        self.mask = vocab if mask is None else int(check_in_range("mask", mask, 0, vocab - 1))
        approximate = "tanh" if check_option("activation", activation, GELU) == "gelu_tanh" else "none"
        self.transform = nn.Sequential(nn.Linear(d, d), nn.GELU(approximate), LayerNorm(d, eps=self.norm.eps))
        self.head = nn.Linear(d, self.embedding.num_embeddings)
        nn.init.zeros_(self.head.bias)
        tie_head(self)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState(
            "a masked language model fills in masked tokens and cannot generate text; use a causal member, like gpt"
        )

    def mask_batch(
        self, batch: TokenBatch, *, fixed: bool, seed: int = 0
    ) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """Return the input and the targets of a batch.

        If the batch marks scored tokens, exactly these are hidden; otherwise `hide` chooses tokens.

        batch: rows of tokens, which may mark scored tokens.
        fixed, seed: arguments of `hide`.
        """
        if batch.scored is None:
            return self.hide(batch.tokens, fixed=fixed, seed=seed)
        return torch.where(batch.targets >= 0, self.mask, batch.tokens), batch.targets

    def hide(
        self, tokens: Int[Tensor, "B T"], *, fixed: bool = False, seed: int = 0
    ) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """Return the input with masked tokens, and the targets, which are -1 at tokens that were not chosen.

        tokens: tokens of the rows; -1 is padding.
        fixed: True derives the choice from each row's tokens and the seed; False makes a random choice.
        seed: seed of the fixed choice.
        """
        if fixed:
            choice, fate, other = _shares(tokens, seed)
        else:
            choice, fate, other = (torch.rand(tokens.shape, device=tokens.device) for _ in range(3))
        random_ids = (other * self.vocab).long().clamp_max(self.vocab - 1)
        chosen = (choice < CHOSEN) & (tokens >= 0)
        changed = torch.where(fate < MASKED, self.mask, torch.where(fate < MASKED + DRAWN, random_ids, tokens))
        return torch.where(chosen, changed, tokens), torch.where(chosen, tokens, -1)

    def logits(self, tokens: Int[Tensor, "B T"], state: State | None = None, ctx: Context | None = None) -> Out:
        """Return the logits of the token at each position. If `ctx` is None, positions count from 0."""
        out = self.hidden(tokens, ctx=ctx)
        return out._replace(y=self.head(self.transform(out.y))[..., : self.vocab])

    def hidden(self, tokens: Int[Tensor, "B T"], state: State | None = None, ctx: Context | None = None) -> Out:
        """Return the body's output for each token, before the head. If `ctx` is None, positions count from 0."""
        ctx = self.segment_context(tokens, tokens, ctx)
        return self.body(self.embed_tokens(tokens, ctx), None, ctx)

    def segment_context(
        self, tokens: Int[Tensor, "B T"], read: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Context:
        """Return the context of a text with masked tokens, with the label "segment" if `segment` is set.

        tokens: original tokens.
        read: tokens after masking.
        ctx: context to extend; a new one by default.
        """
        ctx = context_of_tokens(read) if ctx is None else ctx
        if self.segment is None or "segment" in ctx.labels:
            return ctx
        segment_ids = self.segment(read if self.of_read else tokens, self.tokenizer)
        return ctx.replace(labels={**ctx.labels, "segment": segment_ids})

    def forward(self, batch: Tokens, state: State | None = None, progress: float | None = None) -> Loss:
        """Return the loss of predicting the chosen tokens (or the scored ones), in nats per token."""
        batch = TokenBatch.from_tokens(batch)
        fixed, seed = not self.training or progress is not None, int((progress or 0) * 2**52) if self.training else 0
        read, targets = self.mask_batch(batch, fixed=fixed, seed=seed)
        ctx = batch.limit_context(self.segment_context(batch.tokens, read))
        out, data, parts = self.training_loss(self.logits(read, ctx=ctx), targets)
        sums = sum_over_layers(out.aux, batch.tokens >= 0)
        count = (targets >= 0).sum()
        return Loss(
            weighted_loss(data, sums, self.penalties, progress or 0.0), {**parts, **sums}, None, out.stats, count
        )

    def training_loss(self, out: Out, targets: Int[Tensor, "B T"]) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """Return the output, the loss, and the parts of the loss."""
        nll = masked_mean(token_nll(out.y, targets), targets >= 0)
        return out, nll, {"nll": nll}

    def judge(self, batch: Tokens, state: State | None = None) -> EvaluationSums:
        """Return the bits of the chosen tokens, predicted from all tokens around them, and their number.

        The accuracy is added if the batch marks scored tokens.
        """
        batch = fit_to_window(self, TokenBatch.from_tokens(batch))
        read, targets = self.mask_batch(batch, fixed=True)
        if batch.documents is None:
            stacked = torch.stack([batch.tokens, read], -1)
            out = read_in_windows(
                lambda x: self.logits(x[..., 1], ctx=self.segment_context(x[..., 0], x[..., 1])), stacked, self.window
            )
        else:
            out = self.logits(read, ctx=batch.limit_context(self.segment_context(batch.tokens, read)))
        answers = {} if batch.scored is None else accuracy(out.y, targets)
        bits = sum_and_count(token_nll(out.y, targets) / math.log(2), targets >= 0)
        return EvaluationSums({**answers, type(self).metric.name: bits}, scored=targets >= 0)

    def sample(self, rows: int, length: int, seed: int) -> Int[Tensor, "B T"]:
        """Return rows of `length` random tokens, to test the model with."""
        return random_tokens(self.vocab, rows, length, seed)


def _shares(tokens: Int[Tensor, "B T"], seed: int) -> tuple[Float[Tensor, "B T"], ...]:
    """Return three numbers in [0, 1) for each token, derived from the seed, the row's tokens and the token's rank."""
    real = tokens >= 0
    rank = real.cumsum(1)
    row = torch.where(real, _splitmix64(tokens * 1_000_003 + rank), 0).sum(1, keepdim=True)
    row = _splitmix64(row + seed) if seed else row
    return tuple((_splitmix64(row + 3 * rank + n) & 0xFFFFFF) / 2**24 for n in range(3))


def _splitmix64(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Mix the bits of integers by the SplitMix64 finalizer (Steele et al., 2014)."""
    x = (x ^ (x >> 30)) * -4658895280553007687
    x = (x ^ (x >> 27)) * -7723592293110705685
    return x ^ (x >> 31)


def _example() -> MLM:
    body = kf.Stack([kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full())), kf.MLP(16))])
    return MLM(11, 16, body, position=kf.Learned(16, 64))


EXAMPLES = (_example,)
