"""GlobalTokens: a global token for each segment, in front of the text."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_optional_part
from kinformer.core.layer import Context, Layer
from kinformer.core.pattern import Pattern
from kinformer.nn.depth.global_nodes import GlobalNodes
from kinformer.nn.patterns.own_segment import OwnSegment, pieces_of
from kinformer.nn.patterns.pieces import PIECES, Pieces


class GlobalTokens(GlobalNodes):
    """A wrapper that puts one global token per segment before x, and returns only the outputs of x.

    Choose it for a text with sentences, paragraphs or other segments. Global token s stands for segment s.
    `ctx.labels["segment"]` [B T] gives the segment of each token (0 without it). The last global token stands for all
    later segments too. The global token of an empty segment is padding. All global tokens share one learned vector;
    position and labels tell them apart.

    The layer sees global tokens at positions 0 .. n - 1, x after them, and the segment of every token in its labels.
    `Band(w) | Tokens(n) | Rows(n)` makes it ETC's global-local attention. A batch limits the pairs of each direction by
    `Context(only=Pieces(n, ...))`, see GlobalNodes.

    layer: the layer that gets global tokens and x as one sequence.
    n: number of global tokens.
    hard: directions in which a token reads only its own segment: "g2l" (a global token reads only its own segment of
        x), "l2g" (a token of x reads only the global token of its segment), "l2l" (within x), "g2g" (between global
        tokens). The paper uses ("g2l",); by default no direction is limited.
    only: allowed pairs in each direction, in every batch; None allows all. A batch may limit them further.

    Errors: NoState from `start`. Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.
    """

    def __init__(self, layer: Layer, n: int, *, hard: tuple[str, ...] = (), only: Pieces | None = None):
        super().__init__(layer, n)
        self.hard, self.only = (
            pieces_of("hard", hard),
            check_optional_part("only", only, Pieces, f"Pieces({n}, g2l=Band(3))"),
        )
        if only is not None and only.n != n:
            raise ValueError(
                f"only={only} does not fit: got {only.n} global tokens, expected {n}. Pass Pieces({n}, ...)"
            )
        self.node = nn.Parameter(torch.randn(layer.d))

    def node_context(self, ctx: Context) -> Context:
        return self._limit_to_segments(ctx, self.hard)

    def separate_segments(self, ctx: Context) -> Context:
        """Return the same context, in which every token reads only tokens of its own segment.

        The layer then treats each segment as if it were a whole text.
        """
        return self._limit_to_segments(ctx, PIECES)

    def _limit_to_segments(self, ctx: Context, hard: tuple[str, ...]) -> Context:
        labels = ctx.labels.get("segment", torch.zeros_like(ctx.pos))
        segment = torch.where(ctx.pos >= 0, labels.clamp(0, self.n - 1), -1)
        node_pos = torch.arange(self.n, device=ctx.pos.device)
        node_pos = torch.where((segment[:, None] == node_pos[:, None]).any(-1), node_pos, -1)
        segments = torch.cat([node_pos, segment], 1)
        limited = self.prepend_nodes(ctx, node_pos)
        if self.only is not None:
            limited = limited.replace(only=self.only if limited.only is None else limited.only & self.only)
        if hard:
            own_segment = self._own_segment(ctx, segments, limited.pos, hard)
            limited = limited.replace(only=own_segment if limited.only is None else limited.only & own_segment)
        return limited.replace(labels={**limited.labels, "segment": segments})

    def _own_segment(
        self, ctx: Context, segments: Int[Tensor, "B N"], pos: Int[Tensor, "B N"], hard: tuple[str, ...]
    ) -> Pattern:
        (last,) = ctx.memo.look(pos.amax())
        # one column per position, and a last one for padding
        ids = segments.new_full((len(pos), last + 2), -1)
        return OwnSegment(ids.scatter(1, torch.where(pos >= 0, pos, last + 1), segments), self.n, hard)


def _example(hard: tuple[str, ...]) -> GlobalTokens:
    pattern = kf.Band(2) | kf.Tokens(3) | kf.Rows(3)
    blocks = [kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(pattern)), kf.MLP(16)) for _ in range(2)]
    return GlobalTokens(kf.Stack(blocks), 3, hard=hard)


EXAMPLES = (lambda: _example(()), lambda: _example(("g2l", "l2g")))
