"""Probes of a member: its lowest attention head by head, and the tokens that each output depends on, by gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.parameter_noise import add_parameter_noise
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from tests.by_hand import first_read

LENGTH, VOCAB = 9, 11


class Heads(NamedTuple):
    """The lowest attention of a model and its input; queries, keys and values [T H n] by its matrices."""

    layer: Attention
    x: Float[Tensor, "T D"]

    @property
    def q(self) -> Float[Tensor, "T H K"]:
        return self._projected("q", self.layer.projection.k_dim)

    @property
    def k(self) -> Float[Tensor, "T G K"]:
        return self._projected("k", self.layer.projection.k_dim)

    @property
    def v(self) -> Float[Tensor, "T G V"]:
        return self._projected("v", self.layer.projection.v_dim)

    def _projected(self, name: str, width: int) -> Tensor:
        return F.linear(self.x, *self.layer.projection.matrix(name)).view(len(self.x), -1, width)


def check_lowest(
    model: nn.Module,
    read: Callable[[Heads, int], Float[Tensor, "T V"]],
    *,
    length: int = LENGTH,
    heads: int | None = None,
    noise: bool = True,
) -> None:
    """Compare the lowest attention with `read`, which computes by hand what one head reads of a row of random tokens.

    Parameters that start at zero get noise first, so that none of them is hidden; `noise=False` leaves them alone.
    `heads` are those that the layer joins, as many as its heads of queries unless given.
    """
    if noise:
        add_parameter_noise(model)
    with torch.no_grad():
        layer, x, y = first_read(model, torch.randint(0, VOCAB, (1, length)))
        by_head = torch.stack([read(Heads(layer, x), h) for h in range(heads or layer.sizes.heads)])
        expected = layer.aggregation(by_head[None], torch.arange(length)[None])[0]
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)


def receptive_field(model: Any, length: int = LENGTH) -> Bool[Tensor, "T T"]:
    """True at [i, j] if the logits at token i depend on the embedded token j."""
    add_parameter_noise(model)
    embedded: list[Tensor] = []
    handle = model.embedding.register_forward_hook(lambda _layer, _tokens, out: embedded.append(out))
    y = model.eval().logits(torch.randint(0, VOCAB, (1, length))).y[0]
    handle.remove()
    towards = torch.randn_like(y[0])
    gradients = [torch.autograd.grad(row @ towards, embedded[0], retain_graph=True)[0] for row in y]
    return torch.stack([gradient[0].abs().amax(-1) > 1e-12 for gradient in gradients])


def count(model: nn.Module) -> int:
    """Parameters, shared ones once."""
    return sum(weight.numel() for weight in model.parameters())


def distances(length: int = LENGTH) -> Tensor:
    """i - j of every pair of positions."""
    at = torch.arange(length)
    return at[:, None] - at


def softmax(scores: Tensor) -> Tensor:
    """Each line of exp(scores) divided by its sum."""
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def cached_numbers(model: Any) -> int:
    """Numbers of keys and values that the state of a row holds for each token."""
    return sum(leaf.numel() for _, leaf in leaves(model.eval().start(1, 8)) if leaf.dim() == 4) // 8


def first_part(model: Any, kind: type[nn.Module], length: int = LENGTH) -> tuple[Any, Tensor, Tensor]:
    """The first part of a kind, its input [T D] and its output [T D] where the model reads a row of random tokens."""
    add_parameter_noise(model)
    part = next(part for part in model.modules() if isinstance(part, kind))
    rows: list[Tensor] = []
    handle = part.register_forward_hook(lambda _part, arguments, out: rows.extend((arguments[0][0], out.y[0])))
    with torch.no_grad():
        model.eval().logits(torch.randint(0, VOCAB, (1, length)))
    handle.remove()
    return part, rows[0], rows[1]


def multi_head(layer: Any, x: Float[Tensor, "T D"], source: Float[Tensor, "S D"]) -> Float[Tensor, "T D"]:
    """softmax(q k^T / sqrt(K)) v of each head over a whole source, joined by the layer's aggregation."""
    heads = layer.sizes.heads
    q, k, v = (
        F.linear(rows, *layer.projection.matrix(name)).view(len(rows), heads, -1).transpose(0, 1)
        for name, rows in zip("qkv", (x, source, source), strict=True)
    )
    y = softmax(q @ k.mT / q.shape[-1] ** 0.5) @ v
    return layer.aggregation(y[None], torch.arange(len(x))[None])[0]
