"""TreeSoftmax: attention on the nodes of a tree, level by level where a row is long."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.biases.tree_edges import LevelEdges, TreeEdges
from kinformer.core.checks import a_flag, a_part, at_least
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Out
from kinformer.core.pattern import Pattern
from kinformer.core.read import Read, merge, precise
from kinformer.core.request import Request
from kinformer.core.scores import softmax
from kinformer.core.tree import node
from kinformer.execute import read
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.causal import Causal
from kinformer.patterns.tree import Tree
from kinformer.patterns.tree_level import TreeLevel

LONG = 512  # nodes of a row from which on levels are read apart


class Levels(NamedTuple):
    """The columns of each level's nodes, their numbers as positions, and where each node's read stands among all."""

    at: list[Int[Tensor, " n"]]
    pos: list[Int[Tensor, "B 1 n"]]
    back: Int[Tensor, " N"]


class TreeSoftmax(Softmax):
    """Softmax attention under `Tree(k)`: what `Softmax(Tree(k), bias)` reads, at the cost of its edges in long rows.

    Nodes stand in post-order, where a level's spans lie far apart. So a whole row of 512 nodes or more is read level by
    level: all tokens read the spans of one level, which are neighbours there, spans read their tokens, and the reads of
    a token are merged: about 64 + 2 k keys a level for each block of tokens. Short rows, steps of decoding and compiled
    calls are read as under any pattern.

    k: spans of a level on either side.
    causal: the causal form, `Causal() & Tree(k)`.
    bias: vectors of the kinds of edges, a `TreeEdges` of the same k.
    dropout: the share of attention weights that training drops.
    lse: as in `Softmax`.

    Errors: NoState from `start` where it is not causal; ValueError for a bias of another k. Source: Ye et al., 2019,
    arXiv:1911.04070, section 3.
    """

    bias: TreeEdges | None

    def __init__(
        self, k: int, bias: TreeEdges | None = None, *, causal: bool = True, dropout: float = 0.0, lse: bool = True
    ):
        tree = Tree(at_least("k", k, 1))
        pattern: Pattern = Causal() & tree if a_flag("causal", causal) else tree
        super().__init__(pattern, bias, dropout=dropout, lse=lse)
        self.k, self.causal, self.whole = k, causal, pattern
        if bias is not None and a_part("bias", bias, TreeEdges, "a TreeEdges(head_dim, k)").k != k:
            raise ValueError(f"k={k}, and the bias is of k={bias.k}; give both the same")

    def read(self, request: Request) -> Out[Read]:
        found = request.memo.get(lambda: _levels(request), "levels of a tree", request.queries.pos)
        if found is None or request.pattern != self.whole:
            return super().read(request)
        reads = [self._tokens(request, found), *(self._spans(request, found, m) for m in range(1, len(found.at)))]
        y, lse = (torch.cat(parts, 2).index_select(2, found.back) for parts in zip(*reads, strict=True))
        return Out(Read(y, lse if request.lse else None))

    def _tokens(self, request: Request, levels: Levels) -> Read:
        """What tokens read of each level, merged."""
        queries, keys, first = request.queries, request.keys, levels.at[0]
        asks = Queries(queries.q.index_select(2, first), levels.pos[0], head=queries.head)
        found = []
        for m, (at, pos) in enumerate(zip(levels.at, levels.pos, strict=True)):
            told = Keys(keys.k.index_select(2, at), keys.v.index_select(2, at), pos)
            bias = None if self.bias is None else LevelEdges(self.bias, m)
            one = request.but(queries=asks, keys=told, pattern=TreeLevel(self.k, m, self.causal), bias=bias, lse=True)
            found.append(read(one.but(run=False), self.impl))
        return merge(*found)

    def _spans(self, request: Request, levels: Levels, level: int) -> Read:
        """What the spans of a level read of their tokens."""
        at, size = levels.at[level], 1 << level
        tokens = levels.at[0][: len(at) * size]
        q = request.queries.q.index_select(2, at)
        k, v = (x.index_select(2, tokens).unflatten(2, (-1, size)) for x in (request.keys.k, request.keys.v))
        score = torch.einsum("bgrnk,bgnsk->bgrns", q.unflatten(1, (k.shape[1], -1)), k).flatten(1, 2) * request.scale
        if self.bias is not None:  # the same for all of them
            score = (
                score + (q @ self.bias.keys[(2 * self.k + 1) * min(level, self.bias.clip)])[..., None] * request.scale
            )
        attention, lse = softmax(score)
        attention = F.dropout(attention, request.dropout).unflatten(1, (v.shape[1], -1))
        return Read(torch.einsum("burns,bunsv->burnv", attention, v).flatten(1, 2), precise(lse))


def _levels(request: Request) -> Levels | None:
    """The levels of a whole row from its first node on, the same in all rows; None for any other row."""
    pos = request.queries.pos
    if (
        torch.compiler.is_compiling()
        or not request.is_causal
        or pos.shape[2] < LONG
        or (len(pos) > 1 and pos.stride(0))
    ):
        return None
    if request.memo.look(pos[0, 0, 0])[0]:
        return None
    level = node(pos[0, 0]).level
    at = [(level == m).nonzero()[:, 0] for m in range(pos.shape[2].bit_length())]
    at = [one for one in at if len(one)]
    numbers = [torch.arange(len(one), device=pos.device).expand(len(pos), 1, -1) for one in at]
    return Levels(at, numbers, torch.cat(at).argsort())


def _example(k: int, causal: bool) -> TreeSoftmax:
    return TreeSoftmax(k, TreeEdges(8, k, 2), causal=causal)


EXAMPLES = (lambda: _example(2, True), lambda: _example(1, False), lambda: TreeSoftmax(3))
