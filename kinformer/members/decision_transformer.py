"""Decision Transformer: given a target return, it predicts the actions that led to such a return."""

from typing import Any

from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.trajectory_body import trajectory_body
from kinformer.models.trajectory import SHARES, Trajectory
from kinformer.nn.feedforward.mlp import Activation


@member(cost="context**2", recipe=Recipe(lr=1e-3, warmup=0.1), needs={"bounded": "discrete=false"})
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
    """Decision Transformer (Chen et al., 2021, arXiv:2106.01345): GPT on returns and actions.

    The model reads returns to go, states and actions, and predicts each action.

    Train it with `--data offline=PATH`; the episodes set `states`, `actions`, `discrete` and `steps`. `kinformer play
    DIR --env ID --return R` then asks for a return. Choose it over `behaviour_cloning` if episodes have mixed quality:
    it learns from all of them, and the target return selects which to follow. It does not combine parts of episodes
    into a better one, as methods that learn a value function can, and returns beyond the data are a guess.

    d: model width; the default is the paper's for MuJoCo, as for depth, heads and dropout.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer; 4 d if None.
    context: number of last steps that the model reads, the paper's K: 20 on MuJoCo, 5 on Reacher, 30 on Atari and 50 on
        Atari's Pong.
    activation: activation of the feed-forward layer; relu in the paper's code for MuJoCo, gelu in its code for Atari.
    pattern: expression for the tokens that each token reads, such as "Causal()".
    bounded: bound real-valued actions with tanh; discrete actions have no bound.
    beside: loss weight of predicting the next state and return too; in the paper this did not help.
    best: percentage of all steps to learn from, taken from the episodes with the highest returns.
    states: number of values in an observation.
    actions: number of kinds of actions if `discrete`, else the numbers in one action.
    discrete: an action is one of `actions` kinds; if False, it is a vector of real numbers.
    steps: number of steps of the longest episode.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    The model computes attention scores exactly as GPT-2 does.
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
