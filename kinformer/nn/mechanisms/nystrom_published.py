"""PublishedNystrom: Nystrom attention as its authors' code computes it, padding among the landmarks."""

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
    """`Nystrom` with the landmarks of the authors' code: means over columns of a batch, padding counted in as zeros.

    Choose it to read with weights that were trained by that code on padded rows; over `Nystrom` for nothing else. A
    landmark of padding alone stands among the others, and its line of B is the mean of all values. Where rows have no
    padding it differs from `Nystrom` by `norms` alone.

    landmarks, iterations, skip, scale: as in `Nystrom`.
    norms: "batch" as in that code unless told otherwise, or each "head"'s own, the code's option "exact".

    Errors: those of `Nystrom`. Source: Xiong et al., 2021, arXiv:2102.03902, and its published code, which wants rows
    that the landmarks divide; others are cut as evenly as can be.
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
        return landmark_values  # rows so short are read exactly before it comes to this


_BROKEN = {
    **APART,
    "padding": "columns of padding are counted into the means of landmarks, as in the authors' code",
    "batch_mates": "the pseudo-inverse starts from the largest norm of the whole batch, as in the authors' code",
}
EXAMPLES = (Example(lambda: PublishedNystrom(4), breaks=_BROKEN),)
