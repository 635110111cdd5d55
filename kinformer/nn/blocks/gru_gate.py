"""GRUGate: a gated recurrent unit over the depth, the join of GTrXL."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.nn.blocks.gate import BiasedGate


class GRUGate(BiasedGate):
    """g(x, y) = (1 - z) * x + z * h: what a sublayer made of the stream replaces as much of it as z says.

    r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b_g), h = tanh(W_g y + U_g (r * x))

    Choose it for reinforcement learning with memory, where a plain Transformer-XL hardly trains: of the paper's gates
    it was the best (117.6 on DMLab-30, where a human has 100). It costs six matrices of d x d, so a block of attention
    and a feed-forward of 4 d doubles. It is no `nn.GRUCell`: that keeps x by z and not by 1 - z, resets behind U_g, and
    has biases everywhere. At the start with b_g = 2 about 0.88 of x passes.

    d: the width.
    b_g: where its d biases start. 0 is a gate half open, the paper's ablation.
    dropout: the share of y that training drops.

    Errors: ValueError for a b_g below 0. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.2.
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
