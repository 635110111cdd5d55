"""CALM: a decoder whose sure tokens leave early."""

from typing import Literal

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.checks import one_of
from kinformer.depth.early_exit import EarlyExit
from kinformer.discover import member
from kinformer.exits.confidence import Confidence, Probe, Saturation, SoftmaxResponse
from kinformer.exits.rules import Confident, Decaying
from kinformer.feedforward.mlp import MLP
from kinformer.losses.aligned import Weights
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.multi_exit import MultiExit
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.causal import Causal
from kinformer.positions.learned import Learned
from kinformer.projections.qkv import QKV

Sure = Literal["softmax_response", "saturation", "probe"]


@member
def calm(
    d: int = 128, depth: int = 6, heads: int = 4, head_dim: int | None = None, confidence: Sure = "softmax_response",
    threshold: float = 0.9, temperature: float | None = None, decay: Literal["paper", "code"] = "paper",
    strict: bool = False, weights: Weights = "linear", balance: bool = False, length: int = 1024, vocab: int = 256,
    dropout: float = 0.0
) -> MultiExit:
    """Confident adaptive language modelling (Schuster et al., 2022, arXiv:2207.07061), as a decoder.

    Choose it to write easy tokens with fewer layers. A token leaves once its `confidence` reaches the `threshold`: the
    gap of its two largest probabilities, the cosine to the layer before, or a probe that is trained to tell
    (`balance`: both of its classes alike). With a `temperature` (4 in the paper) the threshold falls over `length`
    positions, by equation 5 or as the authors' code does. The layers learn at every exit, weighted by their number.
    The paper's own model is a T5; here it is one stack of pre-norm blocks with one norm before the head for all exits.
    """
    kinds: dict[Sure, Confidence] = {
        "softmax_response": SoftmaxResponse(), "saturation": Saturation(), "probe": Probe(d, balance=balance)
    }
    sure = kinds[one_of("confidence", confidence, Sure)]
    falls = threshold if temperature is None else Decaying(threshold, length, temperature, decay)

    def block() -> PreNorm:
        attention = Attention(QKV(d, heads, head_dim=head_dim), Softmax(Causal(), dropout=dropout, lse=False))
        return PreNorm(attention, MLP(d, activation="gelu_tanh"), dropout=dropout)

    body = EarlyExit([block() for _ in range(depth)], LayerNorm(d), Confident(sure, falls, strict=strict))
    return MultiExit(vocab, d, body, weights=weights, position=Learned(d, length), dropout=dropout)


EXAMPLES = (
    lambda: calm(d=16, depth=3, heads=2, threshold=0.1, length=64, vocab=11),
    lambda: calm(d=16, depth=3, heads=2, confidence="probe", threshold=0.5, temperature=4.0, length=64, vocab=11),
)
