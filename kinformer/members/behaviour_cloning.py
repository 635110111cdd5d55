"""Behaviour cloning: a model that imitates the actions of the best episodes."""

from kinformer.core.discover import member
from kinformer.core.training_recipe import Recipe
from kinformer.members.decision_transformer import TINY
from kinformer.members.support.trajectory_body import trajectory_body
from kinformer.models.trajectory import Trajectory
from kinformer.nn.feedforward.mlp import Activation


@member(cost="context**2", recipe=Recipe(lr=1e-3, warmup=0.1), needs={"bounded": "discrete=false"})
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

    This Decision Transformer has no returns: it predicts the next action from the last states and actions. It is the
    paper's baseline. `kinformer compare decision_transformer behaviour_cloning --data offline=PATH` trains both on the
    same episodes. Choose it if all episodes are good, or if the best episodes are enough and you know their percentage.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer; 4 d if None.
    context: number of last steps that the model reads.
    activation: activation of the feed-forward layer.
    pattern: expression for the tokens that each token reads, such as "Causal()".
    bounded: bound real-valued actions with tanh; discrete actions have no bound.
    best: percentage of all steps to learn from, taken from the episodes with the highest returns; 100 clones all.
    states: number of values in an observation.
    actions: number of kinds of actions if `discrete`, else the numbers in one action.
    discrete: an action is one of `actions` kinds; if False, it is a vector of real numbers.
    steps: number of steps of the longest episode.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Evaluation uses held-out episodes of any return, so the error of a model that clones only the best episodes is high
    by design. `kinformer play` reports the return that the model reaches.
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
