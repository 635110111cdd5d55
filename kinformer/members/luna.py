"""Luna: attention through a short packed copy of a long row."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_multiple
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.members.support.wiring import Wiring
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.luna import LunaBlock, LunaStack, Nested
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.luna_causal import LunaCausal, Weight
from kinformer.nn.mechanisms.luna_packs import Packs, Start
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.tied_kv import TiedKV


@member(cost="L * packs", needs={"weight": "form=decoder", "pack_heads": "form=encoder"})
def luna(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    packs: int = 16,
    pack_heads: int | None = None,
    tied: bool = False,
    start: Start = "learned",
    form: Literal["encoder", "decoder"] = "encoder",
    weight: Weight = "softplus",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM | LM:
    """Luna (Ma et al., 2021, arXiv:2106.01540): a row packed into a few vectors, and unpacked again.

    The packs attend to the row, and the row attends to the packs. Layers are post-norm. Choose it over `bert` for a
    cost linear in the row, and over `star_transformer` if one vector cannot summarise a row. As a decoder, choose it
    over `linear_transformer` if a softmax should select the tokens that are read. Its averages of all tokens so far
    learn late to separate one token from the others.

    A training step (width 256, batch 1, on a CPU) of an encoder is faster than `bert`'s already at 1,024 tokens, and
    2.9 times as fast at 4,096. A decoder is faster than `gpt` from about 2,000 tokens on, and 4.1 times as fast at
    16,384 (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None. In an encoder it applies to the unpacking heads, because no output
        matrix could bring packs of another width back to d.
    packs: number of vectors into which a row is packed, the paper's l; 16 to 256 in its tables.
    pack_heads: number of heads that pack, in an encoder; `heads` if None.
    tied: keys and values share one matrix, as in the authors' training; the paper's equations have two.
    start: initial packs of the lowest layer: "learned", or "sinusoidal", which do not train.
    form: "encoder" predicts masked tokens, and its packs pass from layer to layer. "decoder" generates text, and its
        layers share the initial packs.
    weight: activation that weighs how much of a token enters a pack, in a decoder: "softplus", "elu", or "log2" as in
        the authors' code.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """
    check_at_least("depth", depth, 1), check_at_least("packs", packs, 1)
    begin = Packs(packs, d, start)
    if form == "encoder":
        if pack_heads is not None:
            check_multiple("d", d, "pack_heads", pack_heads)

        def nested() -> Nested:
            return Nested(d, heads, head_dim=head_dim, pack_heads=pack_heads, tied=tied, dropout=dropout)

        body = LunaStack([LunaBlock(nested(), MLP(d), dropout=dropout) for _ in range(depth)], begin)
        return MLM(vocab, d, body, position=Learned(d, length), dropout=dropout)

    def block() -> PostNorm:
        projection = (TiedKV if tied else QKV)(d, heads, head_dim=head_dim)
        mechanism = LunaCausal(begin, heads, projection.k_dim, weight=weight, dropout=dropout)
        return PostNorm(Attention(projection, mechanism), MLP(d), dropout=dropout)

    wiring = Wiring(d, heads, position="learned", length=length, norm="post")
    stack = Stack([block() for _ in range(depth)])
    return LM(vocab, d, stack, position=wiring.added_position(), std=wiring.start, dropout=dropout)


def _decoder() -> LM | MLM:
    return luna(d=16, depth=2, heads=2, packs=3, form="decoder", tied=True, start="sinusoidal", length=64, vocab=11)


SLOW = {
    "learns": "running averages over all earlier tokens separate single tokens late: accuracy 0.68 at copying from "
    "6 back after the law's 800 steps, and 0.97 after 1,040 steps with 16 packs"
}
LATER = {"learns": "even later than with softplus: accuracy 0.40 after the law's 800 steps"}
NARROW = {"learns": "more and narrower packing heads learn later: accuracy 0.86 after the law's 800 steps"}
EXAMPLES = (
    lambda: luna(d=16, depth=2, heads=2, packs=3, length=64, vocab=11),
    Example(_decoder, breaks=SLOW),
    Example(lambda: luna(d=16, depth=1, heads=2, packs=4, pack_heads=4, length=64, vocab=11), breaks=NARROW),
    lambda: luna(d=16, depth=1, heads=2, packs=3, form="decoder", weight="elu", length=64, vocab=11),
    Example(
        lambda: luna(d=16, depth=1, heads=2, packs=3, form="decoder", weight="log2", length=64, vocab=11), breaks=LATER
    ),
)
