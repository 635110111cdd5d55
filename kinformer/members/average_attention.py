"""The average attention network: a Transformer whose decoder takes means of the past, at one price for every step."""

from typing import Any, Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.layer import Layer
from kinformer.core.patterns.full import Full
from kinformer.members.support.wiring import Norms, Wiring
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mixers.average_attention import AverageAttention

Form = Literal["decoder", "encoder_decoder"]
Order = Literal["learned", "sinusoidal", "tensor2tensor", "none"]


@member(needs={"heads, head_dim, smoothing": "form=encoder_decoder", "length": "position=learned"})
def average_attention(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    hidden: int | None = None,
    feedforward: bool = True,
    gate: bool = True,
    form: Form = "decoder",
    position: Order = "sinusoidal",
    norm: Norms = "pre",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
    smoothing: float = 0.0,
) -> LM | Seq2Seq:
    """Average attention network (Zhang et al., 2018, arXiv:1805.00631): decoders that take the mean of all before.

    Choose it where a step of decoding must take as long and as little memory after ten thousand tokens as after ten,
    and `linear_transformer` where it must also remember what stood where: a mean forgets order but for what positions
    and lower blocks put into it. Time grows as L d^2, a row being one running sum, where attention's part of `gpt`
    grows as L^2 d; `kinformer claim average_attention_steps` counts a step of decoding. Its paper translates, with
    attention in the encoder and across.

    d: the width of the model.
    depth: blocks, of the encoder too.
    heads: heads of attention, in the encoder and across; a decoder alone has none.
    head_dim: the width of a head, d / heads unless given.
    hidden: units of each feed-forward, 4 d unless given, also of those over means.
    feedforward: a feed-forward over each mean, before the gate; without it and without the gate the paper lost most.
    gate: input and forget gates between a token and the mean.
    form: a "decoder" of text, or the paper's "encoder_decoder", for pairs.
    position: how it knows order; learned ones have `length` rows.
    norm: "pre", which trains without a warm-up, or "post", the paper's.
    length: the longest row, of learned positions alone.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    smoothing: of labels, in an encoder_decoder; the paper's is 0.1.
    """
    check_option("form", form, Form), check_at_least("depth", depth, 1)
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)

    def mlp() -> MLP:
        return MLP(d, hidden, activation="relu")

    def make_average() -> Layer:
        return AverageAttention(d, mlp() if feedforward else None, gate=gate)

    if form == "decoder":
        body = wiring.stack(wiring.block(make_average(), mlp()) for _ in range(depth))
        return LM(
            vocab, d, body, position=wiring.added_position(), scale=wiring.scale, std=wiring.start, dropout=dropout
        )

    def attention(cross: bool) -> Layer:
        return wiring.attention(Full(), cross=cross, dropout=dropout)

    encoder = wiring.stack(wiring.block(attention(False), mlp()) for _ in range(depth))
    decoder = wiring.stack(wiring.block(make_average(), attention(True), mlp()) for _ in range(depth))
    return Seq2Seq(
        vocab,
        d,
        encoder,
        decoder,
        position=wiring.added_position(),
        scale=wiring.scale,
        std=wiring.start,
        smoothing=smoothing,
        dropout=dropout,
    )


FORGETS = "means tell what stood in a row, not how far back it stood"
TINY: dict[str, Any] = {"d": 16, "hidden": 24, "vocab": 11}
PAIRS: dict[str, Any] = {**TINY, "depth": 1, "heads": 2, "form": "encoder_decoder"}
EXAMPLES = (
    lambda: average_attention(**PAIRS, norm="post", position="learned", length=64),
    Example(lambda: average_attention(**TINY, depth=2), breaks={"learns": FORGETS}),
    lambda: average_attention(
        d=16, depth=1, heads=2, form="encoder_decoder", feedforward=False, gate=False, smoothing=0.1, vocab=11
    ),
)
