"""The eight tokens that every worked example and every figure uses."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism

TOKENS = ("the", "cat", "sat", "and", "the", "dog", "sat", "too")
LABELS = tuple(f"{place} {token}" for place, token in enumerate(TOKENS))  # a token with its position
# words of similar meaning have similar angles: cat and dog, the two "the", the two "sat"
ANGLES = (10, 60, 200, 340, 20, 40, 190, 320)


def token_vectors(length: float = 1.0) -> Float[Tensor, "8 2"]:
    """Return a vector of two numbers for each of the eight tokens; its direction is the token's angle.

    length: length of each vector.
    """
    return torch.tensor([[length * math.cos(math.radians(a)), length * math.sin(math.radians(a))] for a in ANGLES])


def token_positions() -> Float[Tensor, "8 1"]:
    """Return the position of each token as its value, so that an output is a mean of positions."""
    return torch.arange(8.0)[:, None]


def attention_weights(
    mechanism: Mechanism, q: Float[Tensor, "T K"] | None = None, k: Float[Tensor, "T K"] | None = None
) -> Float[Tensor, "T T"]:
    """Return the attention weights of the eight tokens under a mechanism of one head: one row per query.

    The value of token j is a vector with a 1 at place j, so the output of a query is its row of weights.

    mechanism: an attention mechanism.
    q: the queries; the vectors of the eight tokens if None.
    k: the keys; the queries if None.
    """
    q = token_vectors() if q is None else q
    k = q if k is None else k
    ctx = Context.of_sequence(torch.zeros(1, len(q), 1))
    keys = Keys(k[None, None], torch.eye(len(k))[None, None], ctx.pos[:, None])
    keys = keys._replace(tags=mechanism.tags(keys))
    with torch.no_grad():
        read = mechanism.eval()(Queries(q[None, None], ctx.pos[:, None]), keys, None, ctx)
    return read.y.y[0, 0]
