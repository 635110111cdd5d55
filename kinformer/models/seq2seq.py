"""Seq2Seq: one sequence in, another one out, one token after the other."""

import dataclasses
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.layer import Context, Layer, Out, prefixed
from kinformer.core.loss import Loss, gathered, weighed
from kinformer.core.position import Position
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.lm import Numbered, after, number
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full


class Seq2Seq(nn.Module):
    """An encoder that reads a source and a decoder that writes a target: for translation and other pairs of sequences.

    `decoder` holds layers with `cross=True`, which read what the encoder made of the source. Source, target and head
    share one embedding, which is multiplied by `scale`; `tie=False` gives the head a matrix of its own. Two ids stand
    above `vocab`: `end`, which the model writes last, and `begin`, which it reads first and never writes, so logits
    have vocab + 1 entries. -1 is padding, at the ends of a row only; a target without a token has no loss.

    `forward((source, target))` is the loss over the target's tokens and the end, each given the true ones before it;
    `smoothing` is the share of a target's probability that `total` spreads evenly over all entries, parts["nll"] is
    without it. `penalties` weighs auxiliary losses by their last name; `dropout` drops embeddings.

    Source: Vaswani et al., 2017, arXiv:1706.03762; label smoothing: Szegedy et al., 2016, arXiv:1512.00567.
    """

    def __init__(
        self,
        vocab: int,
        d: int,
        encoder: Layer,
        decoder: Layer,
        *,
        position: Position | None = None,
        scale: float = 1.0,
        tie: bool = True,
        smoothing: float = 0.0,
        dropout: float = 0.0,
        penalties: Mapping[str, float] | None = None,
    ):
        super().__init__()
        self.vocab, self.end, self.begin = vocab, vocab, vocab + 1
        self.d, self.scale, self.smoothing, self.dropout = d, scale, smoothing, dropout
        self.embedding = nn.Embedding(vocab + 2, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        self.position, self.encoder, self.decoder = position, encoder, decoder
        self.head = nn.Linear(d, vocab + 2, bias=False)
        if tie:
            self.head.weight = self.embedding.weight
        self.penalties = dict(penalties or {})

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Numbered:
        """The state before the first token of targets of up to `length` tokens; the first call puts the source in."""
        now = torch.zeros(batch, dtype=torch.long, device=device)
        return Numbered(now, self.decoder.start(batch, length, dtype=dtype, device=device))

    def encode(self, source: Int[Tensor, "B S"]) -> tuple[Out, Int[Tensor, "B S"]]:
        """What the encoder makes of each source token, and the tokens' positions: a Context's source and source_pos."""
        pos = number(source, source.new_zeros(len(source)))
        return self.encoder(self._embedded(source, pos), None, Context(pos, run=True)), pos

    def logits(
        self,
        tokens: Int[Tensor, "B T"],
        state: Numbered | None = None,
        ctx: Context | None = None,
        *,
        source: Int[Tensor, "B S"] | None = None,
    ) -> Out:
        """Scores of the target's token after each token, the first of which is `begin`.

        The source comes as tokens or, encoded, in the ctx: in every call, or with a state in the first one, since the
        state keeps what is read of it. Without a ctx the model numbers tokens on from its state.
        """
        now = tokens.new_zeros(len(tokens)) if state is None else state.now
        if ctx is None:
            ctx = Context(number(tokens, now), run=True)
        if source is not None:
            encoded, source_pos = self.encode(source)
            ctx = dataclasses.replace(ctx, source=encoded.y, source_pos=source_pos)
        out = self.decoder(self._embedded(tokens, ctx.pos), None if state is None else state.body, ctx)
        if state is not None:
            out = out._replace(state=Numbered(after(now, ctx.pos), out.state))
        return out._replace(y=self.head(out.y)[..., : self.vocab + 1])

    def forward(
        self,
        batch: tuple[Int[Tensor, "B S"], Int[Tensor, "B T"]],
        state: Numbered | None = None,
        progress: float = 1.0,
    ) -> Loss:
        source, target = batch
        read, wanted = framed(target, self.begin, self.end)
        encoded, source_pos = self.encode(source)
        now = read.new_zeros(len(read)) if state is None else state.now
        ctx = Context(number(read, now), run=True, source=encoded.y, source_pos=source_pos)
        out = self.logits(read, state, ctx)
        nll, smooth = (cross_entropy(out.y, wanted, smoothing) for smoothing in (0.0, self.smoothing))
        sums = gathered(encoded.aux, source >= 0)
        for name, value in gathered(out.aux, read >= 0).items():
            sums[name] = sums[name] + value if name in sums else value
        stats = prefixed("encoder", encoded.stats) | prefixed("decoder", out.stats)
        return Loss(weighed(smooth, sums, self.penalties), {"nll": nll, **sums}, out.state, stats)

    def _embedded(self, tokens: Int[Tensor, "B T"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        x = self.embedding(tokens.clamp_min(0)) * self.scale
        if self.position is not None:
            x = x + self.position(pos)
        return F.dropout(x, self.dropout, self.training)


def framed(target: Int[Tensor, "B T"], begin: int, end: int) -> tuple[Int[Tensor, "B T+1"], Int[Tensor, "B T+1"]]:
    """What the decoder reads, `begin` and the target, and what it must write after each, the target and `end`."""
    real = target >= 0
    first = real & (real.cumsum(1) == 1)
    last = real & (real.flip(1).cumsum(1).flip(1) == 1)
    read = torch.where(F.pad(first, (0, 1)), begin, F.pad(target, (1, 0), value=-1))
    wanted = torch.where(F.pad(last, (1, 0)), end, F.pad(target, (0, 1), value=-1))
    return read, wanted


def cross_entropy(
    logits: Float[Tensor, "B T V"], wanted: Int[Tensor, "B T"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """The mean over real targets, in nats, with that share of each target's probability spread evenly."""
    total = F.cross_entropy(
        logits.transpose(1, 2), wanted, ignore_index=-1, reduction="sum", label_smoothing=smoothing
    )
    return total / (wanted >= 0).sum().clamp_min(1)


def _example() -> Seq2Seq:
    encoder = PreNorm(Attention(16, 2, Softmax(Full())), MLP(16))
    decoder = PreNorm(Attention(16, 2, Softmax(Causal())), Attention(16, 2, Softmax(Full()), cross=True), MLP(16))
    return Seq2Seq(11, 16, encoder, decoder, smoothing=0.1)


EXAMPLES = (_example,)
