"""PublishedNystrom: Nystrom attention as in its authors' code, with padding in the landmarks."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.example import Example
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.mechanisms.landmarks import Segments
from kinformer.nn.mechanisms.nystrom import APART, Norms, Nystrom
from kinformer.nn.mechanisms.value_conv import ValueConv


class PublishedNystrom(Nystrom):
    """`Nystrom` with landmarks as in the authors' code: means in which padding counts as zeros.

    Choose it only for weights that the authors' code trained on padded rows; choose `Nystrom` otherwise. A landmark
    that contains only padding stays among the others and weighs all keys equally. For rows without padding, only the
    default of `norms` differs from `Nystrom`.

    landmarks, iterations, skip, scale: as in `Nystrom`.
    norms: "batch" by default, as in the authors' code; "head" is the option "exact" of that code.

    Errors: as in `Nystrom`.

    Source: Xiong et al., 2021, arXiv:2102.03902, and its published code.

    Differences: the published code requires rows that the landmarks divide; here other rows are cut as evenly as
    possible.
    """

    def __init__(
        self,
        landmarks: int = 64,
        *,
        iterations: int = 6,
        norms: Norms = "batch",
        skip: ValueConv | None = None,
        scale: float | None = None,
    ):
        super().__init__(landmarks, iterations=iterations, norms=norms, skip=skip, scale=scale)

    def segments(self, pos: Int[Tensor, "B 1 S"], ctx: Context) -> Segments:
        real = torch.ones_like(pos[:, 0], dtype=torch.bool)
        return ctx.memo.get(lambda: Segments.split_evenly(real, self.landmarks, True), "columns", pos, self.landmarks)

    def read(self, queries: Queries, keys: Keys, ctx: Context) -> Float[Tensor, "B H T V"]:
        q, k = (x.masked_fill((pos < 0)[..., None], 0.0) for x, pos in ((queries.q, queries.pos), (keys.k, keys.pos)))
        return super().read(queries._replace(q=q), keys._replace(k=k), ctx)

    def correct_values(
        self, landmark_values: Float[Tensor, "B H N V"], keys: Keys, key_segments: Segments
    ) -> Float[Tensor, "B H N V"]:
        return landmark_values  # `read` handles short rows exactly before this call


_BROKEN = {
    **APART,
    "padding": "padding columns are included in the means of the landmarks, as in the authors' code",
    "batch_mates": "the pseudo-inverse starts from the largest norm of the whole batch, as in the authors' code",
}
EXAMPLES = (Example(lambda: PublishedNystrom(4), breaks=_BROKEN),)
