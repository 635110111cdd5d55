"""of_distances: an implementation of `by_distance` for biases that depend only on head and distance."""

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.bias import Bias, Distances
from kinformer.core.request import Request
from kinformer.core.score_matrix import scores


def of_distances(bias: Bias, request: Request, far: Int[Tensor, " N"]) -> Distances:
    """Return `by_distance` of a bias that adds a function of the head and the distance, and nothing more.

    The function calls `bind` with zero queries at the given distances from one key at position 0.

    bias: bias to evaluate.
    request: whole read that the bias belongs to.
    far: distances i - j, in positions.
    """
    q, k = request.queries.q, request.keys.k[:1, :, :1]
    wide = torch.promote_types(q.dtype, torch.float32)  # bfloat16 cannot tell distance 256 from 257
    nothing = q.new_zeros(1, q.shape[1], len(far), q.shape[3], dtype=wide)
    queries = request.queries._replace(q=nothing, pos=far[None, None])
    keys = request.keys._replace(k=torch.zeros_like(k, dtype=wide), pos=far.new_zeros(1, 1, 1))
    return Distances(q, scores(request.replace(queries=queries, keys=keys, bias=bias))[0, :, :, 0])
