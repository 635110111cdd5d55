"""Universal: one block again and again."""

import dataclasses
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.attention import Attention
from kinformer.blocks.post_norm import PostNorm
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.causal import Causal
from kinformer.positions.sinusoidal import Timing


class Universal(Layer):
    """A block applied `steps` times, with one set of weights: a stack whose blocks are the same one.

    Choose it where few weights must do much, or under `ACT`, where each token chooses how often. `timing(pos, step)` is
    added to what each step reads. Each step has a state of its own. Values per token and stats that the block reports
    are summed over the steps; a penalty on its parameters counts once.

    Source: Dehghani et al., 2018, arXiv:1807.03819, section 2.1 (with `PostNorm` blocks and `Timing`).
    """

    def __init__(self, block: Layer, steps: int, timing: nn.Module | None = None):
        super().__init__()
        if steps < 1:
            raise ValueError(f"Universal takes at least 1 step, and {steps} came")
        self.d, self.block, self.steps, self.timing = block.d, block, steps, timing

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> State:
        return tuple(self.block.start(batch, length, dtype=dtype, device=device) for _ in range(self.steps))

    def placed(self, x: Float[Tensor, "B T D"], step: int, ctx: Context) -> Float[Tensor, "B T D"]:
        """What a step reads: its input and the timing."""
        return x if self.timing is None else x + self.timing(ctx.pos, step)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        states: list[State] = []
        up: dict[str, Tensor] = {}
        aux: dict[str, Tensor] = {}
        stats: dict[str, Tensor] = {}
        for n in range(self.steps):
            out = self.block(self.placed(x, n, ctx), None if state is None else state[n], beneath(ctx, up))
            x, up = out.y, {**up, **out.up}
            states.append(out.state)
            aux, stats = summed(aux, out.aux, ctx.pos >= 0), added(stats, out.stats)
        return Out(x, None if state is None else tuple(states), aux, up, stats)


def beneath(ctx: Context, up: Mapping[str, Tensor]) -> Context:
    """The context of a step, with what the steps before it sent up."""
    return dataclasses.replace(ctx, below={**ctx.below, **up}) if up else ctx


def summed(sums: Mapping[str, Tensor], aux: Mapping[str, Tensor], counts: Bool[Tensor, "B T"]) -> dict[str, Tensor]:
    """Aux of the steps so far and of one more: values per token added where they count, penalties [] taken once."""
    found = dict(sums)
    for name, value in aux.items():
        one = torch.where(counts, value, 0.0) if value.dim() else value
        found[name] = found[name] + one if value.dim() and name in found else one
    return found


def added(sums: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stats of the steps so far and of one more."""
    return {**sums, **{name: sums[name] + value if name in sums else value for name, value in stats.items()}}


def idle(layer: nn.Module, going: Bool[Tensor, "B T"]) -> bool:
    """Is nobody left to go on, where it may be asked? Processes that train together must take the same steps."""
    return not (layer.training or torch.compiler.is_compiling() or bool(going.any()))


def _block() -> PostNorm:
    return PostNorm(Attention(16, 2, Softmax(Causal())), MLP(16))


EXAMPLES = (lambda: Universal(_block(), 3), lambda: Universal(_block(), 2, Timing(16)))
COMPILES = True
