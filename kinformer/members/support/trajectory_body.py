"""Body of trajectory models (models of episodes): blocks as in GPT-2, without position encodings."""

from kinformer.core.checks import check_at_least
from kinformer.members.support.wiring import Wiring
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP, Activation


def trajectory_body(
    d: int,
    depth: int,
    heads: int,
    head_dim: int | None,
    hidden: int | None,
    activation: Activation,
    dropout: float,
    pattern: str,
) -> Stack:
    """Build a stack of pre-norm blocks with a norm at the end.

    The blocks know order only from the pattern, and from the step embeddings that the model adds.

    d: model width.
    depth: number of blocks.
    heads: number of heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer; 4 d if None.
    activation: activation of the feed-forward layer.
    dropout: dropout probability of attention weights and sublayer outputs.
    pattern: pattern of the tokens that each token reads.
    """
    wiring = Wiring(d, heads, head_dim, dropout=dropout)

    def mlp() -> MLP:
        return MLP(d, hidden, activation=activation)

    check_at_least("depth", depth, 1)
    return wiring.stack(wiring.block(wiring.attention(pattern, dropout=dropout), mlp()) for _ in range(depth))
