"""GRUGate: a gated recurrent unit over the depth, the join of GTrXL."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.nn.blocks.gate import BiasedGate


class GRUGate(BiasedGate):
    """A GTrXL join that gates the residual sum like a gated recurrent unit (GRU) over the depth.

    r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b_g), h = tanh(W_g y + U_g (r * x))

    g(x, y) = (1 - z) * x + z * h

    Here x is the residual stream and y the output of the sublayer. Choose this gate for reinforcement learning with
    memory; a plain Transformer-XL hardly trains there. It had the highest score of the paper's gates (117.6 on
    DMLab-30, where a human has 100). The gate costs six matrices of d x d, so it doubles the weights of a block of
    attention and a feed-forward layer of 4 d. At the start, with b_g = 2, about 0.88 of x passes.

    d: width of the residual stream.
    b_g: initial value of the d biases. With 0 the gate starts half open, the paper's ablation.
    dropout: probability of dropping a feature of y in training.

    Errors: ValueError for a b_g below 0. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.2.

    Differences: `nn.GRUCell` multiplies x by z instead of 1 - z, applies the reset r after U_g, and has biases
    everywhere.
    """

    def __init__(self, d: int, b_g: float = 2.0, dropout: float = 0.0):
        super().__init__(d, b_g, dropout)
        self.w = nn.Linear(d, 3 * d, bias=False)  # W_r, W_z and W_g, one below the other
        self.u = nn.Linear(d, 2 * d, bias=False)  # U_r and U_z
        self.u_g = nn.Linear(d, d, bias=False)

    def gate(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        (r_y, z_y, h_y), (r_x, z_x) = self.w(y).chunk(3, -1), self.u(x).chunk(2, -1)
        z = (z_y + z_x - self.b_g).sigmoid()
        h = (h_y + self.u_g((r_y + r_x).sigmoid() * x)).tanh()
        return (1 - z) * x + z * h


EXAMPLES = (lambda: GRUGate(16), lambda: GRUGate(16, b_g=0))
