"""UniformExit: an exit rule in which each token leaves after a random layer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.layer import Context, State
from kinformer.nn.exits.confidence import Head, States
from kinformer.nn.exits.exit_rule import ExitRule, Leaves
from kinformer.nn.mechanisms.repeatable_chance import hashed_uniform, sign_bits


class UniformExit(ExitRule):
    """An exit rule in which each token leaves after a layer that is chosen uniformly at random.

    Choose it only for mixed training, in which tokens leave at random layers; it ignores the hidden states.

    Each call draws one random number, seeded by `torch.manual_seed` as dropout is. The exit of a token depends on this
    number, on the token's vector before the first layer and on its position. Neither padding nor the other rows change
    it. Equal tokens at equal positions leave at the same exit in one call.

    depth: number of layers.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 2.2.2.
    """

    def __init__(self, depth: int):
        super().__init__()
        self.depth = check_at_least("depth", depth, 1)

    def check_sizes(self, d: int, depth: int) -> None:
        if depth != self.depth:
            raise ValueError(f"UniformExit({self.depth}) does not fit {depth} layers. Pass UniformExit({depth})")

    def begin_call(self, state: State, ctx: Context, x: Float[Tensor, "B T D"]) -> Int[Tensor, "B T"]:
        seed = torch.randint(2**31, (), device=x.device)
        return 1 + (hashed_uniform(seed, sign_bits(x), ctx.pos) * self.depth).long()

    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves:
        return rule_state <= len(states)
