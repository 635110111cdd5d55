"""EarlyExit: each token leaves the stack at the layer that a rule chooses; layers above copy the state it left with."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.adapt.confidence import Saturation
from kinformer.adapt.exits import Confident, Geometric, Multinomial, Rule
from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.layer import Context, Layer, Out, State, prefixed
from kinformer.depth.universal import beneath, idle, summed
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.causal import Causal


class Exiting(NamedTuple):
    """What the rule keeps, and the states of the layers."""

    rule: State
    layers: State


class EarlyExit(Layer):
    """Layers in order, of which each token takes as many as its `rule` says. Reports `exit` per token, from 1.

    `heads` read the state that a token leaves with: one for all exits (a norm, or nn.Identity()), or one per layer;
    they keep the width. The state is copied to the layers above, so their keys come from it and later tokens see it
    there: decoding in chunks gives what one call gives. In eager eval mode a layer that no token takes is not computed,
    its state is filled by `remember`. To train, read all exits with `every` and take `aligned`.

    Errors: ValueError for another number of heads. Source: Elbayad et al., 2019, arXiv:1910.10073; Schuster et al.,
    2022, arXiv:2207.07061.
    """

    def __init__(self, layers: Sequence[Layer], heads: nn.Module | Sequence[nn.Module], rule: Rule):
        super().__init__()
        each = [heads] * len(layers) if isinstance(heads, nn.Module) else list(heads)
        if not layers or len(each) != len(layers):
            raise ValueError(f"EarlyExit wants one head, or one per layer: {len(each)} came for {len(layers)} layers")
        self.d = layers[0].d
        self.layers, self.heads, self.rule = nn.ModuleList(layers), nn.ModuleList(each), rule

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Exiting:
        layers = tuple(layer.start(batch, length, dtype=dtype, device=device) for layer in self.layers)
        return Exiting(self.rule.start(batch, device=device), layers)

    def forward(self, x: Float[Tensor, "B T D"], state: Exiting | None, ctx: Context) -> Out:
        kept = self.rule.start(len(x), device=x.device) if state is None else state.rule
        told = self.rule.told(kept, ctx)
        inside = ctx.pos >= 0
        h, y, exits = x, torch.zeros_like(x), torch.zeros_like(x[..., 0])
        states: list[Tensor] = []
        after: list[State] = []
        aux: dict[str, Tensor] = {}
        up: dict[str, Tensor] = {}
        stats: dict[str, Tensor] = {}
        for n, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True)):
            old = None if state is None else state.layers[n]
            seen = beneath(ctx, up)
            if n and idle(self, inside) and not aux:  # what reports is not left out: its reports would be
                after.append(None if state is None else layer.remember(h, old, seen))
                continue
            out = layer(h, old, seen)
            h = torch.where(inside[..., None], out.y, h)
            states.append(h)
            leaves = inside if n == len(self.layers) - 1 else inside & self.rule(states, ctx.pos, told)
            y = torch.where(leaves[..., None], head(h), y)
            exits = torch.where(leaves, n + 1.0, exits)
            aux |= prefixed(n, summed({}, out.aux, inside))
            stats |= prefixed(n, out.stats)
            up = {**up, **out.up}
            inside = inside & ~leaves
            after.append(out.state)
        return Out(y, None if state is None else Exiting(told, tuple(after)), {**aux, "exit": exits}, {}, stats)

    def every(self, x: Float[Tensor, "B T D"], ctx: Context) -> tuple[list[Tensor], list[Tensor]]:
        """Every layer's state with nobody leaving, and what each exit's head makes of it."""
        states: list[Tensor] = []
        up: dict[str, Tensor] = {}
        for layer in self.layers:
            out = layer(x, None, beneath(ctx, up))
            x, up = out.y, {**up, **out.up}
            states.append(x)
        return states, [head(h) for head, h in zip(self.heads, states, strict=True)]


def aligned(
    logits: Sequence[Float[Tensor, "B T V"]],
    targets: Int[Tensor, "B T"],
    weights: Literal["uniform", "linear", "sqrt"] = "uniform",
) -> Float[Tensor, ""]:
    """The loss of all exits at once: the mean over targets (-1 is none) of their log-loss, averaged over exits.

    Exit n, from 1, weighs 1, n or sqrt(n). Source: Elbayad et al., 2019, arXiv:1910.10073, section 2.1.
    """
    power = {"uniform": 0.0, "linear": 1.0, "sqrt": 0.5}[weights]
    losses = [F.cross_entropy(one.transpose(1, 2), targets, ignore_index=-1, reduction="sum") for one in logits]
    w = torch.arange(1, len(losses) + 1, dtype=losses[0].dtype, device=targets.device) ** power
    return (w * torch.stack(losses)).sum() / (w.sum() * (targets >= 0).sum().clamp_min(1))


def _blocks() -> list[PreNorm]:
    return [PreNorm(Attention(16, 2, Softmax(Causal())), MLP(16)) for _ in range(3)]


EXAMPLES = (
    lambda: EarlyExit(_blocks(), LayerNorm(16), Multinomial(16, 3)),
    lambda: EarlyExit(_blocks(), [LayerNorm(16) for _ in range(3)], Geometric(16, 3, shared=False)),
    lambda: EarlyExit(_blocks(), LayerNorm(16), Confident(Saturation(), 0.9)),
)
COMPILES = True
