"""UniformExit: each token leaves after a layer drawn uniformly."""

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.layer import Context, State
from kinformer.nn.exits.confidence import Head, States
from kinformer.nn.exits.exit_rule import ExitRule, Leaves


class UniformExit(ExitRule):
    """By chance: each token's exit is any of the layers, all alike. It decides nothing but mixed training.

    Exits are drawn as dropout is, anew in each call, seeded by `torch.manual_seed`.

    depth: how many layers there are.

    Source: Elbayad et al., 2019, arXiv:1910.10073, section 2.2.2.
    """

    def __init__(self, depth: int):
        super().__init__()
        self.depth = check_at_least("depth", depth, 1)

    def check_sizes(self, d: int, depth: int) -> None:
        if depth != self.depth:
            raise ValueError(f"UniformExit({self.depth}) came for {depth} layers; give UniformExit({depth})")

    def begin_call(self, state: State, ctx: Context) -> Int[Tensor, "B T"]:
        return torch.randint(1, self.depth + 1, ctx.pos.shape, device=ctx.pos.device)

    def forward(self, states: States, ctx: Context, rule_state: State = (), head: Head | None = None) -> Leaves:
        return rule_state <= len(states)
