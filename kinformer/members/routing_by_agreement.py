"""Routing by agreement: a Transformer with lower layers that combine heads by capsule routing."""

from typing import Literal

from kinformer.core.aggregation import Aggregation
from kinformer.core.checks import check_at_least, check_option, check_whole_between, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.support.encoder_decoder import embedding_std
from kinformer.members.support.wiring import Wiring, tied_start
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.aggregations.dynamic_routing import DynamicRouting
from kinformer.nn.aggregations.em_routing import EMRouting
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

Routing = Literal["em", "dynamic"]
Form = Literal["decoder", "encoder_decoder"]
Place = Literal["encoder", "cross", "decoder"]


@member(
    cost="L**2",
    needs={
        "routing, capsules, iterations": "lower!=0 and places",
        "lower": "places",
        "pattern, length": "form=decoder",
        "places": "form=encoder_decoder and lower!=0",
        "smoothing": "form=encoder_decoder",
    },
)
def routing_by_agreement(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    routing: Routing = "em",
    capsules: int | None = None,
    iterations: int = 3,
    lower: int | None = None,
    form: Form = "decoder",
    places: tuple[Place, ...] = ("encoder", "cross", "decoder"),
    pattern: str = "Causal()",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
    smoothing: float = 0.1,
) -> LM | Seq2Seq:
    """Capsule routing of heads (Li et al., 2019, arXiv:1904.03100; Gu and Feng, 2019, arXiv:1909.00188).

    A head's output counts more if more heads agree with it. Choose it over `gpt` if the outputs of heads overlap. It
    costs heads x d multiplications per token and iteration, independent of the length. It has about as many weights as
    the output matrix, which it replaces.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    routing: "em", the better of the two in the paper, or "dynamic".
    capsules: number of output capsules, each d / capsules wide; as many as heads if None.
    iterations: number of routing iterations; 3 in the papers.
    lower: number of the lowest blocks that route; the other blocks have an output matrix. Half of all blocks if None:
        the paper finds that routing helps in low layers and not in high ones.
    form: "decoder" for text, or the papers' "encoder_decoder" for pairs, which is `transformer` with routed heads.
    places: attentions of an "encoder_decoder" with routed heads: "encoder", "decoder" for the decoder's self-attention,
        and "cross" for its attention to the source.
    pattern: expression for the tokens that each token reads, such as "Causal() & Band(64)", in every block.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    smoothing: label smoothing of an "encoder_decoder".

    Differences: the papers have a translation Transformer. The blocks of form "decoder" are as in `gpt`.
    """
    check_option("form", form, Form)
    check_option("routing", routing, Routing)
    width = resolve_head_dim(d, heads, head_dim)
    routed = (
        (check_at_least("depth", depth, 1) + 1) // 2 if lower is None else check_whole_between("lower", lower, 0, depth)
    )

    def make_aggregation() -> Aggregation:
        kind = EMRouting if routing == "em" else DynamicRouting
        return kind(heads, width, d, capsules=capsules, iterations=iterations)

    if form == "decoder":

        def block(n: int) -> PreNorm:
            mechanism = Softmax(parse(pattern), dropout=dropout, lse=False)
            projection = QKV(d, heads, head_dim=width)
            attention = Attention(projection, mechanism, aggregation=make_aggregation() if n < routed else None)
            return PreNorm(attention, MLP(d, activation="gelu_tanh"), dropout=dropout)

        body = Stack([block(n) for n in range(depth)], LayerNorm(d))
        return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout)
    wiring = Wiring(d, heads, width, "sinusoidal", norm="post", dropout=dropout)

    def attention(n: int, place: Place) -> Attention:
        reads = Causal() if place == "decoder" else Full()
        kind = make_aggregation() if n < routed and place in places else None
        return wiring.attention(reads, cross=place == "cross", dropout=dropout, aggregation=kind)

    def make_stack(*at: Place) -> Stack:
        return wiring.stack(
            wiring.block(*(attention(n, place) for place in at), MLP(d, activation="relu")) for n in range(depth)
        )

    return Seq2Seq(
        vocab,
        d,
        make_stack("encoder"),
        make_stack("decoder", "cross"),
        position=wiring.added_position(),
        scale=wiring.scale,
        std=embedding_std(wiring),
        smoothing=smoothing,
        dropout=dropout,
    )


def _em() -> LM | Seq2Seq:
    return routing_by_agreement(d=16, depth=2, heads=2, capsules=4, length=64, vocab=11)


EXAMPLES = (
    Example(_em, {"autocast": "capsules with variances near their lower limit amplify rounding errors in gradients"}),
    lambda: routing_by_agreement(d=16, depth=1, heads=2, routing="dynamic", capsules=4, length=64, vocab=11),
    lambda: routing_by_agreement(d=16, depth=1, heads=2, form="encoder_decoder", routing="dynamic", vocab=11),
    lambda: routing_by_agreement(
        d=16, depth=2, heads=2, routing="dynamic", lower=1, pattern="Causal() & Band(5)", length=64, vocab=11
    ),
)
