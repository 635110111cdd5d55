"""Stack: blocks one after the other."""

import dataclasses
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.attention import Attention
from kinformer.biases.adaptive_span import AdaptiveSpan
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.layer import Context, Layer, Out, State, prefixed
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.causal import Causal


class Stack(Layer):
    """Blocks in order; what one sends `up`, the next finds in `ctx.below`.

    `norm` is applied at the end, as pre-norm blocks want it.
    """

    def __init__(self, layers: Iterable[Layer], norm: nn.Module | None = None):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        if not self.layers:
            raise ValueError("a Stack got no layers; give it at least one")
        self.d = self.layers[0].d
        self.norm = norm

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> State:
        return tuple(layer.start(batch, length, dtype=dtype, device=device) for layer in self.layers)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        states: list[State] = []
        aux: dict[str, Tensor] = {}
        up: dict[str, Tensor] = {}
        stats: dict[str, Tensor] = {}
        for n, layer in enumerate(self.layers):
            seen = dataclasses.replace(ctx, below={**ctx.below, **up}) if up else ctx
            out = layer(x, None if state is None else state[n], seen)
            x = out.y
            states.append(out.state)
            aux |= prefixed(n, out.aux)
            up = {**up, **out.up}
            stats |= prefixed(n, out.stats)
        x = x if self.norm is None else self.norm(x)
        return Out(x, None if state is None else tuple(states), aux, up, stats)


EXAMPLES = (
    lambda: Stack([PreNorm(Attention(16, 2, Softmax(Causal())), MLP(16)) for _ in range(2)], LayerNorm(16)),
    lambda: Stack([PreNorm(Attention(16, 2, Softmax(Causal(), AdaptiveSpan(2, 8, ramp=3)))) for _ in range(2)]),
)
COMPILES = True
