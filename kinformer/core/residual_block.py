"""ResidualBlock: sublayers, each joined to the residual stream."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_part
from kinformer.core.collected_outputs import Collected, wants_and_sends
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.quote import quote
from kinformer.core.state import leaves


class Join(nn.Module, KeywordHints, ABC):
    """Base class of rules that join a sublayer f to the residual stream x, with a norm.

    Examples are x + f(norm(x)), norm(x + f(x)) and a gate.
    """

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"], f: Callable[[Tensor], Out], norm: nn.Module) -> Out: ...


def check_layers(layers: Iterable[nn.Module]) -> None:
    """Raise ValueError if a module, such as nn.Linear, is no layer.

    layers: the layers of a stack, or the sublayers of a block.
    """
    for n, layer in enumerate(layers):
        if not hasattr(layer, "d"):  # a wrapper, such as torch.compile(layer), has the attributes of its layer
            advice = "a layer, such as Attention(...), MLP(d) or a block of both"
            if isinstance(layer, nn.MultiheadAttention):
                advice = "Attention(QKV(d, heads), Softmax(Full()))"
            elif isinstance(layer, nn.Module):
                advice += "; a subclass of Layer sets self.d, and its forward(x, state, ctx) returns Out(y, state)"
            check_part(f"layers[{n}]", layer, Layer, advice)
            raise ValueError(
                f"layers[{n}] is a {type(layer).__name__} without a width; set self.d to the width of x and y"
            )


def make_norms(norm: Callable[[int], nn.Module], layers: Sequence[Layer]) -> list[nn.Module]:
    """Return a norm for each sublayer of a block.

    norm: makes a norm from a width, such as the class LayerNorm.
    layers: the sublayers.

    Errors: ValueError if a sublayer is no layer, or if `norm` is a norm already or cannot be called.
    """
    check_layers(layers)
    if isinstance(norm, nn.Module) or not callable(norm):
        actual = f"of the type {type(norm).__name__}" if isinstance(norm, nn.Module) else quote(norm)
        raise ValueError(f"norm is {actual}; give a class or a function of the width, such as norm=RMSNorm")
    return [norm(layer.d) for layer in layers]


class ResidualBlock(Layer):
    """Sublayers in order, each with its own norm and join (such as x + f(norm(x))).

    Sublayer i gets the values from earlier blocks (`Context.below`) whose names begin with "i.". The names of values
    that it passes on (`Out.up`) get the same prefix.

    layers: the sublayers, all of the same width.
    joins: one join for each sublayer.
    norms: one norm for each sublayer.

    Errors: ValueError if there is no sublayer, if the numbers differ or if the widths differ.
    """

    def __init__(self, layers: Sequence[Layer], joins: Sequence[Join], norms: Sequence[nn.Module]):
        super().__init__()
        if not layers:
            raise ValueError("a block got no sublayers; give it at least one, such as Attention(...) and MLP(d)")
        check_layers(layers)
        if not len(layers) == len(joins) == len(norms):
            raise ValueError(
                f"a block of {len(layers)} sublayers got {len(joins)} joins and {len(norms)} norms; give one join and "
                "one norm for each sublayer"
            )
        self.d = layers[0].d
        widths = {layer.d for layer in layers}
        if len(widths) > 1:
            raise ValueError(f"the sublayers of a block have widths {sorted(widths)}; give all the same d")
        self.layers, self.joins, self.norms = nn.ModuleList(layers), nn.ModuleList(joins), nn.ModuleList(norms)
        self.wants, self.sends = wants_and_sends(layers, rising=False)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return tuple(layer.start(batch, length, dtype=dtype, device=device) for layer in self.layers)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        collected = Collected(ctx.replace(remember=False) if ctx.remember else ctx, state)
        last = len(self.layers) - 1
        if ctx.remember:  # y is not needed, so reading stops at the last sublayer with a state that depends on x
            has_state = [bool(leaves(old)) for old in state or ()]
            last = max(
                (n for n, stateful in enumerate(has_state) if stateful and not self.layers[n].has_source_state),
                default=-1,
            )
        for n, (layer, join, norm) in enumerate(zip(self.layers, self.joins, self.norms, strict=True)):
            if n > last:
                if state is not None and has_state[n]:
                    collected.remember(n, layer, x)
                else:
                    collected.skip(None if state is None else state[n])
                continue
            if ctx.remember and n == last:
                join(x, lambda z, n=n, layer=layer: collected.remember(n, layer, z), norm)
            else:
                x = join(x, lambda z, n=n, layer=layer: collected.call(n, layer, z), norm).y
        return collected.make_out(x)

    def read_apart(self, read: Callable[..., Out], *inputs: Tensor) -> Out:
        """Call `read(*inputs)`, a function that uses the block's sublayers, instead of the block's forward.

        A wrapper that shards the block's weights gathers them for this call too. A wrapper that recomputes the block in
        the backward pass recomputes this call too.
        """
        return read(*inputs)
