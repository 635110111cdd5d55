"""MLM: a masked language model, which fills in tokens that were hidden from it."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.batch import TokenBatch
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.loss import Loss, masked_mean, sum_over_layers, token_nll, weighted_loss
from kinformer.core.mechanism import NoState
from kinformer.core.model import EvaluationSums, Metric, accuracy, random_tokens, sum_and_count
from kinformer.core.token_positions import context_of_tokens
from kinformer.models.support.row_encoder import Encoder
from kinformer.models.support.sliding_reader import fit_to_window, read_in_windows
from kinformer.nn.norms.layer import LayerNorm

CHOSEN, MASKED, DRAWN = 0.15, 0.8, 0.1

Tokens = Int[Tensor, "B T"] | TokenBatch
Segment = Callable[[Tensor, Any], Tensor]


class MLM(Encoder):
    """Tokens in, some of them hidden; logits of what stands at each place out. An encoder, read from both sides.

    Choose it to learn from text without writing any. Of the tokens it chooses 15%; of these 80% are hidden behind the
    id `mask`, which is `vocab` itself and is never an answer, 10% replaced by a random token, 10% left alone; the loss
    is over the chosen ones. In training the choice follows from the row's tokens and from `progress`, so it does not
    depend on other rows. Without `progress` it is random like dropout, seeded by `torch.manual_seed`.
    In eval mode, and in `judge`, the row's tokens decide alone, so that the choice is always the same. Of a
    `TokenBatch` it hides exactly the scored tokens, each behind `mask`. -1 is padding, at the ends of a row only.

    segment: a function from tokens and their tokenizer (None for bytes) to the label "segment", for a body that reads
        the label, or for `kinds`. It gets the original text, so a segment is known even if its end is hidden. When
        gaps are filled in, it gets the text with gaps.
    of_read: True passes it the tokens with hidden ones masked, for labels that depend on what the model reads.

    vocab, d, body, kwargs: as those of an `Encoder`; eps is that of the head's norm too.

    Errors: NoState from `start`; ValueError for a penalty that no part reports. Source: Devlin et al., 2018,
    arXiv:1810.04805, section 3.1.
    """

    reads: ClassVar[str] = "masked"
    metric = Metric("bits per masked byte", "bits")
    tops: ClassVar[tuple[str, ...]] = ("transform", "head")

    def __init__(
        self, vocab: int, d: int, body: Layer, *, segment: Segment | None = None, of_read: bool = False, **kwargs: Any
    ):
        super().__init__(vocab, d, body, **kwargs)
        self.segment, self.of_read, self.mask = segment, of_read, vocab
        self.transform = nn.Sequential(nn.Linear(d, d), nn.GELU(), LayerNorm(d, eps=self.norm.eps))
        self.head = nn.Linear(d, vocab + 1)
        nn.init.zeros_(self.head.bias)
        self.head.weight = self.embedding.weight

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState("a masked language model fills in hidden tokens and writes none; use a causal member, like gpt")

    def mask_batch(
        self, batch: TokenBatch, *, fixed: bool, seed: int = 0
    ) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """What the model reads of a batch, and what it must answer: all that is scored, or what `hide` chooses."""
        if batch.scored is None:
            return self.hide(batch.tokens, fixed=fixed, seed=seed)
        return torch.where(batch.targets >= 0, self.mask, batch.tokens), batch.targets

    def hide(
        self, tokens: Int[Tensor, "B T"], *, fixed: bool = False, seed: int = 0
    ) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """What the model reads in place of tokens, and what it must answer: -1 where a token was not chosen.

        `fixed` lets the tokens of each row and the seed decide, in place of a random number.
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
        """Scores of what stands at each place. Without a ctx the model numbers the tokens from 0."""
        ctx = self.segment_context(tokens, tokens, ctx)
        out = self.body(self.embed_tokens(tokens, ctx), None, ctx)
        return out._replace(y=self.head(self.transform(out.y))[..., : self.vocab])

    def segment_context(
        self, tokens: Int[Tensor, "B T"], read: Int[Tensor, "B T"], ctx: Context | None = None
    ) -> Context:
        """The context of a text with hidden tokens; adds the label "segment" if the model makes one."""
        ctx = context_of_tokens(read) if ctx is None else ctx
        if self.segment is None or "segment" in ctx.labels:
            return ctx
        segment_ids = self.segment(read if self.of_read else tokens, self.tokenizer)
        return ctx.replace(labels={**ctx.labels, "segment": segment_ids})

    def forward(self, batch: Tokens, state: State | None = None, progress: float | None = None) -> Loss:
        """The loss of filling in what it hides, in nats for each chosen or scored token."""
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
        """A reading, what it costs, and the parts of that."""
        nll = masked_mean(token_nll(out.y, targets), targets >= 0)
        return out, nll, {"nll": nll}

    def judge(self, batch: Tokens, state: State | None = None) -> EvaluationSums:
        """The bits that each chosen token costs, all around it known; of scored ones also how many are right."""
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
        """Rows of `length` random tokens."""
        return random_tokens(self.vocab, rows, length, seed)


def _shares(tokens: Int[Tensor, "B T"], seed: int) -> tuple[Float[Tensor, "B T"], ...]:
    """Three numbers from 0 to 1 for each token, by a seed, the row's tokens and its place in the row."""
    real = tokens >= 0
    rank = real.cumsum(1)
    row = torch.where(real, _splitmix64(tokens * 1_000_003 + rank), 0).sum(1, keepdim=True)
    row = _splitmix64(row + seed) if seed else row
    return tuple((_splitmix64(row + 3 * rank + n) & 0xFFFFFF) / 2**24 for n in range(3))


def _splitmix64(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Bits of whole numbers stirred, as SplitMix64 does it (Steele et al., 2014)."""
    x = (x ^ (x >> 30)) * -4658895280553007687
    x = (x ^ (x >> 27)) * -7723592293110705685
    return x ^ (x >> 31)


def _example() -> MLM:
    body = kf.Stack([kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full())), kf.MLP(16))])
    return MLM(11, 16, body, position=kf.Learned(16, 64))


EXAMPLES = (_example,)
