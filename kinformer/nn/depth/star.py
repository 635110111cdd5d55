"""Star: the Star-Transformer: tokens on a ring, and a relay token that exchanges with all of them."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_option, check_probability
from kinformer.core.example import Example
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.mechanism import NoState
from kinformer.core.token_positions import check_in_order
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.star import Star
from kinformer.nn.projections.qkv import QKV

__all__ = ["PublishedStarRound", "PublishedStarRounds", "StarRound", "StarRounds"]

Outgoing = Literal["tokens", "mixed", "relay"]


class Ring(NamedTuple):
    """The neighbours of each token on the ring of a Star-Transformer.

    pos: positions of the tokens, [B T].
    before: index in the row of the token before each token, [B T]; -1 at an open end.
    after: index in the row of the token after each token, [B T]; -1 at an open end.
    zeros: True if a token at an open end reads a key and a value of zeros in place of the missing neighbour.
    """

    pos: Int[Tensor, "B T"]
    before: Int[Tensor, "B T"]
    after: Int[Tensor, "B T"]
    zeros: bool = False

    def neighbours(self, x: Float[Tensor, "B H T N"]) -> tuple[Tensor, Tensor]:
        """Return the entries of x for the token before and the token after each token, each [B H T N]."""
        left, right = (x.take_along_dim(at[:, None, :, None].clamp_min(0), 2) for at in (self.before, self.after))
        if not self.zeros:
            return left, right
        return left * (self.before >= 0)[:, None, :, None], right * (self.after >= 0)[:, None, :, None]


class RingAttention(nn.Module):
    """Attention of each token to five keys: its neighbours, itself, its embedding and the relay.

        MHA(h_i, [h_i-1; h_i; h_i+1; e_i; s])

    d: width of a token.
    heads: number of heads.
    head_dim: width of a head; default d / heads.
    """

    def __init__(self, d: int, heads: int, head_dim: int | None = None):
        super().__init__()
        self.projection = QKV(d, heads, head_dim=head_dim)
        self.aggregation = OutProjection(heads, self.projection.v_dim, d)

    def forward(
        self, h: Float[Tensor, "B T D"], e: Float[Tensor, "B T D"], s: Float[Tensor, "B 1 D"], ring: Ring
    ) -> Float[Tensor, "B T D"]:
        """Return the output for each token.

        h: states of the tokens.
        e: embeddings of the tokens.
        s: state of the relay.
        ring: neighbours of each token.
        """
        queries, own_keys = self.projection.queries_and_keys(h, ring.pos)
        first, relay = self.projection.keys(e, ring.pos), self.projection.keys(s, ring.pos[:, :1])
        k, v = (
            torch.stack([*ring.neighbours(x), x, y, z.expand_as(x)], 3)  # [B H T 5 N]
            for x, y, z in ((own_keys.k, first.k, relay.k), (own_keys.v, first.v, relay.v))
        )
        score = (queries.q[..., None, :] * k).sum(-1) * self.projection.k_dim**-0.5
        return self.aggregation((score.softmax(-1)[..., None] * v).sum(3), ring.pos)


class StarRound(nn.Module, KeywordHints):
    """A round of the Star-Transformer: an update of all tokens, then of the relay.

    h_i = LN(ReLU(ring)), then s = LN(ReLU(MHA(s, [s; h_1 .. h_n])))

    Here ring is the `RingAttention` of token i to its neighbours, itself, its embedding and the relay s.

    d: width of a token.
    heads: number of heads.
    head_dim: width of a head; default d / heads.
    """

    def __init__(self, d: int, heads: int, head_dim: int | None = None):
        super().__init__()
        self.ring = RingAttention(d, heads, head_dim)
        self.relay = Attention(QKV(d, heads, head_dim=head_dim), Softmax(Star(), lse=False), cross=True)
        self.ring_norm: nn.Module = LayerNorm(d)
        self.relay_norm: nn.Module = LayerNorm(d)

    def satellites(self, h: Tensor, e: Tensor, s: Tensor, ring: Ring) -> Float[Tensor, "B T D"]:
        return self.ring_norm(F.relu(self.ring(h, e, s, ring)))

    def update_relay(self, s: Float[Tensor, "B 1 D"], ctx: Context) -> Float[Tensor, "B 1 D"]:
        return self.relay_norm(F.relu(self.relay(s, None, ctx).y))


class PublishedStarRound(StarRound):
    """A round of the Star-Transformer as in the authors' code (fastNLP), without a norm of s.

    h_i = LeakyReLU(ring of LN(h)), s = LeakyReLU(MHA(s, [s; h_1 .. h_n]))

    Here ring is the `RingAttention` of token i to its neighbours, itself, its embedding and the relay s.

    d: width of a token.
    heads: number of heads.
    head_dim: width of a head; default d / heads.
    """

    def __init__(self, d: int, heads: int, head_dim: int | None = None):
        super().__init__(d, heads, head_dim)
        self.ring_norm, self.relay_norm = LayerNorm(d, eps=1e-6), nn.Identity()

    def satellites(self, h: Tensor, e: Tensor, s: Tensor, ring: Ring) -> Float[Tensor, "B T D"]:
        return F.leaky_relu(self.ring(self.ring_norm(h), e, s, ring))

    def update_relay(self, s: Float[Tensor, "B 1 D"], ctx: Context) -> Float[Tensor, "B 1 D"]:
        return F.leaky_relu(self.relay(s, None, ctx).y)


class StarRounds(Layer):
    """The Star-Transformer: each token reads its neighbours, itself, its embedding and a relay.

    h_i = LN(ReLU(MHA(h_i, [h_i-1; h_i; h_i+1; e_i; s]))), then s = LN(ReLU(MHA(s, [s; h_1 .. h_n])))

    Choose it for encoders of short texts with little data, and for long texts: a round costs six keys per token.

    Here e is the input. The states h of the tokens start as e. The relay s, a vector for the whole row, starts as the
    mean of e. The output is h by default. The ring is closed: the last token precedes the first. In a very short row
    both neighbours are the same token, which is then read twice, as the equation says. The method `read` also returns
    the relay.

    rounds: the rounds in order, each with its own weights.
    out: output of the layer. "tokens" is each token's h. "mixed" is (h + s) / 2; its maximum over a text is the paper's
        input for classification, max(h) mixed with s. "relay" is s for every token.
    dropout: probability of dropping a feature of h and s after each round in training.

    Errors: NoState from `start`; ValueError for `ctx.only` and `ctx.also`, since the relay reads all tokens of a row,
    and for tokens that are not in order. Source: Guo et al., 2019, arXiv:1902.09113, section 3.2.
    """

    def __init__(self, rounds: Iterable[StarRound], *, out: Outgoing = "tokens", dropout: float = 0.0):
        super().__init__()
        self.rounds = nn.ModuleList(rounds)
        check_at_least("rounds", len(self.rounds), 1)
        self.d, self.dropout = self.rounds[0].relay.d, check_probability("dropout", dropout)
        self.out = check_option("out", out, Outgoing)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState("a Star has no decoding state: its relay reads the whole row at once. Use a causal layer")

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        h, s = self.read(x, ctx)
        if self.out == "tokens":
            return Out(h)
        return Out((h + s[:, None]) / 2 if self.out == "mixed" else s[:, None].expand_as(h))

    def read(self, e: Float[Tensor, "B T D"], ctx: Context) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B D"]]:
        """Return the tokens and the relay after the last round."""
        check_in_order(ctx, "a ring")
        if ctx.only is not None or ctx.also is not None or not e.shape[1]:
            raise ValueError(
                "a Star reads one whole row of at least one token. Pass such rows, without ctx.only and ctx.also"
            )
        ring, real = self.make_ring(ctx), ctx.pos >= 0
        token_pos = F.pad(torch.where(real, ctx.pos + 1, -1), (1, 0))  # the relay has position 0, tokens start at 1
        relay = Context(torch.zeros_like(token_pos[:, :1]), run=True, source_pos=token_pos, is_clean=True)
        h, s = e, self.mean(e, ctx)
        for round_ in self.rounds:
            h = self.after_round(F.dropout(round_.satellites(h, e, s, ring), self.dropout, self.training), ctx)
            s = F.dropout(
                round_.update_relay(s, relay.replace(source=torch.cat([s, h], 1))), self.dropout, self.training
            )
        return h, s[:, 0]

    def make_ring(self, ctx: Context) -> Ring:
        """Return the neighbours of each token, with the first and the last token of a row as neighbours."""
        real, at = ctx.pos >= 0, torch.arange(ctx.pos.shape[1], device=ctx.pos.device)
        first, last = real.int().argmax(1, keepdim=True), (real * at).amax(1, keepdim=True)
        return Ring(ctx.pos, torch.where(at == first, last, at - 1), torch.where(at >= last, first, at + 1))

    def mean(self, e: Float[Tensor, "B T D"], ctx: Context) -> Float[Tensor, "B 1 D"]:
        """Return the initial relay: the mean of the real tokens."""
        real = (ctx.pos >= 0)[..., None]
        return (e * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp_min(1)

    def after_round(self, h: Float[Tensor, "B T D"], ctx: Context) -> Float[Tensor, "B T D"]:
        """Return the tokens for the next round: h itself; a subclass may change them."""
        return h


class PublishedStarRounds(StarRounds):
    """The Star-Transformer as in the authors' code (fastNLP), with `PublishedStarRound`.

    Choose it to repeat published numbers; otherwise choose `StarRounds`.

    Differences: unlike in `StarRounds`, the ring is open. Beyond its ends a token reads a key and a value of zeros,
    which take part in the softmax. Padding tokens are neighbours on the ring too; they are set to 0 after each round.
    The relay starts as the mean of the whole tensor row, padding included.
    """

    def make_ring(self, ctx: Context) -> Ring:
        at = torch.arange(ctx.pos.shape[1], device=ctx.pos.device).expand_as(ctx.pos)
        return Ring(ctx.pos, at - 1, torch.where(at < ctx.pos.shape[1] - 1, at + 1, -1), zeros=True)

    def mean(self, e: Float[Tensor, "B T D"], ctx: Context) -> Float[Tensor, "B 1 D"]:
        return e.mean(1, keepdim=True)

    def after_round(self, h: Float[Tensor, "B T D"], ctx: Context) -> Float[Tensor, "B T D"]:
        return h * (ctx.pos >= 0)[..., None]


PADDED = {
    "padding": "the ring passes through padding, and the relay starts as the mean of all columns, padding included"
}
KINKED = {"autocast": "if rounding moves a sum across zero, the LeakyReLU has another slope there"}
EXAMPLES = (
    lambda: StarRounds([StarRound(16, 2) for _ in range(2)]),
    Example(lambda: PublishedStarRounds([PublishedStarRound(16, 2) for _ in range(2)]), breaks=PADDED | KINKED),
    lambda: StarRounds([StarRound(16, 2)], out="mixed"),
    lambda: StarRounds([StarRound(16, 2)], out="relay"),
)
