"""Agent: the layers of another member with a policy head and a value head."""

from kinformer.core.discover import member
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.member_stack import parse_stack
from kinformer.models.agent import Agent


@member(cost="steps", recipe=Recipe(lr=5e-4, warmup=0.05))
def agent(
    stack: str = "transformer_xl",
    observations: tuple[int, ...] = (4,),
    actions: int = 2,
    discrete: bool = True,
    discount: float = 0.99,
    trace: float = 0.95,
    ratio: float = 0.2,
    entropy: float = 0.01,
    value: float = 0.5,
    epochs: int = 4,
    pieces: int = 2,
    burn_in: int = 0,
) -> Agent:
    """PPO agent (Schulman et al., 2017, arXiv:1707.06347) with the layers of a causal language model.

    `kinformer train gtrxl d=64 --data env=t_maze` builds `agent` with stack="gtrxl(d=64)" and the sizes of the
    environment. Choose the stack by what the agent must remember: lstm for a little, gtrxl or transformer_xl for the
    distant past, and "gpt(pattern=Causal() & Band(0))" for nothing.

    stack: member (named language model) that supplies the layers, with its keywords.
    observations: shape of an observation.
    actions: number of kinds of actions if `discrete`, else the numbers in one action.
    discrete: an action is one of `actions` kinds; if False, it is a vector of real numbers.
    discount: gamma of the advantages.
    trace: lambda of the advantages.
    ratio: clipping range: the loss rewards ratios of the new to the old probability of an action only up to this
        distance from 1.
    entropy: loss weight of the policy's entropy.
    value: loss weight of half the squared error of the predicted value.
    epochs: number of times that the agent learns from each rollout.
    pieces: number of batches into which an epoch divides the rollout.
    burn_in: number of steps that are read again, without gradients, before the steps that the agent learns from. The
        stored state was computed with older weights, and these steps bring it up to date (Kapturowski et al., 2019). 0
        uses the stored state.
    """
    model = parse_stack(stack)
    return Agent(
        observations,
        actions,
        model.body,
        discrete=discrete,
        position=model.position,
        discount=discount,
        trace=trace,
        ratio=ratio,
        entropy=entropy,
        value=value,
        epochs=epochs,
        pieces=pieces,
        burn_in=burn_in,
        penalties=model.penalties,
    )


EXAMPLES = (
    lambda: agent(stack="gpt(d=8, depth=1, heads=2, length=64)", observations=(3,)),
    lambda: agent(stack="transformer_xl(d=8, depth=1, heads=2, segment=3, memory=4)", discrete=False, burn_in=2),
)
