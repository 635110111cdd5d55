"""Nystrom: attention through landmarks and a pseudo-inverse, or the inverse of A + I."""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_at_least, check_option, check_optional_part, check_scale
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, number_of_groups
from kinformer.core.layer import Context
from kinformer.nn.mechanisms.landmarks import Segments, ThroughLandmarks
from kinformer.nn.mechanisms.value_conv import ValueConv

Norms = Literal["head", "batch"]
ACROSS_ROWS = "the pseudo-inverse starts from the largest norm of all rows of the batch"


class Nystrom(ThroughLandmarks):
    """Approximation of softmax attention by the Nystroem method, with a cost linear in the row.

        y = F A^+ (B V) + skip(V)
        F = softmax(Q K~^T / sqrt(d)),  A = softmax(Q~ K~^T / sqrt(d)),  B = softmax(Q~ K^T / sqrt(d))

    Choose it for encoders of long rows that should stay close to softmax without extra parameters. Unlike Linformer it
    takes rows of any length, and unlike FAVOR+ it is not random. The landmarks Q~ and K~ are the means of `landmarks`
    segments of the row, of nearly equal size and without padding.

    The paper's iteration computes the pseudo-inverse A^+: Z <- Z/4 (13 I - A Z (15 I - A Z (7 I - A Z))). It starts
    from Z = A^T / (|A|_1 |A|_inf) for each row and head. If landmarks are so similar that A is nearly singular, six
    iterations leave small singular values out. Many more iterations amplify rounding errors; in float32, twenty
    iterations amplify them a hundred times. A sequence of at most `landmarks` keys is read exactly; the authors' code
    does so with as many landmarks as tokens.

    The cost per row and head is (T + S) * landmarks scores and 4 * iterations products of landmarks^3. The weights of
    tokens may be negative and their sum is only nearly 1, so there is no lse.

    landmarks: number of landmarks of a row; published models use 64.
    iterations: number of iterations of the pseudo-inverse.
    norms: norms in the initial Z. With "head", as in the paper, these are the norms of each row and head. With
        "batch", as in the authors' code, these are the largest norms of all, so the result for one row depends on the
        other rows.
    skip: `ValueConv(heads, kernel)`, which the paper adds; none by default.
    scale: factor of the dot product; 1/sqrt(k_dim) by default. The paper multiplies queries and keys by its square
        root.

    Errors: NoState (no decoding state exists) from `start`; ValueError without `ctx.run`, with `ctx.only` or
    `ctx.also`, and for cross-attention with a skip, which needs the queries' own values.

    Source: Xiong et al., 2021, arXiv:2102.03902, section 3.
    """

    def __init__(
        self,
        landmarks: int = 64,
        *,
        iterations: int = 6,
        norms: Norms = "head",
        skip: ValueConv | None = None,
        scale: float | None = None,
    ):
        super().__init__()
        self.landmarks, self.iterations = (
            check_at_least("landmarks", landmarks, 1),
            check_at_least("iterations", iterations, 0),
        )
        self.norms, self.scale = check_option("norms", norms, Norms), check_scale(scale)
        self.skip = check_optional_part(
            "skip", skip, ValueConv, "a convolution of the values, such as ValueConv(heads, 33)"
        )
        self.across_rows = ACROSS_ROWS if self.norms == "batch" else ""

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        if self.skip is not None:  # a layer calls this when it is built, so the error is raised there
            self._check_heads(sizes.heads, self.skip)
            if sizes.cross:
                raise ValueError(
                    "the skip of Nystrom convolves the queries' own values, but cross-attention reads the values of "
                    "a source. Drop the skip"
                )
        return {}

    def segments(self, pos: Int[Tensor, "B 1 S"], ctx: Context) -> Segments:
        return ctx.memo.get(
            lambda: Segments.split_evenly(pos[:, 0] >= 0, self.landmarks, ctx.full), "few", pos, self.landmarks
        )

    def approximate_inverse(self, a: Float[Tensor, "B H M N"]) -> Float[Tensor, "B H N M"]:
        return pseudo_inverse(a, self.iterations, self.norms)

    def read(self, queries: Queries, keys: Keys, ctx: Context) -> Float[Tensor, "B H T V"]:
        if min(queries.q.shape[2], keys.k.shape[2] - self.landmarks) > 0:
            y = super().read(queries, keys, ctx)
        else:
            y = self.attend(queries.q, queries.pos, keys.k, keys.v, keys.pos, ctx)
        if self.skip is None or not y.shape[2]:
            return y
        self._check_heads(y.shape[1], self.skip)
        return y + self.skip(keys.v, keys.pos, ctx.full)

    def correct_values(
        self, landmark_values: Float[Tensor, "B H N V"], keys: Keys, key_segments: Segments
    ) -> Float[Tensor, "B H N V"]:
        """Return the values of the landmarks, which are exact if every token is a landmark.

        F then holds the weights of full softmax attention.
        """
        alone = (keys.pos >= 0).sum(2)[..., None, None] <= self.landmarks
        values = key_segments.means(at_least_float32(keys.v))
        return torch.where(
            alone,
            values.repeat_interleave(number_of_groups(landmark_values.shape[1], values.shape[1]), 1),
            landmark_values,
        )

    def _check_heads(self, heads: int, skip: ValueConv) -> None:
        if heads != skip.heads:
            raise ValueError(f"the skip was made for {skip.heads} heads, but got {heads}. Pass ValueConv({heads}, ...)")


