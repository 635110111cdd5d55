"""Pictures: what their loss is, step by step in the order of generation, and that drawing follows it."""

import math

import pytest
import torch

from kinformer.lab.train.fit import fit
from kinformer.lab.train.reads_ahead import leaks, reads_ahead
from kinformer.models.image import EXAMPLES, ImageModel
from kinformer.models.support.categorical_intensities import CategoricalIntensities
from kinformer.models.support.intensities import Intensities
from kinformer.models.support.logistic_mixture import LogisticMixture

BLOCKED, ENLARGING = EXAMPLES


def make_image(n: int) -> ImageModel:
    torch.manual_seed(n)
    return EXAMPLES[n]().double().eval()


def steps(shape: tuple[int, ...], block: tuple[int, int], n: int) -> list[list[tuple[int, int, int]]]:
    """The places (channel, row, column) of each step, by loops over blocks, rows, columns and channels."""
    (channels, rows, columns), (h, w) = shape, block
    pixels = [
        (top + r, left + c)
        for top in range(0, rows, h)
        for left in range(0, columns, w)
        for r in range(h)
        for c in range(w)
    ]
    one_by_one = [(channel, *pixel) for pixel in pixels for channel in range(channels)]
    return [one_by_one[at : at + n] for at in range(0, len(one_by_one), n)]


@torch.no_grad()
@pytest.mark.parametrize(("n", "block"), [(0, (2, 1)), (1, (1, 1))])
def test_bits_are_those_of_each_step_given_the_steps_before_it(n: int, block: tuple[int, int]) -> None:
    """A loop that reads the picture anew for each step, and of it nothing that comes later."""
    model = make_image(n)
    pixels, labels = model.sample(2, 0, 3)
    source = {} if model.encoder is None else {"source": model.downsample(pixels)}
    places = steps(model.shape, block, model.values.n)
    values = torch.tensor([[[int(row[place]) for place in step] for step in places] for row in pixels])
    bits = 0.0
    for t in range(values.shape[1]):
        y = model.predict(values[:, : t + 1], **source)[:, t:]
        bits += float(model.values.nll(y, values[:, t : t + 1]).sum()) / math.log(2)
    total, count = model.judge((pixels, labels)).totals["bits per dimension"]
    assert int(count) == pixels.numel() and math.isclose(float(total), bits, rel_tol=1e-12)
    loss = model((pixels, labels))
    assert math.isclose(float(loss.total) / math.log(2), bits / pixels.numel(), rel_tol=1e-6)


@pytest.mark.parametrize("n", [0, 1])
def test_the_boldest_picture_is_the_likeliest_of_each_step(n: int) -> None:
    """Drawn one by one with a state, at temperature 0; said again of the whole picture at once without one."""
    model = make_image(n)
    source = model.downsample(model.sample(2, 0, 1)[0])
    pixels = model.draw(2, temperature=0.0, source=source)
    values = model.rows(pixels)
    y = model.predict(values, **({} if source is None else {"source": source}))
    predicted = [model.values.draw(y[:, t], torch.full((2, model.values.draws), 0.5), 0.0) for t in range(model.steps)]
    assert torch.equal(torch.stack(predicted, 1), values) and torch.equal(model.pictures(values), pixels)


def test_a_picture_of_a_batch_is_drawn_as_it_would_be_alone() -> None:
    model = make_image(0)
    model.train().dropout = 0.5  # drawing knows none
    pictures = model.draw(2, seed=5)
    assert model.training
    assert torch.equal(pictures[1:], model.draw(1, seed=6)) and not torch.equal(pictures[:1], pictures[1:])


@pytest.mark.parametrize("n", [0, 1])
def test_it_is_tried_for_what_reads_ahead(n: int) -> None:
    from kinformer.core.patterns.full import Full
    from kinformer.nn.mechanisms.softmax import Softmax

    model = make_image(n)
    assert reads_ahead(model, 24) == ""
    (own,) = (part for part in model.body.layers[0].modules() if isinstance(part, Softmax))
    own.pattern = Full()
    assert leaks(model, 24)
    with pytest.raises(ValueError, match="reads ahead"):
        reads_ahead(model, 24)


