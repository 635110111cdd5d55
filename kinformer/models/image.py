"""ImageModel: generates pictures one value or one pixel at a time."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import (
    check_at_least,
    check_flag,
    check_in_range,
    check_multiple,
    check_optional_part,
    check_part,
    check_probability,
    check_whole_numbers,
)
from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State, make_state_spec
from kinformer.core.loss import Loss, Weight, check_known_penalties, sum_over_layers, weighted_loss
from kinformer.core.model import EvaluationSums, Metric, Predictor
from kinformer.core.position import Position
from kinformer.core.raster import Raster
from kinformer.core.state import share_positions
from kinformer.core.sublayer_names import add_prefix
from kinformer.models.support.categorical_intensities import CategoricalIntensities
from kinformer.models.support.intensities import Intensities
from kinformer.models.support.logistic_mixture import LogisticMixture

ImageBatch = tuple[UInt8[Tensor, "B C H W"], Int[Tensor, " B"]]
Pixels = UInt8[Tensor, "B C H W"]


class ImageModel(Predictor):
    """Autoregressive model of pictures, with optional classes and super-resolution.

    p(picture) = product over steps of p(step | earlier steps)

    A step is one channel of a pixel or a whole pixel, depending on `values`. Steps go row by row or block by block. To
    predict step t, the body reads the embedding of step t - 1 at position t; the first step reads zeros. Positions
    therefore count in the order of generation, which the pattern `Image2D` in a body relies on.

    shape: channels, rows and columns of every picture.
    values: part that embeds the intensities of a step and gives their distribution: `CategoricalIntensities(d)` or
        `LogisticMixture(d, channels)`.
    body: causal layers; with an encoder, layers with `cross=True` read its output.
    position: position that is added to embedded steps.
    block: rows and columns, in pixels, of the blocks in which a picture is generated; (1, 1) goes row by row.
    planes: True generates all of one channel before the next, False one pixel after the other. It needs `values` that
        make each channel a step.
    encoder: layers that read a smaller copy of the picture, row by row, for super-resolution.
    factor: side of the picture divided by the side of the copy; the pixels of the copy are rounded means.
    source_position: position that is added to the embedded steps of the copy.
    classes: number of classes of pictures; the vector of a picture's class is added to every step. 0 means no classes.
    dropout: dropout probability of the embedded steps.
    penalties: weights of the body's auxiliary losses, keyed by the last part of their names.

    Errors: ValueError for a shape that `block` or `factor` does not divide, for pictures of another shape, and for a
    class number of a picture that is not below `classes`.
    Source: Parmar et al., 2018, arXiv:1802.05751; Child et al., 2019, arXiv:1904.10509.
    """

    reads: ClassVar[str] = "images"
    metric = Metric("bits per dimension", "bits")
    order: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        values: Intensities,
        body: Layer,
        *,
        position: Position | None = None,
        block: tuple[int, int] = (1, 1),
        planes: bool = False,
        encoder: Layer | None = None,
        factor: int = 4,
        source_position: Position | None = None,
        classes: int = 0,
        dropout: float = 0.0,
        penalties: Mapping[str, Weight] | None = None,
    ):
        super().__init__()
        self.shape, self.factor = check_shape(shape), check_at_least("factor", factor, 2)
        self.values = check_part(
            "values", values, Intensities, "CategoricalIntensities(d) or LogisticMixture(d, channels)"
        )
        self.body = check_part("body", body, Layer, "a layer, such as Stack([PreNorm(Attention(...), MLP(d))])")
        example = "a position, such as Coordinates(d, rows, columns)"
        self.position, self.beside = (
            choice if choice is None else check_part("position", choice, Position, example)
            for choice in (position, source_position)
        )
        self.encoder = check_optional_part("encoder", encoder, Layer, "a layer, such as Stack([...])")
        self.dropout = check_probability("dropout", dropout)
        self.classes = nn.Embedding(classes, body.d) if check_at_least("classes", classes, 0) else None
        if self.classes is not None:
            nn.init.normal_(self.classes.weight, std=0.02)
        channels, rows, columns = self.shape
        if check_flag("planes", planes):
            if values.n > 1:
                raise ValueError(
                    "planes=True generates one channel after another, but these values are whole pixels; give "
                    "CategoricalIntensities"
                )
            channels, rows = 1, channels * rows
        self.laid = channels, rows, columns
        width, wide = columns * channels // values.n, block[1] * channels // values.n
        check_multiple("rows of a picture", rows, "rows of a block", block[0])
        self.steps = rows * width
        row, column = Raster(width, (block[0], wide)).row_and_column(torch.arange(self.steps, device="cpu"))
        self.register_buffer("order", row * width + column, persistent=False)
        if encoder is not None:
            (
                check_multiple("rows of a picture", rows, "factor", factor),
                check_multiple("columns of a picture", columns, "factor", factor),
            )
        for part in (body, *([] if encoder is None else [encoder])):
            self.refuse_unmet(part)
        self.penalties = check_known_penalties(penalties or {}, (body, encoder, position, source_position))

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        """Return the body's state before the first step, sized for a whole picture; `length` is ignored."""
        new = make_state_spec(self, batch, length, dtype, device)
        return share_positions(self.body.start(batch, self.steps, dtype=new.dtype, device=new.device))

    def rows(self, pixels: Pixels) -> Int[Tensor, "B T n"]:
        """Return the values of each step in the order of generation.

        pixels: pictures.

        Errors: ValueError for pictures of another shape.
        """
        if tuple(pixels.shape[1:]) != self.shape:
            raise ValueError(
                f"images have the wrong shape [C, H, W]: got {list(pixels.shape[1:])}, expected {list(self.shape)}"
            )
        return to_raster(pixels.reshape(-1, *self.laid), self.values.n)[:, self.order]

    def pictures(self, values: Int[Tensor, "B T n"]) -> Pixels:
        """Return pictures from the values of their steps, the inverse of `rows`.

        values: values of each step in the order of generation.
        """
        raster = torch.empty_like(values)
        raster[:, self.order] = values
        channels, rows, columns = self.laid
        laid = raster.view(-1, rows, columns, channels).permute(0, 3, 1, 2)
        return laid.reshape(-1, *self.shape).to(torch.uint8)

    def downsample(self, pixels: Pixels) -> UInt8[Tensor, "B C h w"] | None:
        """Return the smaller copy that the encoder reads, or None without an encoder.

        pixels: pictures.
        """
        if self.encoder is None:
            return None
        return F.avg_pool2d(pixels.float(), self.factor).round().to(torch.uint8)

    def inputs(self, batch: ImageBatch) -> tuple[Int[Tensor, "B T n"], dict[str, Any]]:
        """Return the values of each step, and the smaller copies and class numbers that the model reads."""
        small = self.downsample(batch[0])
        conditions: dict[str, Any] = {} if small is None else {"source": small}
        return self.rows(batch[0]), conditions if self.classes is None else {**conditions, "label": batch[1]}

    def predict(self, steps: Int[Tensor, "B T n"], **conditions: Any) -> Float[Tensor, "B T D"]:
        """Return the body's output at each step, given the steps before it.

        `values` turns the output into distributions.
        """
        return self._run(steps, **conditions).y

    def _run(
        self,
        values: Int[Tensor, "B T n"],
        source: UInt8[Tensor, "B C h w"] | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> Out:
        ctx = self._context(len(values), 0, values.shape[1], values.device)
        x = F.pad(self.values.embed(values[:, :-1]), (0, 0, 1, 0)) + self._label_vectors(label)
        encoded, ctx = self._encode_source(source, ctx)
        out = self._read(x, None, ctx)
        if encoded is None:
            return out
        return out._replace(
            aux={**add_prefix("encoder", encoded.aux), **out.aux},
            stats={**add_prefix("encoder", encoded.stats), **add_prefix("body", out.stats)},
        )

    def forward(self, batch: ImageBatch, state: State | None = None, progress: float = 0.0) -> Loss:
        values, conditions = self.inputs(batch)
        out = self._run(values, **conditions)
        nll = self.values.nll(out.y, values).sum() / values.numel()
        sums = sum_over_layers(out.aux, torch.ones_like(values[..., 0], dtype=torch.bool))
        return Loss(
            weighted_loss(nll, sums, self.penalties, progress), {"nll": nll, **sums}, None, out.stats, values.numel()
        )

    def judge(self, batch: ImageBatch, state: State | None = None) -> EvaluationSums:
        """Return the summed bits of all values (channels of pixels), and the number of values."""
        values, conditions = self.inputs(batch)
        bits = self.values.nll(self.predict(values, **conditions), values).double().sum() / math.log(2)
        return EvaluationSums({self.metric.name: (bits, torch.tensor(values.numel(), device=bits.device))})

    def sample(self, rows: int, length: int, seed: int) -> ImageBatch:
        """Return pictures of noise, to test the model with; the model sets their size, so `length` is ignored."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(256, (rows, *self.shape), generator=generator).to(torch.uint8), torch.zeros(rows).long()

    def draw(
        self,
        rows: int,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        source: UInt8[Tensor, "B C h w"] | None = None,
        label: Int[Tensor, " B"] | None = None,
        on_step: Callable[[int], None] = lambda step: None,
    ) -> Pixels:
        """Generate pictures step by step with a state. The model runs in eval mode and its mode is restored.

        rows: number of pictures.
        temperature: 0 takes the most likely value each time; 1 samples from the model's distribution.
        seed: seed of the first picture. Each further picture has the next seed, so it does not depend on the others.
        source: smaller copies that the encoder reads, if the model has one.
        label: class of each picture, if the model has classes.
        on_step: function that is called with the number of each step.

        Errors: ValueError for a source without an encoder, for a label without classes, for a missing source or label,
        and if the model's output is NaN.
        """
        check_at_least("rows", rows, 1), check_in_range("temperature", temperature, 0, math.inf, open_end=True)
        dice = [torch.Generator().manual_seed(seed + row) for row in range(rows)]
        with evaluating(self):
            return self.pictures(self._draw_steps(dice, temperature, source, label, on_step))

    def _draw_steps(
        self,
        dice: Sequence[torch.Generator],
        temperature: float,
        source: UInt8[Tensor, "B C h w"] | None,
        label: Int[Tensor, " B"] | None,
        on_step: Callable[[int], None],
    ) -> Int[Tensor, "B T n"]:
        """Draw the values of the steps in order, each row with its own random generator."""
        rows, device = len(dice), self.order.device
        state, steps = (
            self.start(rows, self.steps),
            torch.zeros(rows, self.steps + 1, self.values.n, device=device).long(),
        )
        _, ctx = self._encode_source(source, self._context(rows, 0, 1, device))
        label_vectors = self._label_vectors(label)
        for step in range(self.steps):
            last = steps[:, step : step + 1]
            x = self.values.embed(last, step - 1) * bool(step) + label_vectors  # the first step reads zeros
            out = self._read(x, state, ctx)
            if bool(out.y.isnan().any()):
                raise ValueError("the logits of a pixel are NaN: the weights are damaged or too large")
            uniform = torch.stack([torch.rand(self.values.draws, generator=generator) for generator in dice]).to(device)
            steps[:, step + 1] = self.values.draw(out.y[:, 0], uniform, temperature)
            state, ctx = out.state, self._context(rows, step + 1, step + 2, device)
            on_step(step)
        return steps[:, 1:]

    def _label_vectors(self, label: Int[Tensor, " B"] | None) -> Float[Tensor, "B 1 D"] | float:
        """Return the vector that is added to every step of each picture."""
        if (label is None) is not (self.classes is None):
            expected = "has no classes" if self.classes is None else "needs the class of each image"
            raise ValueError(f"label is {'missing' if label is None else 'given'}, but this model {expected}")
        if label is None or self.classes is None:
            return 0.0
        count = len(self.classes.weight)
        if not torch.compiler.is_compiling() and bool((label >= count).any()):
            raise ValueError(
                f"label {int(label.max())} is out of range: classes={count} allows 0 to {count - 1}; make classes "
                "larger than the highest label"
            )
        return self.classes(label)[:, None]

    def _context(self, rows: int, first: int, end: int, device: torch.device) -> Context:
        return Context(torch.arange(first, end, device=device).expand(rows, -1), run=True, full=True)

    def _read(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        x = x if self.position is None else x + self.position(ctx.pos)
        out = self.body(F.dropout(x, self.dropout, self.training), state, ctx)
        ctx.memo.settle()
        return out

    def _encode_source(self, source: UInt8[Tensor, "B C h w"] | None, ctx: Context) -> tuple[Out | None, Context]:
        """Return the encoder's output for the smaller copies, and the context that includes it."""
        if (source is None) is not (self.encoder is None):
            expected = "has no encoder" if self.encoder is None else "needs smaller images as its source"
            raise ValueError(f"source is {'missing' if source is None else 'given'}, but this model {expected}")
        if source is None or self.encoder is None:
            return None, ctx
        values = to_raster(source, self.values.n)
        source_ctx = self._context(len(values), 0, values.shape[1], values.device)
        x = self.values.embed(values)
        encoded = self.encoder(x if self.beside is None else x + self.beside(source_ctx.pos), None, source_ctx)
        source_ctx.memo.settle()
        return encoded, ctx.replace(source=encoded.y, source_pos=source_ctx.pos, full=ctx.full and source_ctx.full)


def check_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the channels, rows and columns of a picture, after checking them.

    shape: three whole numbers of at least 1.

    Errors: ValueError for another count of numbers.
    """
    if len(check_whole_numbers("shape", shape, 1)) != 3:
        raise ValueError(f"shape={shape} is not three numbers; give channels, rows and columns, such as (1, 28, 28)")
    channels, rows, columns = shape
    return channels, rows, columns


def to_raster(pixels: Pixels, n: int) -> Int[Tensor, "B T n"]:
    """Return pictures as steps of n values: row by row, pixel by pixel, channel by channel.

    pixels: pictures.
    n: number of values in a step.
    """
    return pixels.permute(0, 2, 3, 1).reshape(len(pixels), -1, n).long()


def _example() -> ImageModel:

    body = kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Image2D(6, (2, 3), (1, 2)))))
    values = CategoricalIntensities(16, channels=3)
    return ImageModel((3, 4, 2), values, body, position=kf.Halves(16, 4, 2, 3, block=(2, 1)), block=(2, 1))


def _larger() -> ImageModel:

    source = kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full()), cross=True)
    body = kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Image1D(4, 3))), source)
    encoder = kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full())))
    return ImageModel((2, 4, 4), LogisticMixture(16, 2, 3), body, encoder=encoder, factor=2)


EXAMPLES = (_example, _larger)
