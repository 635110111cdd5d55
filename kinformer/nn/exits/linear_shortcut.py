"""LinearShortcut: a learned affine map that stands for one or more layers."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least
from kinformer.core.keyword_hints import KeywordHints


class LinearShortcut(nn.Module, KeywordHints):
    """A learned affine map in place of a layer, for tokens that skip it.

    y = x + A x + b

    Choose it as a shortcut of an `EarlyExit` whose layers stay as they were trained. The layers above then read a state
    that is closer to their usual inputs than a copy. It starts with A = 0 and b = 0, which copies the state. It
    costs d^2 products per token, or 2 d rank.

    d: width of a hidden state.
    rank: rank of A; None for a full matrix.

    Source: Din et al., 2023, arXiv:2303.09435.
    """

    def __init__(self, d: int, *, rank: int | None = None):
        super().__init__()
        check_at_least("d", d, 1)
        self.low = None if rank is None else nn.Linear(d, min(check_at_least("rank", rank, 1), d), bias=False)
        self.map = nn.Linear(d if self.low is None else self.low.out_features, d)
        nn.init.zeros_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    def forward(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return x + self.map(x if self.low is None else self.low(x))

    @property
    def own(self) -> list[nn.Parameter]:
        """The parameters of the map."""
        return [*([] if self.low is None else self.low.parameters()), *self.map.parameters()]

    @torch.no_grad()
    def set_map(
        self, matrix: Float[Tensor, "D D"], bias: Float[Tensor, " D"], metric: Float[Tensor, "D D"] | None = None
    ) -> None:
        """Set A and b; a matrix of too large a rank is replaced by the nearest one in a metric.

        matrix: A.
        bias: b.
        metric: a matrix L; the size of a change x is |L x|. None for |x|.
        """
        if self.low is None:
            self.map.weight.copy_(matrix)
        else:
            u, s, v = torch.linalg.svd(matrix if metric is None else metric @ matrix, full_matrices=False)
            rank = len(self.low.weight)
            up = u[:, :rank] * s[:rank]
            self.low.weight.copy_(v[:rank])
            self.map.weight.copy_(up if metric is None else torch.linalg.solve(metric, up))
        self.map.bias.copy_(bias)
