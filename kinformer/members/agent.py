"""Agent: the layers of another member, with a policy and a value in place of words."""

from kinformer.core.discover import member
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.member_stack import parse_stack
from kinformer.models.agent import Agent


@member(recipe=Recipe(lr=5e-4, warmup=0.05))
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
    """PPO (Schulman et al., 2017, arXiv:1707.06347) over the layers of any member that goes on token by token.

    `kinformer train gtrxl d=64 --data env=t_maze` is `agent` with stack="gtrxl(d=64)", and what the environment shows
    and takes. Choose the stack by what must be remembered: lstm for a little, gtrxl and transformer_xl for what lies
    far back, "gpt(pattern=Causal() & Band(0))" for nothing. `discount` and `trace` are gamma and lambda of the
    advantages, `ratio` how far the policy may move from the one that acted, `entropy` and `value` weights of the loss;
    what was done is learned from `epochs` times in so many `pieces`. `burn_in` steps are read again before those that
    are learned from, since weights have moved since they were remembered (Kapturowski et al., 2019).
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
