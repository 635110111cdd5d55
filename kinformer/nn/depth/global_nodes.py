"""GlobalNodes: learned vectors in front of a text, which act as global tokens."""

from dataclasses import fields
from functools import reduce
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_at_least, check_part
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, PerToken, State
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import And, Pattern
from kinformer.nn.patterns.pieces import Pieces
from kinformer.nn.patterns.shifted import shift_context
from kinformer.nn.patterns.tokens import Tokens

NONE = Tokens(0)


class GlobalNodes(Layer):
    """A wrapper that puts `n` learned nodes (extra tokens) before x, and returns only x's outputs.

    Choose it for global nodes outside the text, each with its own vector (BigBird-ETC, the external nodes of the
    survey). `Marked` or `Tokens(n) | Rows(n)` make tokens of the text itself global, and `GlobalTokens` has one node
    per segment.

    The layer sees nodes at positions 0 .. n - 1 and x after them. With `Shifted(Band(w), n) | Tokens(n) | Rows(n)` each
    token of x reads a window and all nodes, and nodes read everything.

    A limit of a batch (`ctx.only`) that is a `Pieces` gives the allowed pairs in each direction between nodes and x.
    Any other limit applies to pairs within x. Nodes then read everything, and x reads no node, since a node could pass
    information from one document to another.

    layer: the layer that gets nodes and x as one sequence.
    n: number of nodes.

    Errors: NoState from `start`, since it cannot decode; ValueError if `ctx.only` has a `Pieces` inside any operator
    except `&`. Source: Zaheer et al., 2020, arXiv:2007.14062, section 2 (extended construction); "external-node" global
    attention in Lin et al., 2021, arXiv:2106.04554, section 4.1.1.
    """

    def __init__(self, layer: Layer, n: int):
        super().__init__()
        self.layer = check_part("layer", layer, Layer, "a layer, such as Stack([PostNorm(Attention(...), MLP(d))])")
        self.d, self.n, self.wants = layer.d, check_at_least("n", n, 1), layer.wants
        self.node = nn.Parameter(torch.randn(n, layer.d))

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState(
            "GlobalNodes has no decoding state: global tokens read the whole row at once. Use a causal layer, or "
            "generate(..., recompute=True)"
        )

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        out = self.read_nodes_and_text(x, self.node_context(ctx))
        aux = {name: value[:, self.n :] if value.dim() else value for name, value in out.aux.items()}
        taps = {name: value[:, self.n :] for name, value in out.taps.items()}
        return Out(out.y[:, self.n :], None, aux, {}, out.stats, taps)

    def read_nodes_and_text(self, x: Float[Tensor, "B T D"], ctx: Context) -> Out:
        """Return the outputs of nodes and text, [B n+T D], in a context made by `node_context`."""
        nodes = self.node.expand(len(x), self.n, -1)  # [B n D]
        return self.layer(torch.cat([nodes, x], 1), None, ctx)

    def node_context(self, ctx: Context) -> Context:
        """Return the layer's context, from the context of x: nodes at positions 0 .. n - 1, then the text."""
        return self.prepend_nodes(ctx, torch.arange(self.n, device=ctx.pos.device).expand(len(ctx.pos), -1))

    def prepend_nodes(self, ctx: Context, node_pos: Int[Tensor, "B n"]) -> Context:
        """Return the context of a text (`ctx`) with nodes before it at `node_pos`; labels of nodes are -1."""
        text = shift_context(ctx, self.n)
        labels = {name: F.pad(label, (self.n, 0), value=-1) for name, label in ctx.labels.items()}
        below = {
            name: PerToken(F.pad(value.value, (*[0, 0] * (value.value.dim() - 2), self.n, 0)))
            for name, value in ctx.below.items()
            if isinstance(value, PerToken)
        }
        pos, only = torch.cat([node_pos, text.pos], 1), None if ctx.only is None else self._limits(ctx.only)
        return text.replace(pos=pos, only=only, labels=labels, below=below, run=False, full=False, remember=False)

    def _limits(self, only: Pattern) -> Pattern:
        """Return a batch's limits for nodes and text."""
        if isinstance(only, And):
            return reduce(And, map(self._limits, (only.left, only.right)))
        if not isinstance(only, Pieces):
            if _holds_pieces(only):
                raise ValueError(
                    f"ctx.only={only} contains Pieces inside another pattern, so their directions would be lost. "
                    "Join the Pieces to the rest with &"
                )
            return Pieces(self.n, l2g=NONE, l2l=only)
        if only.n != self.n:
            raise ValueError(
                f"ctx.only={only} is made for {only.n} global tokens, expected {self.n}. Pass Pieces with that n"
            )
        return only


def _holds_pieces(pattern: Pattern) -> bool:
    if isinstance(pattern, Pieces):
        return True
    values = [getattr(pattern, field.name) for field in fields(pattern)]
    inside = [
        pattern_inside for value in values for pattern_inside in (value if isinstance(value, tuple) else (value,))
    ]
    return any(isinstance(pattern_inside, Pattern) and _holds_pieces(pattern_inside) for pattern_inside in inside)


def _example() -> GlobalNodes:
    pattern = kf.Shifted(kf.Band(2), 3) | Tokens(3) | kf.Rows(3)
    blocks = [kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(pattern)), kf.MLP(16)) for _ in range(2)]
    return GlobalNodes(kf.Stack(blocks), 3)


EXAMPLES = (_example,)
