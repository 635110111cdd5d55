"""ParallelSublayers: a layer whose sublayers read the same input; their outputs are added."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.collected_outputs import Collected, wants_and_sends
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.residual_block import make_norms
from kinformer.core.state import leaves
from kinformer.nn.norms.layer import LayerNorm


class ParallelSublayers(Layer):
    """A layer of sublayers that read the same input, each behind its own norm; it adds their outputs.

        f_1(norm_1(x)) + f_2(norm_2(x)) + ...

    Put it into a residual block. GPT-J has one norm for all: `PreNorm(ParallelSublayers(Attention(...), MLP(d)))`.
    GPT-NeoX has a norm for each: `PreNorm(ParallelSublayers(Attention(...), MLP(d), norm=LayerNorm),
    norm=nn.Identity)`. Choose it to repeat these models, or to compute attention and the feed-forward layer at the same
    time. In `PreNorm(Attention(...), MLP(d))` the feed-forward layer also reads the output of attention.

    layers: the sublayers f, all of the same width.
    norm: makes a norm from a width, one for each sublayer; none by default.

    Errors: ValueError if there is no sublayer or if the widths differ. Source: Wang and Komatsuzaki, 2021,
    https://github.com/kingoflolz/mesh-transformer-jax; Black et al., 2022, arXiv:2204.06745, section 2.1.2.
    """

    def __init__(self, *layers: Layer, norm: Callable[[int], nn.Module] = nn.Identity):
        super().__init__()
        norms = make_norms(norm, layers)
        widths = sorted({layer.d for layer in layers})
        if len(widths) != 1:
            raise ValueError(
                f"ParallelSublayers adds outputs of one width: got sublayers of widths {widths}, expected at least one "
                "sublayer, all of the same d. Give ParallelSublayers(Attention(...), MLP(d))"
            )
        self.d, self.layers, self.norms = widths[0], nn.ModuleList(layers), nn.ModuleList(norms)
        self.wants, self.sends = wants_and_sends(layers, rising=False)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return tuple(layer.start(batch, length, dtype=dtype, device=device) for layer in self.layers)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        collected = Collected(ctx, state)
        outputs: list[Tensor] = []
        for n, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            if not ctx.remember:
                outputs.append(collected.call(n, layer, norm(x)).y)
            elif state is not None and leaves(state[n]):  # only the decoding state is needed
                collected.remember(n, layer, norm(x))
            else:
                collected.skip(None if state is None else state[n])
        return collected.make_out(sum(outputs[1:], outputs[0]) if outputs else x)


def _layers() -> tuple[Layer, Layer]:
    return kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16)


EXAMPLES = (
    lambda: kf.PreNorm(ParallelSublayers(*_layers(), norm=LayerNorm), norm=nn.Identity),
    lambda: ParallelSublayers(*_layers()),
)
