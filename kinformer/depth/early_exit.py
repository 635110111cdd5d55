"""EarlyExit: each token leaves the stack at the layer that a rule chooses; layers above copy the state it left with."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import a_part
from kinformer.core.choice import choice
from kinformer.core.collected import Collected, flow, summed
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State, prefixed
from kinformer.core.loss import penalties_of
from kinformer.depth.support.some_rows import divisible, going_rows, on_rows
from kinformer.exits.confidence import exactly
from kinformer.exits.rules import Rule


class Exiting(NamedTuple):
    """What the rule keeps, and the states of the layers."""

    rule: State
    layers: State


class EarlyExit(Layer):
    """Layers in order, of which each token takes as many as its `rule` says. Reports `exit` per token, from 1.

    The state that a token leaves with is copied to the layers above, so their keys come from it and later tokens see it
    there: decoding in chunks gives what one call gives. Nobody leaves in train mode, where a hard exit would teach its
    rule nothing, nor in a call that asks for `ctx.taps`: "0", "1", .. are then what each layer made of every token.
    `MultiExit` trains all exits and the rule on these and the lent `ctx.head`.

    In eager eval mode a layer is computed for the rows in which a token goes on, in decoding exactly those tokens; of
    the others its state is brought up to date. All that report a penalty are read whole.

    layers: what there is to go through, all of one width.
    heads: what reads the state that a token leaves with: one for all exits (a norm, or nn.Identity()), or one per
        layer; they keep the width. A confidence that wants probabilities reads them through the head that the model
        lends (`ctx.head`).
    rule: which tokens leave after a layer.

    Errors: ValueError for another number of heads, and for a rule of another width or number of layers. Source: Elbayad
    et al., 2019, arXiv:1910.10073; Schuster et al., 2022, arXiv:2207.07061.
    """

    def __init__(self, layers: Sequence[Layer], heads: nn.Module | Sequence[nn.Module], rule: Rule):
        super().__init__()
        each = [heads] * len(layers) if isinstance(heads, nn.Module) else list(heads)
        if not layers or len(each) != len(layers):
            raise ValueError(f"EarlyExit wants one head, or one per layer: {len(each)} came for {len(layers)} layers")
        widths = sorted({layer.d for layer in layers})
        if len(widths) > 1:
            raise ValueError(f"the layers of an EarlyExit have widths {widths}; give all the same d")
        self.d, self.layers, self.heads = widths[0], nn.ModuleList(layers), nn.ModuleList(each)
        self.rule = a_part("rule", rule, Rule, "a rule, such as Confident(Saturation(), 0.9)")
        rule.agree(self.d, len(layers))
        self.wants, _ = flow(layers, rising=True)
        # a layer that is left out reports nothing: those up to the last one with a penalty are always read
        self.always = 1 + max((n for n, layer in enumerate(layers) if penalties_of(layer)), default=0)
        self.divisible = all(divisible(layer) for layer in layers)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> Exiting:
        layers = tuple(layer.start(batch, length, dtype=dtype, device=device) for layer in self.layers)
        like = next(self.parameters(), torch.empty(0))
        return Exiting(self.rule.start(batch, device=torch.device(device) if device else like.device), layers)

    def forward(self, x: Float[Tensor, "B T D"], state: Exiting | None, ctx: Context) -> Out:
        rule = self.rule.start(len(x), device=x.device) if state is None else state.rule
        told = self.rule.told(rule, ctx)
        found = Collected(
            ctx.but(remember=False) if ctx.remember else ctx, None if state is None else state.layers, rising=True
        )
        inside, last, whole = ctx.pos >= 0, len(self.layers) - 1, self.training or bool(ctx.taps)
        h, y, exits = x, torch.zeros_like(x), torch.zeros_like(x[..., 0])
        states: list[Tensor] = []
        rows = None
        for n, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True)):
            if n >= self.always and not whole:
                rows = going_rows(self, inside, rows)
            if (rows is not None and not len(rows)) or (ctx.remember and n == last):
                if state is not None:
                    found.remember(n, layer, h)
                continue
            out = found.call(n, on_rows(layer, rows) if self.divisible else layer, h)
            found.aux |= prefixed(n, summed({}, out.aux, inside))  # of tokens that left nothing counts
            h = torch.where(inside[..., None], out.y, h)
            states.append(h)
            if n < last and whole:
                continue
            leaves = inside if n == last else inside & self._leave(states, head, told, ctx)
            y = torch.where(leaves[..., None], head(h), y)
            exits = torch.where(leaves, n + 1.0, exits)
            inside = inside & ~leaves
        out = found.out(y)
        kept = None if state is None else Exiting(told, out.state)
        return out._replace(state=kept, aux={**out.aux, "exit": exits}, up={})

    def _leave(self, states: list[Tensor], head: nn.Module, told: State, ctx: Context) -> Tensor:
        lent = ctx.head

        def logits(h: Tensor) -> Tensor:
            assert lent is not None
            return exactly(lent, exactly(head, h))

        read: Callable[[Tensor], Tensor] | None = None if lent is None else logits
        with torch.no_grad():
            return choice(lambda: self.rule(states, ctx.pos, told, read))


def _example(heads: Callable[[], nn.Module | Sequence[nn.Module]], rule: Callable[[], Rule]) -> EarlyExit:
    from kinformer.attention import Attention
    from kinformer.blocks.pre_norm import PreNorm
    from kinformer.feedforward.mlp import MLP
    from kinformer.mechanisms.softmax import Softmax
    from kinformer.patterns.causal import Causal
    from kinformer.projections.qkv import QKV

    blocks = [PreNorm(Attention(QKV(16, 2), Softmax(Causal())), MLP(16)) for _ in range(3)]
    return EarlyExit(blocks, heads(), rule())


def _multinomial() -> EarlyExit:
    from kinformer.exits.rules import Multinomial
    from kinformer.norms.layer import LayerNorm

    return _example(lambda: LayerNorm(16), lambda: Multinomial(16, 3))


def _geometric() -> EarlyExit:
    from kinformer.exits.rules import Geometric
    from kinformer.norms.layer import LayerNorm

    return _example(lambda: [LayerNorm(16) for _ in range(3)], lambda: Geometric(16, 3, shared=False))


def _saturated() -> EarlyExit:
    from kinformer.exits.confidence import Saturation
    from kinformer.exits.rules import Confident
    from kinformer.norms.layer import LayerNorm

    return _example(lambda: LayerNorm(16), lambda: Confident(Saturation(), 0.9))


EXAMPLES = (_multinomial, _geometric, _saturated)
