"""AxialDecoder: the equations of Ho et al. by loops over rows and columns, and what reaches what."""

import math

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.layer import Context
from kinformer.members.axial_transformer import TINY, axial_transformer
from kinformer.models.image import ImageModel
from kinformer.nn.depth.axial import EXAMPLES, AxialDecoder

PLANES = (3, 2, 4)


def make_image(shape: tuple[int, ...]) -> ImageModel:
    torch.manual_seed(0)
    model = axial_transformer(**{**TINY, "shape": shape, "outer": 2, "inner": 2}).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def line(attention: nn.Module, x: Tensor, masked: bool) -> Tensor:
    """Two heads over one line [n d], query by query."""
    q, k, v = (part.unflatten(-1, (2, -1)) for part in attention.projection.qkv(x).chunk(3, -1))
    rows = []
    for i in range(len(x)):
        end, heads = i + 1 if masked else len(x), []
        for h in range(2):
            weights = (k[:end, h] @ q[i, h] / math.sqrt(q.shape[-1])).softmax(0)
            heads.append(weights @ v[:end, h])
        rows.append(attention.aggregation.linear(torch.cat(heads)))
    return torch.stack(rows)


def block(layer: nn.Module, x: Tensor, axis: int, masked: bool) -> Tensor:
    """A pre-norm block on an array [H W d], its attention along one axis."""
    normed = layer.norms[0](x)
    lines = normed.unbind(1 - axis)
    x = x + torch.stack([line(layer.layers[0], each, masked) for each in lines], 1 - axis)
    mlp = layer.layers[1]
    return x + mlp.down(nn.functional.gelu(mlp.up(layer.norms[1](x))))


def outer(stack: nn.Module, x: Tensor, masked: bool) -> Tensor:
    """Pairs of row and column attention; of the columns a mask, if any."""
    for n, layer in enumerate(stack.layers):
        x = block(layer, x, 1 - n % 2, masked and n % 2 == 1)
    return stack.norm(x)


@pytest.mark.parametrize("shape", [(1, 4, 3), PLANES])
@torch.no_grad()
def test_it_is_the_papers_algorithm(shape: tuple[int, ...]) -> None:
    """h = Embed(x); u = outer(h + p); h = inner(ShiftDown(u) + ShiftRight(h) + p'), plane by plane."""
    model = make_image(shape)
    planes, rows, columns = shape
    pixels, _ = model.sample(1, 0, 4)
    body = model.body
    assert isinstance(body, AxialDecoder)
    at = torch.arange(model.steps)[None]
    p, side = (part(at)[0].view(planes, rows, columns, -1) for part in (body.position, body.beside))
    outputs, decoded = [], torch.zeros(rows, columns, 16, dtype=torch.double)
    for n in range(planes):
        h = model.values.embedding(pixels[0, n].long())
        encoded = outer(body.encoder, decoded, False) if n else torch.zeros_like(h)
        u = outer(body.outer, h + p[n] + encoded, True)
        down, right = torch.zeros_like(u), torch.zeros_like(h)
        down[1:], right[:, 1:] = u[:-1], h[:, :-1]
        x = down + right + encoded + side[n]
        for part in body.inner.layers:
            x = block(part, x, 1, True)
        outputs.append(body.inner.norm(x))
        decoded = decoded + h + p[n]
    y = model.predict(model.inputs((pixels, torch.zeros(1).long()))[0])[0]
    assert torch.allclose(torch.stack(outputs).flatten(0, 2), y, atol=1e-9)


@pytest.mark.parametrize("shape", [(1, 4, 3), PLANES])
@torch.no_grad()
def test_a_value_reaches_all_that_come_after_it_and_none_before(shape: tuple[int, ...]) -> None:
    model = make_image(shape)
    values, _ = model.inputs(model.sample(1, 0, 2))
    variants = values.repeat(model.steps, 1, 1)
    at = torch.arange(model.steps)
    variants[at, at] = (variants[at, at] + 100) % 256  # in row t another value at step t
    changed = (model.predict(variants) - model.predict(values)).abs().amax(2)
    reached = at[:, None] < at
    assert (changed[~reached] < 1e-10).all() and (changed[reached] > 1e-9).all()


@torch.no_grad()
def test_what_is_drawn_step_by_step_is_what_the_whole_says() -> None:
    model = make_image(PLANES)
    pixels = model.draw(2, temperature=0.0)
    values = model.rows(pixels)
    assert torch.equal(model.values.head(model.predict(values)).argmax(-1, keepdim=True), values)
    assert torch.equal(values[0, :8, 0].view(2, 4), pixels[0, 0].long())  # a channel after the other


def test_the_outer_layers_are_read_once_a_row() -> None:
    torch.manual_seed(0)
    decoder, count = EXAMPLES[0]().eval(), 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    decoder.outer.register_forward_hook(note)
    x, state = torch.randn(2, 14, 16), decoder.start(2, 14)
    for t in range(14):
        state = decoder(x[:, t : t + 1], state, Context(torch.full((2, 1), t), run=True, full=True)).state
    assert count == 3  # rows of 4 that are done at positions 4, 8 and 12


def test_what_makes_no_sense_is_one_line() -> None:
    decoder = EXAMPLES[0]()
    with pytest.raises(ValueError, match="must be given together"):
        AxialDecoder(decoder.outer, decoder.inner, 4, planes=2)
    with pytest.raises(ValueError, match="columns=0"):
        AxialDecoder(decoder.outer, decoder.inner, 0)
    with pytest.raises(ValueError, match="these values are whole pixels"):
        from kinformer.models.support.logistic_mixture import LogisticMixture

        ImageModel((2, 4, 4), LogisticMixture(16, 2), decoder, planes=True)
