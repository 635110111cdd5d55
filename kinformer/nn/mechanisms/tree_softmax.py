"""TreeSoftmax: attention on the nodes of a tree, computed in tiles of tokens for long rows."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_at_least, check_flag, check_part
from kinformer.core.layer import Out
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.request import Request
from kinformer.core.score_matrix import softmax
from kinformer.core.span_tree import Node, edge, node
from kinformer.nn.biases.tree_edges import TreeEdges
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.tree import Tree
from kinformer.nn.patterns.tree_level import TreeLevel

LONG = 512  # minimum number of nodes in a row for reads in tiles
TILE = 64  # tokens per tile


class TreeTiles(NamedTuple):
    """Tiles of 64 tokens, each with the nodes of the tree that any of its tokens reads.

    column: indices (columns) of these nodes in the row, [n, W]; -1 for none.
    may: mask of the (token, node) pairs that may be read, [n, q, W].
    kind: kind of the tree's edge between token and node, [n, q, W].
    """

    column: Int[Tensor, "n W"]
    may: Bool[Tensor, "n q W"]
    kind: Int[Tensor, "n q W"]


class TreeLevels(NamedTuple):
    """Nodes of a tree by level, for `TreeSoftmax` on a whole row.

    at: indices (columns) in the row of the nodes of each level.
    back: place of each node's output in the outputs of all levels, [N].
    tiles: tiles of the tokens (the lowest level).
    """

    at: list[Int[Tensor, " _"]]
    back: Int[Tensor, " N"]
    tiles: TreeTiles


class TreeSoftmax(Softmax):
    """Softmax attention under `Tree(k)`, at the cost of only the edges of the tree in long rows.

    It computes the same as `Softmax(Tree(k), bias)`. A node is a token or a span of tokens. Nodes are stored in
    post-order, in which the spans of a level are far apart. In a whole row of 512 nodes or more, each tile of 64 tokens
    therefore gathers the nodes that any of its tokens reads. These are 64 and k of the lowest level, 32 and k of the
    next, and so on. It attends to them at once, and spans attend to their tokens. Short rows, decoding steps and
    compiled calls are computed as under any pattern.

    k: number of spans per level on either side.
    bias: vectors for the kinds of edges, a `TreeEdges` with the same k.
    causal: True for the causal form, `Causal() & Tree(k)`.
    dropout: fraction of attention weights that training drops.
    lse: as in `Softmax`.

    Errors: NoState (no decoding state exists) from `start` unless causal; ValueError for a bias with another k.

    Source: Ye et al., 2019, arXiv:1911.04070, section 3.
    """

    bias: TreeEdges | None

    def __init__(
        self, k: int, bias: TreeEdges | None = None, *, causal: bool = True, dropout: float = 0.0, lse: bool = True
    ):
        tree = Tree(check_at_least("k", k, 1))
        pattern: Pattern = Causal() & tree if check_flag("causal", causal) else tree
        super().__init__(pattern, bias, dropout=dropout, lse=lse)
        self.k, self.causal, self.whole = k, causal, pattern
        if bias is not None and check_part("bias", bias, TreeEdges, "a TreeEdges(head_dim, k)").k != k:
            raise ValueError(f"k={k} must equal the k of the bias: got bias.k={bias.k}")

    def read(self, request: Request) -> Out[AttentionOutput]:
        levels = request.memo.get(
            lambda: _make_levels(request, self.k, self.causal, 0 if self.bias is None else self.bias.clip),
            "levels of a tree",
            request.queries.pos,
            self.k,
            self.causal,
        )
        if levels is None or request.pattern != self.whole:
            return super().read(request)
        q = _take_nodes(request.queries.q, torch.cat(levels.at)).split([len(at) for at in levels.at], 2)
        k, v = (_take_nodes(x, levels.at[0]) for x in (request.keys.k, request.keys.v))
        reads = [self._tokens(request, q[0], levels.tiles)]
        reads += [self._spans(request, q[m], k, v, m) for m in range(1, len(q))]
        y, lse = (torch.cat(parts, 2) for parts in zip(*reads, strict=True))
        return Out(
            AttentionOutput(
                _take_nodes(y, levels.back), _take_nodes(lse[..., None], levels.back)[..., 0] if request.lse else None
            )
        )

    def _tokens(self, request: Request, q: Float[Tensor, "B H T K"], tiles: TreeTiles) -> AttentionOutput:
        """Return the read of the tokens from all levels."""
        (count, size, _), length = tiles.may.shape, q.shape[2]
        k, v = (_take_nodes(x, tiles.column.clamp_min(0)) for x in (request.keys.k, request.keys.v))  # [B G n W ..]
        q = F.pad(q, (0, 0, 0, count * size - length)).unflatten(2, (count, size))
        score = torch.einsum("bgrntk,bgnwk->bgrntw", q.unflatten(1, (k.shape[1], -1)), k).flatten(1, 2)
        if self.bias is not None:
            score = score + (q @ self.bias.keys.T).gather(
                -1, self.bias.row(tiles.kind).expand(*q.shape[:2], -1, -1, -1)
            )
        logits = (score * request.scale).flatten(2, 3).masked_fill(~tiles.may.flatten(0, 1), -torch.inf)
        attention, lse = softmax(logits)
        attention = F.dropout(attention, request.dropout).unflatten(2, (count, size)).unflatten(1, (v.shape[1], -1))
        y = torch.einsum("burntw,bunwv->burntv", attention, v).flatten(1, 2).flatten(2, 3)
        return AttentionOutput(y[:, :, :length], at_least_float32(lse[:, :, :length]))

    def _spans(
        self, request: Request, q: Float[Tensor, "B H n K"], k: Float[Tensor, "B G T K"], v: Tensor, level: int
    ) -> AttentionOutput:
        """Return the read of the spans of a level from their tokens."""
        size = 1 << level
        k, v = (x[:, :, : q.shape[2] * size].unflatten(2, (-1, size)) for x in (k, v))
        score = torch.einsum("bgrnk,bgnsk->bgrns", q.unflatten(1, (k.shape[1], -1)), k).flatten(1, 2)
        if self.bias is not None:  # all edges from a span to its tokens have the same kind
            types = (self.k if self.bias.causal else 2 * self.k) + 1
            score = score + (q @ self.bias.keys[types * min(level, self.bias.clip)])[..., None]
        attention, lse = softmax(score * request.scale)
        attention = F.dropout(attention, request.dropout).unflatten(1, (v.shape[1], -1))
        return AttentionOutput(torch.einsum("burns,bunsv->burnv", attention, v).flatten(1, 2), at_least_float32(lse))


def _take_nodes(x: Float[Tensor, "B G N D"], at: Int[Tensor, "*n"]) -> Float[Tensor, "B G *n D"]:
    """Gather vectors by column as an embedding lookup, which trains faster than indexing."""
    batch, groups, length, width = x.shape
    first = torch.arange(batch * groups, device=at.device).mul(length).view(batch, groups, *[1] * at.dim())
    return F.embedding(first + at, x.reshape(-1, width))


def _make_levels(request: Request, k: int, causal: bool, clip: int) -> TreeLevels | None:
    """Return the levels of a whole row from its first node, equal in all rows; None for any other row."""
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
    at = [nodes for nodes in at if len(nodes)]
    return TreeLevels(at, torch.cat(at).argsort(), _make_tiles(at, k, causal, clip))


def _make_tiles(at: list[Int[Tensor, " _"]], k: int, causal: bool, clip: int) -> TreeTiles:
    """Return for each tile the nodes that it reads from every level, side by side."""
    length, device = len(at[0]), at[0].device
    token = torch.arange(-(-length // TILE) * TILE, device=device).view(-1, TILE, 1).clamp_max(length - 1)  # [n 64 1]
    tiles = []
    for m, of_level in enumerate(at):
        where = TreeLevel(k, m, causal)
        lo, hi = (x[:, None] for x in where.hull(token[:, 0, 0], token[:, -1, 0]))  # [n 1]
        lo, hi = lo.clamp_min(0), hi.clamp_max(len(of_level))
        span = lo + torch.arange(max(0, int((hi - lo).max())), device=device)
        is_span = span < hi
        column = torch.where(is_span, of_level[span.clamp(0, len(of_level) - 1)], -1)
        leaf, ancestor = Node(torch.zeros_like(token), token), Node(torch.full_like(span, m), span)
        kind = edge(leaf, Node(*(x[:, None] for x in ancestor)), k, clip)
        tiles.append((column, where(0, 0, token, span[:, None]) & is_span[:, None], kind))
    return TreeTiles(*(torch.cat(parts, -1) for parts in zip(*tiles, strict=True)))


def _example(k: int, causal: bool) -> TreeSoftmax:
    return TreeSoftmax(k, TreeEdges(8, k, 2, causal=causal), causal=causal)


EXAMPLES = (lambda: _example(2, True), lambda: _example(1, False), lambda: TreeSoftmax(3))
