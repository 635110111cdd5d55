"""TunedLens: a learned map from a hidden state at an exit to the state that the model's head expects."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_part
from kinformer.core.keyword_hints import KeywordHints


class TunedLens(nn.Module, KeywordHints):
    """An exit's module between a hidden state and the model's head: the last norm, then a learned affine map.

    z = norm(h), y = z + A z + b

    Choose it in `heads` of an `EarlyExit` whose layers stay as they were trained, because a head that was trained on
    the last layer reads the states of lower layers badly. It starts as the norm alone (A = 0, b = 0), which is the
    logit lens. It costs d^2 products per token, or 2 d rank.

    d: width of a hidden state.
    norm: the model's last norm, which all exits may share; nn.Identity() without one.
    rank: rank of A; None for a full matrix.

    Source: Belrose et al., 2023, arXiv:2303.08112, section 3.

    Differences: the paper's map comes before the norm. After the norm, all tokens have states of the same size, so that
    least squares are a good start.
    """

    def __init__(self, d: int, norm: nn.Module, *, rank: int | None = None):
        super().__init__()
        check_at_least("d", d, 1)
        self.norm = check_part("norm", norm, nn.Module, "a norm, such as LayerNorm(d)")
        self.low = None if rank is None else nn.Linear(d, min(check_at_least("rank", rank, 1), d), bias=False)
        self.map = nn.Linear(d if self.low is None else self.low.out_features, d)
        nn.init.zeros_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    def forward(self, h: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return self.translate(self.norm(h))

    def translate(self, z: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        """Return z + A z + b of a state z that the norm has read.

        z: the state after the norm.
        """
        return z + self.map(z if self.low is None else self.low(z))

    @property
    def own(self) -> list[nn.Parameter]:
        """The parameters of the map, without those of the norm."""
        return [*([] if self.low is None else self.low.parameters()), *self.map.parameters()]

    @torch.no_grad()
    def set_map(self, matrix: Float[Tensor, "D D"], bias: Float[Tensor, " D"], metric: Float[Tensor, "D D"]) -> None:
        """Set A and b; a matrix of too large a rank is replaced by the nearest one in a metric.

        matrix: A, such that its product with a state is the change of the state.
        bias: b.
        metric: a matrix L; the size of a change x is |L x|.
        """
        if self.low is None:
            self.map.weight.copy_(matrix)
        else:
            u, s, v = torch.linalg.svd(metric @ matrix, full_matrices=False)
            rank = len(self.low.weight)
            self.low.weight.copy_(v[:rank])
            self.map.weight.copy_(torch.linalg.solve(metric, u[:, :rank] * s[:rank]))
        self.map.bias.copy_(bias)
