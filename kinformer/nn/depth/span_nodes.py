"""SpanNodes: a wrapper that adds a binary tree of spans (runs of tokens) to the tokens of a row."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_flag, check_part
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, PerToken, State
from kinformer.core.mechanism import NoState
from kinformer.core.span_tree import HIGHEST, leaf, node
from kinformer.core.token_positions import check_in_order, next_positions


class SpanNodesState(NamedTuple):
    """The decoding state of a `SpanNodes`.

    body: state of the layer inside, which counts positions of nodes (tokens and spans).
    now: position of the next token of each row, [B].
    """

    body: State
    now: Int[Tensor, " B"]


class NodePositions(NamedTuple):
    """The nodes (tokens and spans) of a `SpanNodes` that a chunk of tokens adds.

    pos: positions of the nodes, [B N].
    at: index of each token among the N nodes, [B T]; N for padding.
    run: True if positions have no gaps.
    full: True if no node is padding.
    """

    pos: Int[Tensor, "B N"]
    at: Int[Tensor, "B T"]
    run: bool = False
    full: bool = False

    def spread(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Spread values of tokens [B T ..] over nodes [B N ..]; spans get `fill`."""
        shape, rest = self.pos.shape, x.shape[2:]
        at = self.at.view(*self.at.shape, *[1] * len(rest)).expand_as(x)
        return x.new_full((shape[0], shape[1] + 1, *rest), fill).scatter(1, at, x)[:, :-1]

    def tokens(self, x: Tensor) -> Tensor:
        """Return the values of the tokens, [B T ..], from x, the values of all nodes, [B N ..]."""
        at = self.at.clamp_max(x.shape[1] - 1)
        return x.take_along_dim(at.view(*at.shape, *[1] * (x.dim() - 2)), 1)


