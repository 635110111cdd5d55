"""Bodies of models that read steps of episodes: GPT-2's blocks, which know order by the pattern and the steps alone."""

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
    """So many pre-norm blocks with a norm at the end; attention's weights and what sublayers give are dropped alike."""
    wiring = Wiring(d, heads, head_dim, dropout=dropout)

    def mlp() -> MLP:
        return MLP(d, hidden, activation=activation)

    check_at_least("depth", depth, 1)
    return wiring.stack(wiring.block(wiring.attention(pattern, dropout=dropout), mlp()) for _ in range(depth))
