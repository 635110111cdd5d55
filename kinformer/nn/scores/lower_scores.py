"""Scores of the block below, checked to be for the pairs of query and key that are now computed."""

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.layer import PairFactors, PerPair
from kinformer.core.request import Request


def of_pairs(name: str, request: Request) -> Float[Tensor, "B H T S"] | None:
    """Return the scores that the block below passed on as `name`, or None if it passed on none.

    The positions of these scores and of the request must be equal. They are compared once per forward pass, and not at
    all if they are the same objects.

    name: name in `request.below`.
    request: queries and keys for which scores are needed.

    Errors: ValueError if the block below passed on scores of other pairs, or another type than `PerPair`.
    """
    sent = request.below.get(name)
    if sent is None:
        return None
    if not isinstance(sent, PerPair):
        raise ValueError(f"{name!r} from the block below must be PerPair scores: got {type(sent).__name__}")
    check_pairs(name, sent, tuple(sent.scores.shape), request)
    return sent.scores


def check_pairs(name: str, sent: PerPair | PairFactors, shape: tuple[int, ...], request: Request) -> None:
    """Check that scores or weights from the block below are for the pairs of query and key of a request.

    name: name of the scores or weights, for the error message.
    sent: scores or weights with their positions.
    shape: shape [B, H, T, S] of their matrix.
    request: queries and keys for which they are needed.

    Errors: ValueError if the shape or the positions differ.
    """
    own_pos = request.queries.pos, request.keys.pos
    expected = (*request.queries.q.shape[:3], request.keys.v.shape[2])
    same = shape == expected
    if same and not torch.compiler.is_compiling():  # a compiled graph cannot compare values or recognise objects
        pairs = list(zip((sent.q_pos, sent.k_pos), own_pos, strict=True))
        same = all(
            a is b or request.memo.get(lambda a=a, b=b: torch.equal(a, b), "equal", a, b)  # type: ignore[misc]
            for a, b in pairs
        )
    if not same:
        heads, queries, keys = shape[1:]
        raise ValueError(
            f"the {name} from below ({heads} heads x {queries} queries x {keys} keys) belong to other pairs than "
            f"this layer's {expected[1]} x {expected[2]} x {expected[3]} pairs. Give layers that share {name} "
            "the same pattern and the same kind of state"
        )