def test_each_channel_has_vectors_of_its_own() -> None:
    """As the Image Transformer wants it, whether a picture goes in at once, in blocks, or a step at a time."""
    model = make_image(0)
    assert isinstance(model.values, CategoricalIntensities)
    tables = model.values.embedding.weight.view(3, 256, 16)
    pixels = model.sample(1, 0, 2)[0]
    values = model.rows(pixels)
    whole = model.values.embed(values)[0]
    for t, ((place,), x) in enumerate(zip(steps((3, 4, 2), (2, 1), 1), whole, strict=True)):
        assert torch.equal(x, tables[place[0], int(pixels[0][place])])
        assert torch.equal(model.values.embed(values[:, t : t + 1], t)[0, 0], x)


@torch.no_grad()
@pytest.mark.parametrize("temperature", [5e-324, 1e-50, 1e-37, 1e-3])
def test_a_cold_draw_of_intensities_is_the_likeliest(temperature: float) -> None:
    torch.manual_seed(0)
    values, y = CategoricalIntensities(8), 50 * torch.randn(20, 8)
    likeliest = [row.index(max(row)) for row in values.head(y).tolist()]
    assert values.draw(y, torch.rand(20, 1), temperature)[:, 0].tolist() == likeliest


def mixture(values: LogisticMixture, y: torch.Tensor, pixel: list[int]) -> float:
    """p(pixel) from the formula, by loops and the logistic function itself."""
    numbers = values.head(y).tolist()
    m, c = values.mixtures, values.n
    take = iter(range(len(numbers)))
    parts = [[numbers[next(take)] for _ in range(m)] for _ in range(1 + 2 * c + c * (c - 1) // 2)]
    weights, means, scales, factors = parts[0], parts[1 : 1 + c], parts[1 + c : 1 + 2 * c], iter(parts[1 + 2 * c :])
    factors = [[next(factors) for _ in range(channel)] for channel in range(c)]
    whole, x = 0.0, [value * 2 / 255 - 1 for value in pixel]
    for k in range(m):
        p = math.exp(weights[k]) / sum(math.exp(w) for w in weights)
        for channel in range(c):
            mean = means[channel][k] + sum(math.tanh(factors[channel][b][k]) * x[b] for b in range(channel))

            def below(at: float, mean: float = mean, scale: float = scales[channel][k]) -> float:
                return 1 / (1 + math.exp(-(at - mean) / math.exp(max(scale, -7.0))))

            upper = 1.0 if pixel[channel] == 255 else below(x[channel] + 1 / 255)
            p *= upper - (0.0 if pixel[channel] == 0 else below(x[channel] - 1 / 255))
        whole += p
    return whole


@torch.no_grad()
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_mixture_of_logistics_is_the_papers_formula(channels: int) -> None:
    torch.manual_seed(0)
    values = LogisticMixture(8, channels, 3).double()
    y = torch.randn(8, dtype=torch.double) * 2
    pixels = torch.randint(256, (20, channels)).tolist() + [[0] * channels, [255] * channels]
    nll = values.nll(y.expand(1, len(pixels), -1), torch.tensor(pixels)[None])[0]
    for pixel, value in zip(pixels, nll.tolist(), strict=True):
        assert math.isclose(math.exp(-value), mixture(values, y, pixel), rel_tol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize("sharp", [0.0, -9.0])
def test_the_probabilities_of_all_pixels_make_one(sharp: float) -> None:
    """Also where the scale is a fraction of a bin, where a density would be far off."""
    torch.manual_seed(1)
    values = LogisticMixture(4, 2, 2).double()
    values.head.bias.data[2 * 3 : 2 * 5] = sharp  # the log scales
    at = torch.arange(256)
    pixels = torch.cartesian_prod(at, at)
    y = torch.randn(4, dtype=torch.double).expand(1, len(pixels), -1)
    assert math.isclose(float((-values.nll(y, pixels[None])).exp().sum()), 1.0, rel_tol=1e-9)


@pytest.mark.parametrize("make", [lambda: CategoricalIntensities(4), lambda: LogisticMixture(4, 1, 3)])
def test_what_is_drawn_is_as_frequent_as_it_is_likely(make) -> None:
    torch.manual_seed(2)
    values: Intensities = make().double()
    y = torch.randn(4, dtype=torch.double)
    count = 20_000
    sampled = values.draw(y.expand(count, -1), torch.rand(count, values.draws, dtype=torch.double), 1.0)[:, 0]
    p = (-values.nll(y.expand(1, 256, -1), torch.arange(256)[None, :, None])).exp()[0].detach()
    for lo, hi in ((0, 1), (0, 60), (60, 128), (128, 200), (200, 256), (255, 256)):
        share, frequency = float(p[lo:hi].sum()), float(((sampled >= lo) & (sampled < hi)).double().mean())
        assert abs(frequency - share) < 5 * (share * (1 - share) / count) ** 0.5 + 1e-9


def test_a_label_adds_its_vector_to_every_step() -> None:
    """Read at once, and a step at a time at temperature 0, where the likeliest of each step is drawn."""
    plain = make_image(0)
    model = (
        ImageModel((3, 4, 2), plain.values, plain.body, position=plain.position, block=(2, 1), classes=3)
        .double()
        .eval()
    )
    assert model.classes is not None
    torch.nn.init.normal_(model.classes.weight)
    pixels, label = model.sample(2, 0, 4)[0], torch.tensor([2, 0])
    values, condition = model.inputs((pixels, label))
    read: list[torch.Tensor] = []
    handle = model.body.register_forward_pre_hook(lambda body, inputs: read.append(inputs[0]))
    model.predict(values, **condition), plain.predict(values)
    handle.remove()
    torch.testing.assert_close(read[0], read[1] + model.classes.weight[label][:, None])
    pictures = model.draw(2, temperature=0.0, label=label)
    y = model.predict(model.rows(pictures), label=label)
    predicted = [model.values.draw(y[:, t], torch.full((2, 1), 0.5), 0.0) for t in range(model.steps)]
    assert torch.equal(model.pictures(torch.stack(predicted, 1)), pictures)
    with pytest.raises(ValueError, match="label 3 is out of range: classes=3 allows 0 to 2; make classes larger"):
        model((pixels, label + 1))
    with pytest.raises(ValueError, match="label is missing, but this model needs the class of each image"):
        model.draw(1)
    with pytest.raises(ValueError, match="label is given, but this model has no classes"):
        plain.draw(1, label=label[:1])


def test_wrong_pictures_are_one_line() -> None:
    model = make_image(0)
    with pytest.raises(ValueError, match=r"wrong shape \[C, H, W\]: got \[1, 4, 2\], expected \[3, 4, 2\]"):
        model.rows(torch.zeros(1, 1, 4, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match="source is given, but this model has no encoder"):
        model.draw(1, source=torch.zeros(1, 3, 2, 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="source is missing, but this model needs smaller images"):
        make_image(1).draw(1)
    for shape, block, says in (((3, 4), (1, 1), "is not three numbers"), ((3, 5, 2), (2, 1), "rows of a picture=5")):
        with pytest.raises(ValueError, match=says):
            ImageModel(shape, CategoricalIntensities(16), model.body, block=block)


def test_it_learns_a_picture_by_heart() -> None:
    """A few steps of training, through the loop that commands use."""
    torch.manual_seed(0)
    model = BLOCKED()
    batch = model.sample(1, 0, 7)
    batch = (batch[0].expand(4, -1, -1, -1), batch[1].expand(4))
    before = model(batch).total.item()
    fit(model, [batch], steps=40, lr=1e-2)
    assert abs(before - math.log(256)) < 0.1 * math.log(256) and model(batch).total.item() < before / 2