class SpanNodes(Layer):
    """A wrapper that adds a binary tree of spans to the tokens, and returns only the outputs of tokens.

    Choose it around blocks with the pattern `Tree(k)`. Each span of 2^m tokens is a node, whose vector starts as 0 and
    passes all blocks like a token. The layer inside gets all nodes, numbered in post-order: each span after its tokens
    (core/span_tree.py). So it decodes with its own decoding state, and a new token adds a few nodes.

    layer: the layer that reads the nodes.
    causal: True adds only spans whose last token is in the row, each after this token. False adds all spans that begin
        in the row. With False, the positions of the last spans have gaps if the length is not a power of two. Only
        dense executors (ways to compute all pairs at once) support positions with gaps.
    norm: norm of the tokens, applied before spans are added.

    Errors: NoState from `start` if the tree is not causal; ValueError for `ctx.only` and `ctx.also`, which limit pairs
    of tokens, and for tokens that are not in order. Source: Ye et al., 2019, arXiv:1911.04070, section 3.
    """

    def __init__(self, layer: Layer, *, causal: bool, norm: nn.Module | None = None):
        super().__init__()
        self.layer = check_part("layer", layer, Layer, "a layer, such as Stack([PostNorm(Attention(...), MLP(d))])")
        self.d, self.wants = layer.d, layer.wants
        self.causal, self.norm = check_flag("causal", causal), norm

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> SpanNodesState:
        if not self.causal:
            raise NoState("SpanNodes(causal=False) has no decoding state: spans contain later tokens. Use causal=True")
        now = torch.zeros(batch, dtype=torch.long, device=device or next(self.parameters()).device)
        return SpanNodesState(self.layer.start(batch, 2 * length, dtype=dtype, device=device), now)

    def forward(self, x: Float[Tensor, "B T D"], state: SpanNodesState | None, ctx: Context) -> Out:
        check_in_order(ctx, "a tree of spans")
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "SpanNodes does not support ctx.only or ctx.also: a span covers several tokens. Pass rows of one "
                "document each, without ctx.only and ctx.also"
            )
        places = self.node_positions(ctx)
        x = x if self.norm is None else self.norm(x)
        out = self.layer(places.spread(x), None if state is None else state.body, self.node_context(places, ctx))
        new_state = None if state is None else SpanNodesState(out.state, next_positions(state.now, ctx.pos))
        of: Callable[[Tensor], Tensor] = places.tokens
        aux = {name: of(value) if value.dim() else value for name, value in out.aux.items()}
        taps = {name: of(value) for name, value in out.taps.items()}
        return Out(None if ctx.remember else of(out.y), new_state, aux, {}, out.stats, taps)

    def node_context(self, places: NodePositions, ctx: Context) -> Context:
        """Return the context of the nodes from the context of the tokens; labels of spans are -1."""
        labels = {name: places.spread(label, -1) for name, label in ctx.labels.items()}
        per_token = ((name, value) for name, value in ctx.below.items() if isinstance(value, PerToken))
        below = {name: PerToken(places.spread(value.value)) for name, value in per_token}
        return ctx.replace(pos=places.pos, run=places.run, full=places.full, labels=labels, below=below)

    def node_positions(self, ctx: Context) -> NodePositions:
        """Return the positions of the nodes of a chunk: its tokens and the spans among and after them."""
        pos, real = ctx.pos, ctx.pos >= 0
        stop = F.pad(pos, (0, 1), value=-1).amax(1) + 1  # [B], the token behind the last
        first = torch.where(real, pos, HIGHEST**6).amin(1).clamp_max(stop) if pos.shape[1] else stop
        begin, missing = leaf(first), torch.zeros_like(stop)
        count = leaf(stop) - begin
        if not self.causal:
            whole = _power_of_two(stop)
            count = torch.where(stop > 0, 2 * whole - 1 - begin, 0)
            missing = whole - stop
        size, least, gaps, apart = self._sizes(ctx, count, missing, begin)
        full = ctx.full and least == size and not gaps
        column = torch.where(real, leaf(pos.clamp_min(0)) - begin[:, None], size)
        nodes = begin[:, None] + torch.arange(size, device=pos.device)  # [B N]
        if full and not apart:  # equal rows share one row of positions, and so one mask
            return NodePositions(nodes[:1].expand(len(pos), -1), column, run=True, full=True)
        has_node = nodes < (begin + count)[:, None]
        if not self.causal:
            spans = node(nodes)
            has_node = has_node & ((spans.number << spans.level) < stop[:, None])
        return NodePositions(torch.where(has_node, nodes, -1), column, run=not gaps, full=full)

    def _sizes(self, ctx: Context, count: Tensor, missing: Tensor, begin: Tensor) -> tuple[int, int, int, int]:
        """Return the most and fewest nodes of a row, the tokens that a tree lacks, and the spread of row starts.

        The results are bounds if values cannot be read.
        """
        length = ctx.pos.shape[1]
        if torch.compiler.is_compiling():
            max_nodes = 2 * length + HIGHEST if self.causal else 2 << max(length - 1, 0).bit_length()
            return max_nodes, 0, 0 if self.causal else 1, 1
        if not count.numel():
            return 1, 0, 0, 1
        bounds = (count.amax(), count.amin(), missing.amax(), begin.amin(), begin.amax())
        max_nodes, min_nodes, gaps, first, last = ctx.memo.look(*bounds)
        return max(max_nodes, 1), min_nodes, gaps, last - first


def _power_of_two(n: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return the smallest power of two that is at least n."""
    power = torch.ones_like(n)
    for _ in range(HIGHEST):
        power = torch.where(power < n, 2 * power, power)
    return power


def _example(causal: bool) -> SpanNodes:
    pattern = kf.Causal() & kf.Tree(2) if causal else kf.Tree(2)
    blocks = [
        kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(pattern, kf.TreeEdges(8, 2, 2))), kf.MLP(16))
        for _ in range(2)
    ]
    return SpanNodes(kf.Stack(blocks), causal=causal)


EXAMPLES = (lambda: _example(True), lambda: _example(False))
