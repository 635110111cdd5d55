"""MLM: a masked language model, which fills in tokens that were hidden from it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.attention import Attention
from kinformer.blocks.post_norm import PostNorm
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.loss import Loss, gathered, weighed
from kinformer.core.mechanism import NoState
from kinformer.core.position import Position
from kinformer.depth.stack import Stack
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.lm import number
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.full import Full
from kinformer.positions.learned import Learned

CHOSEN, MASKED, DRAWN = 0.15, 0.8, 0.1


class MLM(nn.Module):
    """Tokens in, some of them hidden; logits of what stands at each place out. An encoder, read from both sides.

    Choose it to learn from text without writing any. `forward(tokens)` chooses 15% of the tokens; of these 80% are
    hidden behind the id `mask`, which is `vocab` itself and is never an answer, 10% replaced by a random token, 10%
    left alone; the loss is over the chosen ones. Training draws them as dropout is drawn, seeded by
    `torch.manual_seed`; in eval mode the choice is always the same. -1 is padding, at the ends of a row only.

    Embeddings are normalised and dropped; the head is a layer, then the embedding again and a bias. `kinds` is how many
    vectors there are to add, picked by `ctx.below["segment"]` [B T], 0 without it (BERT's two sentences). `segment`
    makes that of the tokens, for a body that reads it, where the ctx has none. `penalties` weighs auxiliary losses by
    their last name. Errors: NoState from `start`. Source: Devlin et al., 2018, arXiv:1810.04805, section 3.1.
    """

    def __init__(
        self,
        vocab: int,
        d: int,
        body: Layer,
        *,
        position: Position | None = None,
        kinds: int = 0,
        segment: Callable[[Tensor], Tensor] | None = None,
        eps: float = 1e-12,
        dropout: float = 0.0,
        penalties: Mapping[str, float] | None = None,
    ):
        super().__init__()
        self.vocab, self.mask, self.d, self.dropout = vocab, vocab, d, dropout
        self.embedding = nn.Embedding(vocab + 1, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        self.position, self.segment, self.body = position, segment, body
        self.kind = nn.Embedding(kinds, d) if kinds else None
        self.norm = LayerNorm(d, eps=eps)
        self.transform = nn.Sequential(nn.Linear(d, d), nn.GELU(), LayerNorm(d, eps=eps))
        self.head = nn.Linear(d, vocab + 1)
        nn.init.zeros_(self.head.bias)
        self.head.weight = self.embedding.weight
        self.penalties = dict(penalties or {})

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> NoReturn:
        raise NoState("a masked language model fills in hidden tokens and writes none; use a causal member, like gpt")

    def hide(
        self, tokens: Int[Tensor, "B T"], generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """What the model reads in place of tokens, and what it must answer: -1 where a token was not chosen."""
        choice, fate = (torch.rand(tokens.shape, generator=generator, device=tokens.device) for _ in range(2))
        drawn = torch.randint(self.vocab, tokens.shape, generator=generator, device=tokens.device)
        chosen = (choice < CHOSEN) & (tokens >= 0)
        changed = torch.where(fate < MASKED, self.mask, torch.where(fate < MASKED + DRAWN, drawn, tokens))
        return torch.where(chosen, changed, tokens), torch.where(chosen, tokens, -1)

    def logits(self, tokens: Int[Tensor, "B T"], state: State | None = None, ctx: Context | None = None) -> Out:
        """Scores of what stands at each place. Without a ctx the model numbers the tokens from 0."""
        if ctx is None:
            ctx = Context(number(tokens, tokens.new_zeros(len(tokens))), run=True)
        if self.segment is not None and "segment" not in ctx.below:
            ctx = dataclasses.replace(ctx, below={**ctx.below, "segment": self.segment(tokens)})
        out = self.body(self._embedded(tokens, ctx), None, ctx)
        return out._replace(y=self.head(self.transform(out.y))[..., : self.vocab])

    def forward(self, batch: Int[Tensor, "B T"], state: State | None = None, progress: float = 1.0) -> Loss:
        """The loss of filling in what it hides, in nats for each chosen token."""
        read, wanted = self.hide(batch, None if self.training else torch.Generator(batch.device).manual_seed(0))
        out = self.logits(read)
        nll = F.cross_entropy(out.y.transpose(1, 2), wanted, ignore_index=-1, reduction="sum")
        nll = nll / (wanted >= 0).sum().clamp_min(1)
        sums = gathered(out.aux, batch >= 0)
        return Loss(weighed(nll, sums, self.penalties), {"nll": nll, **sums}, None, out.stats)

    def _embedded(self, tokens: Int[Tensor, "B T"], ctx: Context) -> Float[Tensor, "B T D"]:
        x = self.embedding(tokens.clamp_min(0))
        if self.position is not None:
            x = x + self.position(ctx.pos)
        if self.kind is not None:
            x = x + self.kind(ctx.below.get("segment", torch.zeros_like(tokens)))
        return F.dropout(self.norm(x), self.dropout, self.training)


EXAMPLES = (
    lambda: MLM(11, 16, Stack([PostNorm(Attention(16, 2, Softmax(Full())), MLP(16))]), position=Learned(16, 64)),
)
COMPILES = True
