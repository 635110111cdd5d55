"""Reads within groups by sorting: queries and keys in the order of their groups, window by window."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.heads import Keys, Queries
from kinformer.core.memo import Memo
from kinformer.core.read import Read, merge
from kinformer.core.request import Request
from kinformer.execute import read
from kinformer.mechanisms.support.groups import LAST_RESORT, FirstFound, Grouped, folded, groups_of, own_column, picked

FEW = 1 << 16  # pairs of a row and head that are read densely without a look at the groups
GATHERED = 2  # what a pair costs whose key was gathered, in pairs of the dense form (measured: 0.7 to 1.7)


def read_groups(request: Request, groups: int) -> Read:
    """What a request reads whose score is `Grouped`, with `groups` groups in a round: by the cheaper way.

    Sorted, it waits once for its device, so a graph that is compiled reads densely.
    """
    pairs = request.queries.q.shape[2] * request.keys.k.shape[2]
    if torch.compiler.is_compiling() or pairs <= FEW:
        return read(request)
    rounds = sort_rounds(request, groups)
    if GATHERED * sum(one.pairs for one in rounds) > pairs:
        return read(request)
    return read_sorted(request, rounds)


class Round(NamedTuple):
    """One round with queries and keys sorted by group, the queries cut into C windows of m.

    A window reads the run of keys that holds the groups of its queries whole; the longest run has `width` keys.

    query: the column of each query of a window, -1 for none. place: where each query stands in the sorted order.
    key: columns of keys in sorted order. first, end: the run of each window in that order.
    """

    query: Int[Tensor, "B H C m"]
    place: Int[Tensor, "B H T"]
    key: Int[Tensor, "B H S"]
    first: Int[Tensor, "B H C"]
    end: Int[Tensor, "B H C"]
    width: int

    @property
    def pairs(self) -> int:
        """How many pairs of a row and head are looked at."""
        return self.query.shape[2] * self.query.shape[3] * self.width


def sort_rounds(request: Request, groups: int) -> list[Round]:
    """The rounds of a request whose score is `Grouped`; padding stands behind all groups."""
    score = request.score
    assert isinstance(score, Grouped) and request.bias is None
    queries, keys = (
        group.where((pos >= 0)[..., None], groups)
        for group, pos in zip(groups_of(request, score.tag), (request.queries.pos, request.keys.pos), strict=True)
    )
    rounds = [_sorted(q, k, groups) for q, k in zip(queries.unbind(-1), keys.unbind(-1), strict=True)]
    widths = torch.stack([(one.end - one.first).amax() for one in rounds]).tolist()
    return [one._replace(width=max(width, 1)) for one, width in zip(rounds, widths, strict=True)]


def read_sorted(request: Request, rounds: list[Round]) -> Read:
    """The same as the dense read: each round's windows folded into the batch, and each pair in its first round."""
    score = request.score
    assert isinstance(score, Grouped) and request.bias is None
    reads = [_read_round(request, one, FirstFound(score.tag, n, lonely=score.lonely)) for n, one in enumerate(rounds)]
    return merge(*reads, *([_lonely(request)] if score.lonely and request.keys.own else []))


def _sorted(query: Int[Tensor, "B H T"], key: Int[Tensor, "B H S"], groups: int) -> Round:
    size = max(16, -(-query.shape[2] // groups))  # of a window: about a group, so that it reads two or three
    order, keys = query.argsort(dim=-1, stable=True), key.argsort(dim=-1, stable=True)
    columns = F.pad(order, (0, -order.shape[-1] % size), value=-1).unflatten(-1, (-1, size))  # [B H C m]
    count = key.new_zeros(*key.shape[:2], groups + 2).scatter_add_(-1, key + 1, torch.ones_like(key))
    before = count.cumsum(-1)  # keys of smaller groups [B H groups + 2]
    inside = query.take_along_dim(order, -1)
    inside = F.pad(inside, (0, -order.shape[-1] % size), value=groups).unflatten(-1, (-1, size))
    first = before.take_along_dim(inside[..., 0], -1)
    last = inside.where(inside < groups, -1).amax(-1)  # the last group that is none of padding, -1 for none
    end = before.take_along_dim(last + 1, -1).maximum(first)
    return Round(columns, order.argsort(-1), keys, first, end, 0)


def _read_round(request: Request, one: Round, score: FirstFound) -> Read:
    queries, keys, tag = request.queries, request.keys, score.tag
    (batch, heads, count, size), length = one.query.shape, one.key.shape[2]
    column = one.query.transpose(1, 2)  # [B C H m]
    at = one.first[..., None] + torch.arange(one.width, device=one.first.device)  # [B H C W]
    real = (at < one.end[..., None]).transpose(1, 2)
    source = one.key.take_along_dim(at.clamp(max=length - 1).flatten(2), -1).view(at.shape).transpose(1, 2)
    q_tag, k_tag = groups_of(request, tag)
    asked = column.clamp_min(0)
    found = read(
        request.but(
            queries=Queries(
                picked(queries.q, asked),
                folded(queries.pos, asked, column >= 0),
                head=queries.head,
                tags={tag: picked(q_tag, asked)},
            ),
            keys=Keys(
                picked(keys.k, source),
                picked(keys.v, source),
                folded(keys.pos, source, real),
                tags={tag: picked(k_tag, source)},
                own=keys.own,
            ),
            score=score,
            lse=True,
            rows=torch.arange(batch, device=column.device).repeat_interleave(count),
            run=False,
            full=False,
            below={},
            memo=Memo(),  # what is found out about these positions serves no other layer
        )
    )
    assert found.lse is not None
    # the window of each query's place, and its place there: [B C H m n] read at (window, head, place)
    row = torch.arange(batch, device=column.device)[:, None, None] * count + one.place // size
    flat = (row * heads + torch.arange(heads, device=row.device)[:, None]) * size + one.place % size  # [B H T]

    def back(x: Tensor) -> Tensor:
        return x.reshape(-1, x.shape[-1]).index_select(0, flat.flatten()).view(*flat.shape, x.shape[-1])

    return Read(back(found.y), back(found.lse[..., None])[..., 0])


def _lonely(request: Request) -> Read:
    """What each token reads of itself alone."""
    queries, keys = request.queries, request.keys
    column, there = own_column(request)
    at = column.expand(-1, queries.q.shape[1], -1)[:, None]  # [B 1 H T]
    k, v = picked(keys.k, at), picked(keys.v, at)
    b, h = (torch.arange(n, device=at.device) for n in queries.q.shape[:2])
    pos = queries.pos.clamp_min(0)
    there = there & request.pattern(b[:, None, None], queries.head + h[:, None], pos, pos)
    score = (queries.q * k).sum(-1) * request.scale - LAST_RESORT
    return Read(torch.where(there[..., None], v, 0.0), torch.where(there, score, -torch.inf))
