"""Universal Transformer: one block, repeated as often as each token needs."""

from typing import Any, Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.layer import Layer
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.act import ACT, Halted, Halting, add_weighted, interpolate_answer
from kinformer.nn.depth.universal import Universal
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.feedforward.separable_conv import SeparableConv
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.positions.timing import Timing
from kinformer.nn.projections.qkv import QKV

Form = Literal["decoder", "encoder_decoder"]
Transition = Literal["mlp", "separable_conv"]
Kind = Literal["act", "graves", "fixed"]


@member(cost="L**2", needs={"halted, ponder, epsilon, bias": "halting!=fixed"})
def universal_transformer(
    d: int = 288,
    depth: int = 4,
    heads: int = 6,
    head_dim: int | None = None,
    form: Form = "decoder",
    transition: Transition = "mlp",
    hidden: int | None = None,
    halting: Kind = "act",
    halted: Halted = "updated",
    ponder: float = 0.01,
    epsilon: float = 0.01,
    bias: float = 1.0,
    first: Literal[0, 1] = 1,
    tie: bool = False,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM | Seq2Seq:
    """Universal Transformer (Dehghani et al., 2018, arXiv:1807.03819): one block of up to `depth` steps.

    Choose it for tasks in which tokens need different amounts of work. The default block is wide, because it is
    repeated.

    d: model width.
    depth: maximum number of steps.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    form: "decoder", the paper's language model, or "encoder_decoder" for pairs of sequences.
    transition: type of the second half of the block: "mlp" or "separable_conv".
    hidden: width of the second half of the block; 4 d if None.
    halting: rule that stops a token, described below: "act", "graves", or "fixed", which takes all steps and has no
        other keywords of halting.
    halted: treatment of tokens that have stopped. With "copied", as in the paper's text, their states stay, and time
        falls with the number of steps (`ACT` gives the sizes). With "updated" later steps still change their states,
        and time falls only if whole rows have stopped.
    ponder: loss weight of each step.
    epsilon: tolerance of the halting sum.
    bias: initial bias of the halting unit. In short trainings tokens often stop after one step, and then no gradient
        teaches them to take more; a lower bias starts with more steps.
    first: number of the first position and step; 0 in the authors' code.
    tie: use the embedding as the output head, as in the authors' code; the first loss is then 2 to 3.5 nats above
        chance. The paper's head has its own matrix.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights, units of the transition and sublayer outputs.

    With halting "act" a token stops when its halting sum exceeds 1 - `epsilon`. With the default `halted` this is the
    form of the paper's appendix. "graves" is the form of Graves (2016, arXiv:1603.08983). Its output is a mean weighted
    by probabilities, and the remainder is the weight of the last step. The output of a step determines halting, and a
    token stops at 1 - `epsilon`.
    """
    (
        check_option("form", form, Form),
        check_option("halting", halting, Kind),
        check_option("transition", transition, Transition),
    )
    check_at_least("depth", depth, 1)

    def body(causal: bool, cross: bool) -> Layer:
        mechanism = Softmax(Causal() if causal else Full(), dropout=dropout, lse=False)
        layers: list[Layer] = [Attention(QKV(d, heads, head_dim=head_dim), mechanism)]
        if cross:
            source = Softmax(Full(), dropout=dropout, lse=False)
            layers.append(Attention(QKV(d, heads, head_dim=head_dim), source, cross=True))
        if transition == "mlp":
            layers.append(MLP(d, hidden, activation="relu", dropout=dropout))
        else:
            layers.append(SeparableConv(d, hidden, causal=causal, dropout=dropout))
        steps = Universal(PostNorm(*layers, dropout=dropout), depth, Timing(d, first=first))
        if halting == "fixed":
            return steps
        if halting == "act":
            unit = Halting(d, epsilon=epsilon, bias=bias, last="probability", strict=True)
            return ACT(steps, unit, mix=interpolate_answer, halted=halted, judged="input")
        unit = Halting(d, epsilon=epsilon, bias=bias, last="remainder", strict=False)
        return ACT(steps, unit, mix=add_weighted, halted=halted, judged="output")

    price = {} if halting == "fixed" else {"ponder": ponder}
    if form == "decoder":
        return LM(vocab, d, body(True, False), scale=d**0.5, tie=tie, dropout=dropout, penalties=price)
    encoder, decoder = body(False, False), body(True, True)
    return Seq2Seq(vocab, d, encoder, decoder, scale=d**0.5, tie=tie, dropout=dropout, penalties=price)


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "vocab": 11}
REPEATED = {"*.block": "every step applies the same block"}
SOURCE = {"shard": "the ponder cost of a source is a mean over its tokens, but processes are weighted by their targets"}
EXAMPLES = (
    Example(lambda: universal_transformer(**{**TINY, "depth": 3}), shares=REPEATED),
    Example(
        lambda: universal_transformer(**TINY, halting="graves", halted="copied", transition="separable_conv"),
        shares=REPEATED,
    ),
    Example(
        lambda: universal_transformer(**TINY, form="encoder_decoder", transition="separable_conv", halting="fixed"),
        shares=REPEATED,
    ),
    Example(lambda: universal_transformer(**TINY, form="encoder_decoder"), SOURCE, REPEATED),
    Example(
        lambda: universal_transformer(d=16, depth=2, heads=2, vocab=11, hidden=24, first=0, tie=True), shares=REPEATED
    ),
)
