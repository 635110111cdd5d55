"""Linear Transformer: attention by sums of key features, so the stored past has a fixed size."""

from collections.abc import Callable
from typing import Literal

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.members.support.lane_decoder import build_lane_decoder
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.maps.elu import ELU
from kinformer.nn.maps.relu import ReLU
from kinformer.nn.mechanisms.decayed import Decayed
from kinformer.nn.mechanisms.delta_update import DeltaUpdate
from kinformer.nn.mechanisms.linear import AdditiveUpdate, GatedUpdate, LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.mechanisms.state_update import StateUpdate
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV


@member(cost="L", needs={"update, lanes": "form=decoder", "length": "lanes=false"})
def linear_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    length: int = 1024,
    lanes: bool = False,
    vocab: int = 256,
    dropout: float = 0.0,
    features: Literal["elu", "relu"] = "elu",
    update: Literal["sum", "gated", "decayed", "delta"] = "sum",
    form: Literal["decoder", "encoder"] = "decoder",
) -> LM | MLM:
    """Linear Transformer (Katharopoulos et al., 2020, arXiv:2006.16236): attention by feature sums.

    Choose it if decoding must be cheap: each token has the same cost at every length of the row. It remembers less
    sharply than softmax attention, because a head stores its whole past in one matrix. A training step (width 256,
    batch 1, on a CPU) is faster than `gpt`'s from about 1,500 tokens on, and 4.5 times as fast at 16,384
    (bench/README.md).

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    length: longest row in tokens.
    lanes: train on consecutive text and carry the sums from batch to batch; positions are then sinusoids, which have no
        end.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs.
    features: "elu" is the paper's elu(x) + 1; "relu" is max(x, 0) + 1e-3, which leaves out negative numbers.
    update: "sum" is the paper's. With "gated" the sums decay, and a token enters as much as they decay (Peng et al.,
        2021, arXiv:2103.02143). With "decayed" it enters in full. "delta" replaces the value stored for a key (Schlag
        et al., 2021, arXiv:2102.11174).
    form: "decoder" generates text. In an "encoder" each token reads all others (the paper's equation 5), as in its
        speech model; here it predicts masked tokens.

    Differences: the paper leaves the norms open; blocks here are pre-norm. The authors' code adds 1e-6 to the divisor
    of each query's result. Nothing is added here.
    """
    updates: dict[str, Callable[[], StateUpdate]] = {
        "sum": AdditiveUpdate,
        "gated": GatedUpdate,
        "decayed": Decayed,
        "delta": DeltaUpdate,
    }

    def block() -> PreNorm:
        map = ELU() if features == "elu" else ReLU()
        mechanism = LinearAttention(map, updates[update]()) if form == "decoder" else FullLinearAttention(map)
        return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism), MLP(d), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))], LayerNorm(d))
    if form == "encoder":
        return MLM(vocab, d, body, position=Learned(d, length), dropout=dropout)
    return build_lane_decoder(vocab, d, heads, body, length=length, lanes=lanes, dropout=dropout)


EXAMPLES = (
    lambda: linear_transformer(d=16, depth=2, heads=2, length=64, vocab=11),
    lambda: linear_transformer(d=16, depth=1, heads=2, features="relu", update="delta", length=64, vocab=11),
    lambda: linear_transformer(d=16, depth=1, heads=2, form="encoder", length=64, vocab=11),
    Example(
        lambda: linear_transformer(d=16, depth=1, heads=2, update="gated", lanes=True, vocab=11),
        {"learns": "fading sums with sinusoids learn later: accuracy 0.88 after the law's 800 steps"},
    ),
    lambda: linear_transformer(d=16, depth=1, heads=2, update="decayed", length=64, vocab=11),
)