class NystromIdentity(ThroughLandmarks):
    """Compressed self-attention of low rank with landmarks that are means of consecutive tokens.

    y = F (A + I)^-1 (B V)

    F, A and B are as in `Nystrom`. Choose it over `Nystrom` for a direct solution instead of an iteration: A + I is
    well conditioned even if A is not. It does not approximate softmax attention. If every token is a landmark, its
    weights are W (W + I)^-1 W for softmax weights W. They are about half of W and sum to 1/2. Landmarks are means of
    `size` consecutive tokens; the last one may have fewer.

    The cost per row and head is T * S / size scores twice, and a linear system of (S / size)^3.

    size: number of tokens of a landmark, and its stride.
    scale: factor of the dot product; 1/sqrt(k_dim) by default.

    Errors: NoState (no decoding state exists) from `start`; ValueError without `ctx.run`, with `ctx.only` or
    `ctx.also`, and for cross-attention, in which A is not square.

    Source: Chen et al., 2020, doi:10.24963/ijcai.2020/285, Compressed Self-Attention for Deep Metric Learning with
    Low-Rank Approximation, IJCAI.
    """

    def __init__(self, size: int = 8, *, scale: float | None = None):
        super().__init__()
        self.size, self.scale = check_at_least("size", size, 1), check_scale(scale)

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        if sizes.cross:
            raise ValueError(
                "NystromIdentity cannot be used in cross-attention: it needs as many landmarks of queries as of "
                "keys. Use Nystrom"
            )
        return {}

    def segments(self, pos: Int[Tensor, "B 1 S"], ctx: Context) -> Segments:
        return ctx.memo.get(
            lambda: Segments.split_by_size(pos[:, 0] >= 0, self.size, ctx.full), "long segments", pos, self.size
        )

    def approximate_inverse(self, a: Float[Tensor, "B H M M"]) -> Float[Tensor, "B H M M"]:
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        # extreme scores can make A a permutation, so that A + I is singular; the eps keeps it invertible
        # QR, because LU factors of a batch of 150 rows and more never return on 2 threads of a CPU (torch 2.13, oneMKL)
        q, r = torch.linalg.qr(a + eye * (1 + 8 * torch.finfo(a.dtype).eps))
        return torch.linalg.solve_triangular(r, q.mT, upper=True)


def pseudo_inverse(a: Float[Tensor, "B H M N"], iterations: int = 6, norms: Norms = "head") -> Float[Tensor, "B H N M"]:
    """Return an approximate Moore-Penrose inverse of nonnegative matrices by the iteration of `Nystrom`.

    a: matrices, [B, H, M, N].
    iterations: number of iterations.
    norms: "head" or "batch", as in `Nystrom`.
    """
    columns, lines = (a.abs().sum(dim, keepdim=True) for dim in (-2, -1))
    if norms == "head":
        level = columns.amax((-2, -1), keepdim=True) * lines.amax((-2, -1), keepdim=True)
    else:
        level = columns.max() * lines.max()
    z = a.mT / level.clamp_min(torch.finfo(a.dtype).tiny)
    eye = torch.eye(a.shape[-2], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z


APART = {"merge": "landmarks are means of the whole row, and the weights can be negative, so they have no lse"}


def _examples() -> tuple[Example, ...]:
    mates = "the pseudo-inverse starts from the largest norm of the whole batch, as in the authors' code"
    makes = (
        lambda: Nystrom(4),
        lambda: Nystrom(3, skip=ValueConv(2, 3), iterations=4, scale=0.5),
        lambda: NystromIdentity(3),
    )
    shared = Example(lambda: Nystrom(4, norms="batch"), breaks={**APART, "batch_mates": mates})
    return (*(Example(make, breaks=APART) for make in makes), shared)


EXAMPLES = _examples()
