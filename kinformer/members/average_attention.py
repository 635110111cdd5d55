"""Average attention network: a decoder that averages the past in place of attention."""

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


@member(cost="L", needs={"heads, head_dim, smoothing": "form=encoder_decoder", "length": "position=learned"})
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
    """Average attention network (Zhang et al., 2018, arXiv:1805.00631): means in place of attention.

    Decoder layers average all tokens up to the current one.

    Choose it if a decoding step must take the same time and memory after ten thousand tokens as after ten. Choose
    `linear_transformer` if the model must also remember the places of tokens. A mean loses the order of tokens, except
    for the order that position encodings and lower blocks add to the tokens.

    Each layer keeps one running sum, so the time for L tokens grows as L d^2. The attention of `gpt` grows as L^2 d.
    `kinformer claim average_attention_steps` counts the cost of a decoding step. The paper's model translates, with
    attention in the encoder and cross-attention to the source.

    d: model width.
    depth: number of blocks, and of encoder blocks if there is an encoder.
    heads: number of heads in the encoder and in cross-attention; form "decoder" has none.
    head_dim: width of a head; d / heads if None.
    hidden: units of each feed-forward layer, also of those on means; 4 d if None.
    feedforward: apply a feed-forward layer to each mean, before the gate. In the paper, leaving out both this layer and
        the gate lowered the quality most.
    gate: use input and forget gates between a token and its mean.
    form: "decoder" for text, or the paper's "encoder_decoder" for pairs.
    position: position encoding: "learned" with `length` rows, "sinusoidal", "tensor2tensor" or "none".
    norm: "pre", which trains without a warm-up, or "post" as in the paper.
    length: longest row in tokens (learned positions).
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs, and of attention weights in an "encoder_decoder".
    smoothing: label smoothing of an "encoder_decoder"; 0.1 in the paper.
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


FORGETS = "averages keep the earlier tokens of a row, but not how far back they are"
TINY: dict[str, Any] = {"d": 16, "hidden": 24, "vocab": 11}
PAIRS: dict[str, Any] = {**TINY, "depth": 1, "heads": 2, "form": "encoder_decoder"}
EXAMPLES = (
    lambda: average_attention(**PAIRS, norm="post", position="learned", length=64),
    Example(lambda: average_attention(**TINY, depth=2), breaks={"learns": FORGETS}),
    lambda: average_attention(
        d=16, depth=1, heads=2, form="encoder_decoder", feedforward=False, gate=False, smoothing=0.1, vocab=11
    ),
)
