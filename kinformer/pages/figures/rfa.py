"""The figure `rfa`: estimates of a Gaussian kernel by angle, and weights with a gate that closes."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms.linear import AdditiveUpdate, GatedUpdate, LinearAttention
from kinformer.nn.mechanisms.state_update import StateUpdate
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, of_most, shades

X, Y, ACROSS, DOWN = 10, 0, 72, 15  # left and upper end of the curves, their columns and lines
RANGE = (-0.5, 1.0)  # kernel values at the lower and the upper end
CLOSED = 4  # token whose gate lets 5 percent of the past through
OPEN_LOGIT, CLOSED_LOGIT = 2.0, -3.0


def draw() -> Iterator[Diagram | Picture]:
    """Yield the exact and the estimated kernel, then weights without a gate and with one."""
    yield _kernels()
    yield _gates()


def _kernels() -> Diagram:
    counts = (4, 64)
    diagram = Diagram(
        "Gaussian kernel of two unit vectors by their angle, and one draw of its estimate",
        kinds=("exact", *(f"{count} directions" for count in counts)),
        note="sigma = 1. Estimates may be negative. The error falls as 1 / sqrt(number of directions).",
    )
    diagram.line((X, _line(RANGE[1])), (X, _line(RANGE[0])))
    diagram.line((X, _line(0)), (X + ACROSS, _line(0)))
    for value in (1.0, 0.5, 0.0, -0.5):
        label = f"{value:.1f}"
        diagram.words(X - 2 - len(label), round(_line(value)), label)
    for angle in range(0, 181, 30):
        label = str(angle)
        diagram.words(round(_column(angle)) - len(label) // 2, Y + DOWN + 1, label)
    diagram.words(X + ACROSS - 17, Y + DOWN + 2, "angle in degrees")
    angles = torch.arange(0.0, 181.0, 5.0)
    rad = angles.deg2rad()
    vectors = torch.stack([rad.cos(), rad.sin()], 1)
    exact = (-(vectors[0] - vectors).square().sum(1) / 2).exp()
    estimates = [_products(RandomFourier(1, 2, count), vectors)[0] for count in counts]
    for kind, values in enumerate((exact, *estimates), start=1):
        points = zip(angles.tolist(), values.clamp(*RANGE).tolist(), strict=True)
        diagram.line(*((_column(angle), _line(value)) for angle, value in points), kind=kind)
    return diagram


def _products(map: RandomFourier, x: Float[Tensor, "T K"]) -> Float[Tensor, "T T"]:
    with torch.no_grad():
        phi = map(x[None, None], True)[0][0, 0]
    return phi @ phi.mT


def _gates() -> Picture:
    logits = torch.full((len(TOKENS),), OPEN_LOGIT)
    logits[CLOSED] = CLOSED_LOGIT
    gates = logits.sigmoid()
    panels = tuple(
        shades(title, of_most(_weights(update, logits).clamp_min(0), 1), TOKENS, TOKENS)
        for title, update in (("no gate", AdditiveUpdate()), ("gated", GatedUpdate()))
    )
    return Picture(
        f"causal weights with 256 directions; the gate is {gates[CLOSED]:.2f} at the ({CLOSED}) "
        f"and {gates[0]:.2f} at the other tokens",
        (),
        panels,
        note="Each row is divided by its largest weight. Tokens before the closed gate have almost no weight.",
    )


def _weights(update: StateUpdate, logits: Float[Tensor, " T"]) -> Float[Tensor, "T T"]:
    x = token_vectors()
    ctx = Context.of_sequence(x[None])
    keys = Keys(x[None, None], torch.eye(len(x))[None, None], ctx.pos[:, None], {"gate": logits[None, None, :, None]})
    linear = LinearAttention(RandomFourier(1, 2, 256), update).eval()
    with torch.no_grad():
        read = linear(Queries(x[None, None], ctx.pos[:, None]), keys, None, ctx)
    return read.y.y[0, 0]


def _column(angle: float) -> float:
    return X + ACROSS * angle / 180


def _line(value: float) -> float:
    low, high = RANGE
    return Y + DOWN * (high - value) / (high - low)
