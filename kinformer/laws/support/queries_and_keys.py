"""Queries and keys for a mechanism by itself, without a layer around it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.mechanism import Mechanism
from kinformer.laws.support.input_batch import LABEL, equal_keys

ROWS, WIDTH, TOKENS = 2, 8, 9


def draw_queries_and_keys(
    mechanism: Mechanism, *, heads: int = 2, groups: int = 2, tokens: int = TOKENS, source: int = 0, seed: int = 0
) -> tuple[Queries, Keys]:
    """Draw random queries, and keys of the same row or of a source, in float64 and with gradients.

    There are two rows. In the second, some keys are equal but have unequal values.

    mechanism: the mechanism to call with them, which may need further projections of queries and keys.
    heads, groups: number of query heads, and number of key heads.
    tokens: number of queries.
    source: number of keys of a source; 0 for self-attention, with the keys at the positions of the queries.
    seed: seed of the random numbers.
    """
    g = torch.Generator().manual_seed(seed)
    cross, keys = source > 0, source or tokens

    def numbers(*shape: int) -> Tensor:
        return torch.randn(ROWS, *shape, generator=g, dtype=torch.float64, requires_grad=True)

    def draw_extras(extras: Mapping[str, ExtraProjection], heads: int, count: int) -> dict[str, Tensor]:
        return {name: numbers(heads, count, side.width) for name, side in extras.items()}

    sizes = HeadSizes(heads, groups, groups, WIDTH, WIDTH, cross)
    pos, k_pos = (torch.arange(n).expand(ROWS, 1, n) for n in (tokens, keys))
    labels, k_labels = ({"segment": p[:, 0] // LABEL % 2} for p in (pos, k_pos))
    queries = Queries(
        numbers(heads, tokens, WIDTH), pos, draw_extras(mechanism.query_extras(sizes), heads, tokens), labels
    )
    k, v = equal_keys(numbers(groups, keys, WIDTH), seed), numbers(groups, keys, WIDTH)
    extras = draw_extras(mechanism.key_extras(sizes), groups, keys)
    return queries, Keys(k, v, pos if not cross else k_pos, extras, {} if cross else k_labels, own=not cross)
