"""TunedLens: a learned map from a hidden state at an exit to the state that the model's head expects."""

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_part
from kinformer.core.keyword_hints import KeywordHints
from kinformer.nn.exits.linear_shortcut import LinearShortcut


class TunedLens(nn.Module, KeywordHints):
    """A module before the head at an exit: the model's last norm, then a learned affine map.

    z = norm(h), y = z + A z + b

    Choose it in `heads` of an `EarlyExit` whose layers stay as they were trained. A head that was trained on the last
    layer reads the states of lower layers badly. With A = 0 and b = 0, its start, it is the norm: the logit lens. It
    costs d^2 products per token, or 2 d rank.

    d: width of a hidden state.
    norm: the model's last norm, which all exits may share; nn.Identity() without one.
    rank: rank of A; None for a full matrix.

    Source: Belrose et al., 2023, arXiv:2303.08112, section 3.

    Differences: the paper's map comes before the norm. After the norm, all tokens have states of the same size, so that
    least squares are a good start.
    """

    def __init__(self, d: int, norm: nn.Module, *, rank: int | None = None):
        super().__init__()
        self.norm = check_part("norm", norm, nn.Module, "a norm, such as LayerNorm(d)")
        self.translator = LinearShortcut(d, rank=rank)

    def forward(self, h: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return self.translator(self.norm(h))
