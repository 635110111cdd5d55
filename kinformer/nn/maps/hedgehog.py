"""Hedgehog: learned positive features for each head, trained to imitate softmax attention."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_multiple
from kinformer.core.feature_map import FeatureMap


class Hedgehog(FeatureMap):
    """Feature map of linear attention with learned matrices, to imitate trained softmax attention.

    phi(q) = softmax([W_h q, -W_h q]) exp(level_h) and phi(k) = softmax([U_g k, -U_g k]), each plus 1e-12

    Choose it to convert a trained softmax model by attention transfer (`kf.convert(model, "hedgehog")`). A softmax over
    features makes them spiky: a query gives large weights to few keys, and larger products q.k give larger weights.
    Without training, choose `FAVOR`, which estimates exp(q.k / sqrt(K)) itself. The product q.k is not divided by
    sqrt(K), because the matrices learn the temperature.

    Each query head h has a matrix W and a level, and each key head g has a matrix U. The level is the log of a factor
    of all weights. It cancels in linear attention by itself, and weighs the far part of `Merged` against the near part.
    The matrices begin as the identity. Further rows begin as random rotations of it.

    heads: number of query heads.
    k_dim: width of a head, K.
    key_heads: number of key heads, which divides `heads`; `heads` if None.
    directions: number of rows of each matrix, n, which gives 2 n features; `k_dim` if None.
    seed: seed of the random rotations.

    Errors: ValueError if the number or the width of the heads differs. Source: Zhang et al., 2024, arXiv:2402.04347,
    section 4.1; the softmax over features, and a factor for each head: Zhang et al., 2024, arXiv:2410.10254.

    Differences: the softmax runs over all 2 n features. LoLCATs takes one over W_h q and one over -W_h q. It weighs the
    near part of each query relative to its largest score there, by a learned factor from 0 to 1. Here the far part has
    one learned factor of any size for all queries of a head, so both parts are one softmax. LoLCATs has a key matrix
    for each query head of grouped keys.
    """

    by_vector = True
    eps = 1e-12  # a floor of features, so that no sum of products underflows

    def __init__(
        self, heads: int, k_dim: int, *, key_heads: int | None = None, directions: int | None = None, seed: int = 0
    ):
        super().__init__()
        heads, k_dim = check_at_least("heads", heads, 1), check_at_least("k_dim", k_dim, 1)
        groups = heads if key_heads is None else check_at_least("key_heads", key_heads, 1)
        check_multiple("heads", heads, "key_heads", groups)
        directions = k_dim if directions is None else check_at_least("directions", directions, 1)
        matrix = _rotations(directions, k_dim, seed)
        self.query_matrix = nn.Parameter(matrix.expand(heads, -1, -1).clone())  # [H n K]
        self.key_matrix = nn.Parameter(matrix.expand(groups, -1, -1).clone())  # [G n K]
        self.level = nn.Parameter(torch.zeros(heads))

    def features(self, k_dim: int) -> int:
        return 2 * self.key_matrix.shape[1]

    def forward(
        self, x: Float[Tensor, "B G T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B G T F"], Float[Tensor, "B G T"]]:
        groups, k_dim = self.key_matrix.shape[0], self.key_matrix.shape[2]
        shared = len(self.level) // groups if is_query else 1
        if (x.shape[1], x.shape[3]) != (groups, k_dim) or x.shape[2] % shared:
            raise ValueError(
                f"Hedgehog was made for {len(self.level)} heads and {groups} key heads of width {k_dim}, but got "
                f"vectors of shape {list(x.shape)}. Create it with the heads of the layer"
            )
        by_head = x.unflatten(2, (shared, -1))  # [B G R T K]: the query heads of a group follow one another
        matrix = (self.query_matrix if is_query else self.key_matrix).to(x.dtype).unflatten(0, (groups, shared))
        u = by_head @ matrix.mT  # [B G R T n]
        phi = torch.cat([u, -u], -1).softmax(-1) + self.eps
        if not is_query:
            return phi.flatten(2, 3), x.new_zeros(x.shape[:3])
        level = self.level.to(x.dtype).view(groups, shared, 1)
        return phi.flatten(2, 3), level.expand(len(x), -1, -1, by_head.shape[3]).flatten(2, 3)


def _rotations(directions: int, k_dim: int, seed: int) -> Float[Tensor, "n K"]:
    """Return the identity, followed by random rotations of it, cut to this number of rows."""
    draw = torch.Generator().manual_seed(seed)
    blocks = [torch.eye(k_dim)]
    while len(blocks) * k_dim < directions:
        blocks.append(torch.linalg.qr(torch.randn(k_dim, k_dim, generator=draw)).Q)
    return torch.cat(blocks)[:directions]


EXAMPLES = (lambda: Hedgehog(2, 8), lambda: Hedgehog(2, 8, directions=12))
