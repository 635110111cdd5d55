"""head_groups: groups of heads that attend to the same tokens."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST = 0.1  # largest difference of two heads in a group, as `head_groups` defines it


class HeadGroup(NamedTuple):
    """Heads with nearly the same attention map.

    heads: the name of the layer and the number of each head, from the bottom.
    difference: largest difference between two heads of the group, 0 to 1.
    """

    heads: list[tuple[str, int]]
    difference: float


def head_groups(
    maps: Mapping[str, Float[Tensor, "_ C C"]], count: int, cell: int = 1, most: float = MOST
) -> list[HeadGroup]:
    """Return the groups of two heads or more that attend to the same tokens, the largest group first.

    The difference of two heads a and b is the mean over queries of the share of weight that they place differently:

    d(a, b) = 1/T sum_i 1/2 sum_j |a_ij - b_ij|

    It is 0 for equal maps, and 1 for heads that share no key. Every two heads of a group differ by at most `most`. The
    nearest groups are merged first (complete linkage). With blocks of tokens, i and j are blocks, so differences inside
    of a block do not count. A head that reads no key is in no group.

    maps: attention maps of equal size by the name of the layer.
    count: number of tokens T.
    cell: number of tokens of a block.
    most: largest difference in a group.
    """
    every = [(layer, head) for layer, attention in maps.items() for head in range(len(attention))]
    names = [(layer, head) for layer, head in every if bool(maps[layer][head].any())]
    if len(names) < 2:
        return []
    side = next(iter(maps.values())).shape[1]
    queries = torch.full((side,), float(cell))
    queries[-1] = count - (side - 1) * cell  # the last block may be shorter
    share = (queries / (2 * count)).double()[:, None]
    rows = torch.stack([maps[layer][head] for layer, head in names]).double() * share
    differences = torch.cdist(rows.flatten(1), rows.flatten(1), p=1)
    groups = [HeadGroup([names[n] for n in group], diameter) for group, diameter in _merge(differences, most)]
    return sorted(groups, key=lambda group: -len(group.heads))


def _merge(differences: Float[Tensor, "N N"], most: float) -> list[tuple[list[int], float]]:
    """Merge the two nearest groups until all are further apart than `most`; return groups of two members or more."""
    apart = differences.clone().fill_diagonal_(torch.inf)
    groups = {n: [n] for n in range(len(apart))}
    while float(nearest := apart.min()) <= most:
        first, second = sorted(_place(apart, nearest).tolist())
        groups[first] += groups.pop(second)
        farther = torch.maximum(apart[first], apart[second])
        apart[first], apart[:, first] = farther, farther
        apart[second], apart[:, second] = torch.inf, torch.inf
        apart[first, first] = torch.inf
    members = [sorted(group) for group in groups.values() if len(group) > 1]
    return [(group, float(differences[group][:, group].max())) for group in members]


def _place(values: Float[Tensor, "N N"], value: Float[Tensor, ""]) -> Int[Tensor, "2"]:
    """Return row and column of the first entry with a value."""
    return (values == value).nonzero()[0]
