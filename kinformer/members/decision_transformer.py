"""Decision Transformer: asked for a return, it says what was done before such a return came."""

from typing import Any

from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.trajectory_body import trajectory_body
from kinformer.models.trajectory import SHARES, Trajectory
from kinformer.nn.feedforward.mlp import Activation


@member(recipe=Recipe(lr=1e-3, warmup=0.1), needs={"bounded": "discrete=false"})
def decision_transformer(
    d: int = 128,
    depth: int = 3,
    heads: int = 1,
    head_dim: int | None = None,
    hidden: int | None = None,
    context: int = 20,
    activation: Activation = "relu",
    pattern: str = "Causal()",
    bounded: bool = True,
    beside: float = 0.0,
    best: int = 100,
    states: int = 4,
    actions: int = 2,
    discrete: bool = True,
    steps: int = 1000,
    dropout: float = 0.1,
) -> Trajectory:
    """Decision Transformer (Chen et al., 2021, arXiv:2106.01345): GPT over returns to go, states and actions.

    For `--data offline=PATH`, whose episodes decide `states`, `actions`, `discrete` and `steps`; `kinformer play DIR
    --env ID --return R` then asks it for returns. Choose it over `behaviour_cloning` where episodes are of mixed
    quality: it learns from all of them, and the return that is asked for says which to follow. It puts no episodes
    together to one that is better than each, as learned values can, and what lies beyond the data it does not know.

    context: steps that it reads, the paper's K: 20 on MuJoCo, 5 on Reacher, 30 on Atari and 50 on its Pong.
    activation: relu in the code for MuJoCo, gelu in that for Atari.
    bounded: numbers of actions through tanh; kinds have none.
    beside: the weight of predicting states and returns too, which the paper did not find to help.
    states, actions, discrete: numbers of an observation; kinds of actions, or numbers of one with discrete=false.
    steps: steps of the longest episode.
    head_dim: the width of a head, d / heads unless given.
    best: learn from this percent of steps, in the episodes of the highest returns.

    d, depth, heads and dropout are the paper's for MuJoCo. Scores of heads are no other than GPT-2's.
    """
    body = trajectory_body(d, depth, heads, head_dim, hidden, activation, dropout, pattern)
    return Trajectory(
        states,
        actions,
        body,
        discrete=discrete,
        context=context,
        steps=steps,
        bounded=bounded,
        beside=beside,
        best=best,
        dropout=dropout,
    )


TINY: dict[str, Any] = {"d": 16, "depth": 1, "heads": 2, "context": 4, "states": 3, "steps": 32}
EXAMPLES = (
    lambda: decision_transformer(**TINY),
    Example(
        lambda: decision_transformer(**TINY, actions=1, discrete=False, beside=0.1, activation="gelu_tanh"),
        breaks=SHARES,
    ),
    lambda: decision_transformer(
        **TINY,
        actions=2,
        discrete=False,
        bounded=False,
        activation="gelu_sigmoid",
        pattern="Causal() & Band(6)",
        hidden=24,
    ),
)
