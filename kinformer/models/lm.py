"""LM: a decoder-only language model, one token after the other."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.loss import Loss, gathered, weighed
from kinformer.core.memory import Memory
from kinformer.core.position import Position
from kinformer.depth.stack import Stack
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.causal import Causal
from kinformer.positions.learned import Learned


class Numbered(NamedTuple):
    """A model's state: the next position of each row, and the body's state."""

    now: Int[Tensor, " B"]
    body: State


class LM(nn.Module):
    """Tokens in, logits of the next token out.

    Embedding, an optional absolute position, a body, and a head that is the embedding again.

    `forward(tokens)` is the loss over tokens[:, 1:] given what is before each; -1 is padding, at the ends of a row
    only, and never a target. `scale` multiplies embedded tokens, `dropout` drops them. `penalties` weighs a body's
    auxiliary losses by their last name. `tie=False` gives the head a matrix of its own. Source: Radford et al., 2018,
    "Improving language understanding by generative pre-training".
    """

    def __init__(
        self,
        vocab: int,
        d: int,
        body: Layer,
        *,
        position: Position | None = None,
        scale: float = 1.0,
        tie: bool = True,
        dropout: float = 0.0,
        penalties: Mapping[str, float] | None = None,
    ):
        super().__init__()
        self.vocab, self.d, self.scale, self.dropout = vocab, d, scale, dropout
        self.embedding = nn.Embedding(vocab, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)  # logits of a tied head then start at unit variance
        self.position, self.body = position, body
        self.head = nn.Linear(d, vocab, bias=False)
        if tie:
            self.head.weight = self.embedding.weight
        self.penalties = dict(penalties or {})

    @property
    def recurrent(self) -> bool:
        """Does training carry a memory from chunk to chunk, so that it wants consecutive text?"""
        return any(isinstance(module, Memory) for module in self.modules())

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Numbered:
        """The state before the first token of rows of up to `length` tokens."""
        now = torch.zeros(batch, dtype=torch.long, device=device)
        return Numbered(now, self.body.start(batch, length, dtype=dtype, device=device))

    def logits(self, tokens: Int[Tensor, "B T"], state: Numbered | None = None, ctx: Context | None = None) -> Out:
        """Scores of the token after each token. Without a ctx the model numbers tokens on from its state."""
        now = tokens.new_zeros(len(tokens)) if state is None else state.now
        if ctx is None:
            ctx = Context(number(tokens, now), run=True)
        x = self.scale * self.embedding(tokens.clamp_min(0))
        if self.position is not None:
            x = x + self.position(ctx.pos)
        out = self.body(F.dropout(x, self.dropout, self.training), None if state is None else state.body, ctx)
        if state is not None:
            out = out._replace(state=Numbered(after(now, ctx.pos), out.state))
        return out._replace(y=self.head(out.y))

    def forward(self, batch: Int[Tensor, "B T"], state: Numbered | None = None, progress: float = 1.0) -> Loss:
        """The loss of predicting each token from those before it.

        The state stands before the last token, which the next chunk repeats.
        """
        tokens, targets = batch[:, :-1], batch[:, 1:]
        out = self.logits(tokens, state)
        wanted = (tokens >= 0) & (targets >= 0)
        nll = F.cross_entropy(out.y.transpose(1, 2), targets.masked_fill(~wanted, -1), ignore_index=-1, reduction="sum")
        nll = nll / wanted.sum().clamp_min(1)
        sums = gathered(out.aux, tokens >= 0)
        return Loss(weighed(nll, sums, self.penalties), {"nll": nll, **sums}, out.state, out.stats)


def after(now: Int[Tensor, " B"], pos: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
    """The next position of each row once positions `pos`, which may be none, have been read."""
    return torch.maximum(now, pos.amax(1) + 1) if pos.shape[1] else now


def number(tokens: Int[Tensor, "B T"], now: Int[Tensor, " B"]) -> Int[Tensor, "B T"]:
    """Positions of a chunk: consecutive from `now` over real tokens, -1 at padding.

    ValueError for padding between tokens.
    """
    real = tokens >= 0
    count = real.cumsum(1)
    if not torch.compiler.is_compiling() and bool((real[:, 1:] & ~real[:, :-1] & (count[:, :-1] > 0)).any()):
        raise ValueError("a row has padding (-1) between its tokens; padding may stand before or after them only")
    return torch.where(real, now[:, None] + count - 1, -1)


EXAMPLES = (
    lambda: LM(11, 16, Stack([PreNorm(Attention(16, 2, Softmax(Causal())), MLP(16)) for _ in range(2)])),
    lambda: LM(11, 16, PreNorm(Attention(16, 2, Softmax(Causal()))), position=Learned(16, 64), tie=False),
)
