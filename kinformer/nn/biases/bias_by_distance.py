"""of_distances: the method `by_distance` of biases that depend only on head and distance."""

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.bias import Bias, Distances
from kinformer.core.request import Request
from kinformer.core.score_matrix import scores


def of_distances(bias: Bias, request: Request, far: Int[Tensor, " N"]) -> Distances:
    """Return what a bias adds to scores at each distance, for its method `by_distance`.

    The bias must add a function of the head and the distance only. The function scores zero queries, at the given
    distances from one key at position 0, with this bias.

    bias: bias to evaluate.
    request: queries and keys of the attention call for which the bias is needed.
    far: distances i - j, in positions.
    """
    q, k = request.queries.q, request.keys.k[:1, :, :1]
    wide = torch.promote_types(q.dtype, torch.float32)  # bfloat16 cannot tell distance 256 from 257
    nothing = q.new_zeros(1, q.shape[1], len(far), q.shape[3], dtype=wide)
    queries = request.queries._replace(q=nothing, pos=far[None, None])
    keys = request.keys._replace(k=torch.zeros_like(k, dtype=wide), pos=far.new_zeros(1, 1, 1))
    return Distances(q, scores(request.replace(queries=queries, keys=keys, bias=bias))[0, :, :, 0])
