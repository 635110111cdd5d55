"""Sparse: a layer whose hidden numbers are to be few, and the penalty that says so."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.loss import Penalty


class Sparse(Layer):
    """A feed-forward layer that reports the mean size of its hidden numbers: `penalties={"active": 0.01}`."""

    def __init__(self, d: int, hidden: int):
        super().__init__()
        self.d, self.up, self.down = d, nn.Linear(d, hidden), nn.Linear(hidden, d)

    def penalties(self) -> dict[str, Penalty]:
        return {"active": Penalty(tuple(self.up.parameters()), reaches_x=True)}

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        hidden = self.up(x).relu()
        return Out(self.down(hidden), state, {"active": hidden.mean(-1)})


EXAMPLES = (lambda: Sparse(16, 24),)
