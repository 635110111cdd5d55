"""Labels of queries and keys (integers such as the segment of a token), for biases that compare them."""

from jaxtyping import Int
from torch import Tensor

from kinformer.core.request import Request


def labels_of(piece: Request, name: str, part: str) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B S"]] | None:
    """Return the label called `name` of each query and of each key, or None if neither has it.

    A label is an integer of each token, such as its segment, from `ctx.labels`.

    piece: queries and keys that are computed together, a part of an attention call.
    name: name of the label.
    part: name of the bias, for error messages.

    Errors: ValueError if only the queries or only the keys have the label, or if a token has no number.
    """
    of_queries, of_keys = piece.queries.labels.get(name), piece.keys.labels.get(name)
    if of_queries is None and of_keys is None:
        return None
    if of_queries is None or of_keys is None:
        side = "keys" if of_queries is None else "queries"
        raise ValueError(
            f"{part} compares the label {name!r} of queries and keys, but only the {side} have one. Pass "
            "Context(labels=...) in every call of a sequence, and drop this bias if keys come from a source or "
            "a memory"
        )
    tokens = piece.queries.q.shape[2], piece.keys.k.shape[2]
    if (of_queries.shape[1], of_keys.shape[1]) != tokens:
        raise ValueError(
            f"{part} got the label {name!r} of {of_queries.shape[1]} queries and {of_keys.shape[1]} keys for "
            f"{tokens[0]} queries and {tokens[1]} keys. Pass one number per token"
        )
    return of_queries, of_keys
