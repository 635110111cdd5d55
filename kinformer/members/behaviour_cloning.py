"""Behaviour cloning: what was done in the best episodes, whatever came of it."""

from kinformer.core.discover import member
from kinformer.core.training_recipe import Recipe
from kinformer.members.decision_transformer import TINY
from kinformer.members.support.trajectory_body import trajectory_body
from kinformer.models.trajectory import Trajectory
from kinformer.nn.feedforward.mlp import Activation


@member(recipe=Recipe(lr=1e-3, warmup=0.1), needs={"bounded": "discrete=false"})
def behaviour_cloning(
    d: int = 128,
    depth: int = 3,
    heads: int = 1,
    head_dim: int | None = None,
    hidden: int | None = None,
    context: int = 20,
    activation: Activation = "relu",
    pattern: str = "Causal()",
    bounded: bool = True,
    best: int = 10,
    states: int = 4,
    actions: int = 2,
    discrete: bool = True,
    steps: int = 1000,
    dropout: float = 0.1,
) -> Trajectory:
    """Cloning the best percent of episodes (%BC of Chen et al., 2021, arXiv:2106.01345, section 5.1).

    A Decision Transformer without returns: the last states and actions say the next action. What the paper compares
    with: `kinformer compare decision_transformer behaviour_cloning --data offline=PATH` trains both on the same
    episodes. Choose it where these are all good, or the best are enough; how many are good must then be known.

    best: learn from this percent of all steps, in the episodes of the highest returns; 100 clones all.
    bounded: numbers of actions through tanh; kinds have none.
    states, actions, discrete: numbers of an observation; kinds of actions, or numbers of one with discrete=false.
    steps: steps of the longest episode.

    It is measured on held-out episodes of any return, where one that clones the best alone is off by design; `kinformer
    play` says what it reaches.
    """
    body = trajectory_body(d, depth, heads, head_dim, hidden, activation, dropout, pattern)
    return Trajectory(
        states,
        actions,
        body,
        discrete=discrete,
        context=context,
        steps=steps,
        conditioned=False,
        bounded=bounded,
        best=best,
        dropout=dropout,
    )


EXAMPLES = (
    lambda: behaviour_cloning(**TINY),
    lambda: behaviour_cloning(
        **TINY, discrete=False, actions=1, bounded=False, activation="silu", pattern="Causal() & Band(6)", hidden=24
    ),
    lambda: behaviour_cloning(**TINY, discrete=False, actions=2, activation="gelu"),
)
