"""Hard-coded Gaussian attention: every head reads around a fixed offset from the token."""

from dataclasses import replace
from typing import Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.support.attention_forms import Form, build_form
from kinformer.members.support.wiring import Norms, Wiring
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.attention import Attention
from kinformer.nn.biases.hard_coded_gaussian import HardCodedGaussian
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.unnormalised import Unnormalised
from kinformer.nn.projections.value_projection import ValueProjection

Weights = Literal["densities", "softmax"]
Across = Literal["learned", "last", "hard_coded"]
Order = Literal["learned", "sinusoidal", "tensor2tensor", "none"]
BOTH_WAYS, PAST = (-1, 0, 1), (-1, 0)


@member(
    cost="L**2",
    needs={"across, smoothing": "form=encoder_decoder", "ratio": "across=hard_coded", "length": "position=learned"},
)
def hard_coded_gaussian(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    offsets: tuple[int, ...] | None = None,
    sigma: float = 1.0,
    weights: Weights = "densities",
    across: Across = "learned",
    ratio: float = 1.0,
    pattern: str = "Full()",
    form: Form = "encoder_decoder",
    position: Order = "sinusoidal",
    norm: Norms = "pre",
    hidden: int | None = None,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
    smoothing: float = 0.0,
) -> LM | MLM | Seq2Seq:
    """Hard-coded Gaussian attention (You et al., 2020, arXiv:2005.00742): token i reads around i + o.

    The offset o depends on the head. Self-attention learns only values: it has no queries and no keys. Choose it to see
    how little attention a task needs. In the paper translation lost little by it, and much if attention to the source
    was hard-coded too. `synthesizer` learns its fixed weights, and `gaussian_transformer` adds a Gaussian to scores
    from content. Every pair of tokens has a weight, but the tokens are not compared. Time grows as L^2 d, or as L d
    with a `pattern` such as Band(8).

    d: model width.
    depth: number of blocks, on each side of an "encoder_decoder".
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    offsets: values of o, which heads take in turn. The default is -1, 0, 1, and -1, 0 in a decoder, which has no later
        tokens.
    sigma: standard deviation, in positions.
    weights: "densities" are used unchanged, as in the authors' code, so they sum to less than 1 at the ends of a row;
        "softmax" divides densities by their sum.
    across: attention to the source. "learned" is ordinary attention. With "last" only the last block has it, with
        a single learned head. With "hard_coded" it reads around ratio i + o.
    ratio: ratio of source length to target length in the data, the paper's gamma.
    pattern: expression for the tokens that a token may read; "Band(8)" makes the cost linear and hardly changes the
        result.
    form: "encoder_decoder" for pairs as in the paper, "decoder" for text, or "encoder" that predicts masked tokens.
    position: position encoding, as in `transformer`.
    norm: "pre" or "post".
    hidden: width of the feed-forward layer; 4 d if None.
    length: longest row in tokens (learned positions).
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    smoothing: label smoothing of an "encoder_decoder".
    """
    check_option("weights", weights, Weights), check_option("across", across, Across)
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)
    kind, reads = Softmax if weights == "softmax" else Unnormalised, parse(pattern)

    def hard_coded(allowed: Pattern, usual: tuple[int, ...], *, cross: bool = False) -> Attention:
        centres = usual if offsets is None else offsets
        check_at_least("the number of offsets", len(centres), 1)
        by_head = tuple(centres[h % len(centres)] for h in range(heads))
        bias = HardCodedGaussian(by_head, sigma, ratio=ratio if cross else 1.0)
        mechanism: KeyValueMechanism = kind(allowed, bias, dropout=dropout)
        return Attention(ValueProjection(d, heads, v_dim=wiring.width), mechanism, cross=cross)

    def source(n: int) -> tuple[Layer, ...]:
        if form != "encoder_decoder" or (across == "last" and n < depth - 1):
            return ()
        if across == "hard_coded":
            return (hard_coded(Full(), BOTH_WAYS, cross=True),)
        narrow = replace(wiring, heads=1) if across == "last" else wiring
        return (narrow.attention(Full(), cross=True, dropout=dropout),)

    def writes(n: int) -> Layer:
        past = Causal() if reads == Full() else Causal() & reads
        return wiring.block(hard_coded(past, PAST), *source(n), MLP(d, hidden))

    def encoder(n: int) -> Layer:
        return wiring.block(hard_coded(reads, BOTH_WAYS), MLP(d, hidden))

    return build_form(form, wiring, depth, vocab, reads=encoder, writes=writes, smoothing=smoothing)


EXAMPLES = (
    lambda: hard_coded_gaussian(d=16, depth=1, heads=2, vocab=11),
    lambda: hard_coded_gaussian(d=16, depth=1, heads=2, weights="softmax", form="encoder", pattern="Band(2)", vocab=11),
    lambda: hard_coded_gaussian(d=16, depth=1, heads=4, offsets=(-3, 0), sigma=0.5, form="decoder", vocab=11),
    lambda: hard_coded_gaussian(
        d=16,
        depth=2,
        heads=2,
        across="last",
        position="learned",
        norm="post",
        hidden=24,
        length=72,
        smoothing=0.1,
        vocab=11,
    ),
    lambda: hard_coded_gaussian(d=16, depth=1, heads=2, across="hard_coded", ratio=0.8, position="none", vocab=11),
)
