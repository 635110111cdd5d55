"""Universal: a layer that repeats one block with shared weights."""

from jaxtyping import Float, Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_at_least, check_part
from kinformer.core.collected_outputs import Collected, wants_and_sends
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State


class Universal(Layer):
    """A block applied `steps` times with one set of weights.

    Choose it for a deep model with few weights, or as the part of `ACT` (adaptive computation time) that is repeated.
    Each step has its own decoding state. Values per token and sums that the block reports are added over the steps. A
    penalty on the parameters counts once.

    block: the repeated layer.
    steps: number of repetitions.
    timing: module whose `timing(pos, step)` is added to the input of each step; None adds nothing.

    Errors: ValueError for less than one step. Source: Dehghani et al., 2018, arXiv:1807.03819, section 2.1 (with
    `PostNorm` blocks and `Timing`).
    """

    def __init__(self, block: Layer, steps: int, timing: nn.Module | None = None):
        super().__init__()
        self.block = check_part("block", block, Layer, "a layer, such as PostNorm(Attention(...), MLP(d))")
        self.d, self.steps, self.timing = block.d, check_at_least("steps", steps, 1), timing
        self.wants, self.sends = wants_and_sends([block] * steps, rising=True)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return tuple(self.block.start(batch, length, dtype=dtype, device=device) for _ in range(self.steps))

    def add_timing(self, x: Float[Tensor, "B T D"], step: int, places: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return x, the input of a step, plus the timing of this step at the positions `places`."""
        return x if self.timing is None else x + self.timing(places, step)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        collected = Collected(ctx.replace(remember=False) if ctx.remember else ctx, state, rising=True)
        for n in range(self.steps):
            z = self.add_timing(x, n, ctx.position_ids)
            if ctx.remember and n == self.steps - 1:
                collected.remember(n, self.block, z)
            else:
                x = collected.call(n, self.block, z, counts=ctx.pos >= 0).y
        return collected.make_out(x)


def _example(steps: int, timed: bool) -> Universal:
    block = kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16))
    return Universal(block, steps, kf.Timing(16) if timed else None)


REPEATED = {"block": "every step applies the same block"}
EXAMPLES = (Example(lambda: _example(3, False), shares=REPEATED), Example(lambda: _example(2, True), shares=REPEATED))
