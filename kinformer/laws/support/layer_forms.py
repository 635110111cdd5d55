"""Forms of a part: layers or models that contain an example of the part, in which laws test it.

There is one function per base class of parts. A new folder of parts with a known base class needs no change here. A new
base class needs a function and a line of the table FORMS.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

import kinformer as kf
from kinformer.core.aggregation import Aggregation
from kinformer.core.bias import Bias
from kinformer.core.feature_map import FeatureMap
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State, Want
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.memory import Memory
from kinformer.core.model import Model
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.pooler import Pooler
from kinformer.core.position import Position, Rotation
from kinformer.core.projection import Projection
from kinformer.core.residual_block import Join, ResidualBlock
from kinformer.core.score import Score
from kinformer.core.shorten import Shorten
from kinformer.core.task import Task
from kinformer.laws.foreign.support.black_box import BlackBox
from kinformer.laws.foreign.support.vocabulary import TokenFunction, vocabulary
from kinformer.laws.pattern import matrix
from kinformer.laws.support.input_batch import vary_rows
from kinformer.laws.support.subject import Subject, TrainingSubject
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV

SCORES = Want("scores", optional=True)
FAR = 16  # positions to find out whether a pattern reads ahead
Make = Callable[[], Any]
Forms = Iterator[Subject | TrainingSubject | BlackBox]


class PositionedLayer(Layer):
    """Layer that adds the vectors of a position part to its input, so that the laws can test this part.

    d: width of the layer.
    position: the position part to test, such as learned positions.
    """

    def __init__(self, d: int, position: Position):
        super().__init__()
        self.d, self.position = d, position

    def forward(self, x: Any, state: State | None, ctx: Context) -> Out:
        return Out(x + self.position(ctx.pos), state)


class PoolingLayer(Layer):
    """Layer that adds the pooled vectors of a row to each token, so that the laws can test a pooler.

    d: width of the layer.
    pooling: the pooler to test, which makes a fixed number of vectors from a row.
    """

    def __init__(self, d: int, pooling: Pooler):
        super().__init__()
        self.d, self.pooling = d, pooling

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        raise NoState("a pooler reads whole rows and has no state; use a causal layer")

    def forward(self, x: Any, state: State | None, ctx: Context) -> Out:
        if ctx.only is not None or ctx.also is not None:
            raise ValueError("a pooler reads one whole row of tokens; call it without ctx.only and ctx.also")
        vectors = self.pooling(x, ctx.pos >= 0).unflatten(1, (self.pooling.vectors, 1, self.d))
        return Out(x + vectors.sum(1), state)


def forms(part: Any, make: Make) -> list[Subject | TrainingSubject | BlackBox]:
    """Return the layers and models in which the laws test a part.

    part: an instance of the part, whose base class decides.
    make: function that builds a fresh instance of the part.
    """
    form = next((form for kind, form in FORMS.items() if isinstance(part, kind)), None)
    return [] if form is None else list(form(part, make))


def kind_of(part: Any) -> str:
    """Return the kind of a part as a word, such as "pattern" or "feature map".

    part: the part. For an object that is no part, the result is "".
    """
    contract = next((candidate for candidate in FORMS if isinstance(part, candidate)), None)
    if contract is None:
        return ""
    if contract is nn.Module and not _is_norm(part):
        return "module"
    return "".join(f" {c.lower()}" if c.isupper() else c for c in contract.__name__).strip().replace("module", "norm")


def _layer_of(mechanism: Make, *, projection: Make | None = None, **parts: Any) -> Make:
    """Return a constructor of attention with width 16 and two heads; it builds all parts afresh."""

    def make() -> Attention:
        built_parts = {name: value() if callable(value) else value for name, value in parts.items()}
        return Attention(QKV(16, 2) if projection is None else projection(), mechanism(), **built_parts)

    return make


def _stack_layers(lower: Make, upper: Make) -> Make:
    """Return a constructor of two stacked layers; the upper one receives what the lower one sends."""
    return lambda: Stack([_layer_of(mechanism)() for mechanism in (lower, upper)])


def _pattern(p: Pattern, make: Make) -> Forms:
    if p.tensors():
        p, near = vary_rows(p), Causal() & Band(1)
        for inner in (Causal(), Full()):
            place = f"{inner} under ctx.only"
            yield Subject(
                p, _layer_of(partial(Softmax, inner)), place, only=p, pattern=inner, secondary=inner == Full()
            )
        also = _layer_of(partial(Softmax, near))
        yield Subject(p, also, "ctx.also", also=p, only=Causal(), pattern=near)
        return
    causal = Causal() & p
    yield Subject(p, _layer_of(partial(Softmax, causal)), "Causal() & it", pattern=causal)
    if bool(matrix(p, FAR).triu(1).any()):  # otherwise it allows the same pairs
        yield Subject(p, _layer_of(partial(Softmax, p)), "by itself", pattern=p, secondary=True)


def _bias(bias: Bias, make: Make) -> Forms:
    return _score_forms(bias, lambda p: Softmax(p, make()))


def _score(score: Score, make: Make) -> Forms:
    return _score_forms(score, lambda p: Softmax(p, score=make()))


def _score_forms(part: Bias | Score, softmax: Callable[[Pattern], Softmax]) -> Forms:
    """Yield two-head forms with and without a state, and cross-attention with one key head."""
    for p in (Causal(), Full()):
        yield Subject(part, _layer_of(partial(softmax, p)), f"on 2 heads under {p}", secondary=p == Full())
    across = _layer_of(partial(softmax, Full()), projection=partial(QKV, 16, 2, key_heads=1), cross=True)
    yield Subject(part, across, "cross-attention, one key head", source="other", tried=True)
    if isinstance(part, Score) and SCORES in part.wants:
        above = _stack_layers(partial(Explicit, Causal(), up=True), partial(softmax, Causal()))
        yield Subject(part, above, f"above a layer that sends {SCORES.name!r}", secondary=True)


def _shorten(shorten: Shorten, make: Make) -> Forms:
    yield Subject(shorten, _layer_of(lambda: kf.Shortened(Softmax(Full()), make())), "before Softmax(Full())")


def _mechanism(mechanism: Mechanism, make: Make) -> Forms:
    """Yield forms with two key heads and one: self-attention, sources of other and of equal length."""
    one_key_head = partial(QKV, 16, 2, key_heads=1)
    yield Subject(mechanism, _layer_of(make))
    yield Subject(mechanism, _layer_of(make, projection=one_key_head), "one key head", tried=True)
    yield Subject(mechanism, _layer_of(make, cross=True), "cross-attention", source="other", tried=True)
    equal = _layer_of(make, projection=one_key_head, cross=True)
    yield Subject(mechanism, equal, "cross-attention, one key head, equal lengths", source="equal", tried=True)
    if SCORES in mechanism.wants and SCORES.name in mechanism.sends:
        yield Subject(mechanism, _stack_layers(make, make), f"above a layer that sends {SCORES.name!r}", secondary=True)


def _projection(projection: Projection, make: Make) -> Forms:
    yield Subject(projection, _layer_of(partial(Softmax, Causal()), projection=make))
    across = _layer_of(partial(Softmax, Full()), projection=make, cross=True)
    yield Subject(projection, across, "cross-attention", source="other", tried=True)


def _map(feature_map: FeatureMap, make: Make) -> Forms:
    yield Subject(feature_map, _layer_of(lambda: kf.LinearAttention(make())), "in LinearAttention")
    yield Subject(
        feature_map, _layer_of(lambda: kf.FullLinearAttention(make())), "in FullLinearAttention", secondary=True
    )


def _memory(memory: Memory, make: Make) -> Forms:
    yield Subject(memory, _layer_of(partial(Softmax, Causal() & memory.reads), memory=make))


def _rotation(rotation: Rotation, make: Make) -> Forms:
    yield Subject(rotation, _layer_of(partial(Softmax, Causal()), projection=lambda: QKV(16, 2, rotation=make())))


def _position(position: Position, make: Make) -> Forms:
    yield Subject(position, lambda: PositionedLayer(16, make()))


def _pooling(pooling: Pooler, make: Make) -> Forms:
    yield Subject(pooling, lambda: PoolingLayer(16, make()))


def _aggregation(aggregation: Aggregation, make: Make) -> Forms:
    yield Subject(aggregation, _layer_of(partial(Softmax, Causal()), aggregation=make))


def _join(join: Join, make: Make) -> Forms:
    def block() -> ResidualBlock:
        layers = [Attention(QKV(16, 2), Softmax(Causal())), MLP(16)]
        return ResidualBlock(layers, [make(), make()], [LayerNorm(16), LayerNorm(16)])

    yield Subject(join, block)


def _layer(layer: Layer, make: Make) -> Forms:
    if not hasattr(layer, "d"):
        raise AttributeError(f"{type(layer).__name__} has no width d; set self.d in __init__")
    across = any(isinstance(module_part, Attention) and module_part.cross for module_part in layer.modules())
    yield Subject(layer, make, width=layer.d, source=_source(across))


def _model(model: Any, make: Make) -> Forms:
    if hasattr(model, "logits"):
        yield Subject(model, make, width=model.d, vocab=model.vocab, source=_source(hasattr(model, "encoder")))
    yield TrainingSubject(model, make)


def _source(reads_one: bool) -> Literal["", "other"]:
    return "other" if reads_one else ""


def _task(task: Task, make: Make) -> Forms:
    """Yield nothing: a task is judged by itself."""
    yield from ()


def _module(module: nn.Module, make: Make) -> Forms:
    """Yield a block if the module is a norm, or the model of another library if it has a vocabulary."""
    if isinstance(module, TokenFunction) or vocabulary(module) is not None:
        yield BlackBox(module, make)
    elif _is_norm(module):
        block = partial(PreNorm, norm=lambda d: make())
        yield Subject(module, lambda: block(Attention(QKV(16, 2), Softmax(Causal())), MLP(16)))


def _is_norm(module: nn.Module) -> bool:
    """Return True if a module takes one tensor and keeps its shape."""
    try:
        return bool(module(torch.zeros(1, 2, 16)).shape == (1, 2, 16))
    except Exception:
        return False


# the first class that matches decides; plain modules come last
FORMS: dict[type, Callable[[Any, Make], Forms]] = {
    Pattern: _pattern,
    Bias: _bias,
    Score: _score,
    Shorten: _shorten,
    Mechanism: _mechanism,
    Projection: _projection,
    FeatureMap: _map,
    Memory: _memory,
    Rotation: _rotation,
    Position: _position,
    Pooler: _pooling,
    Aggregation: _aggregation,
    Join: _join,
    Layer: _layer,
    Model: _model,
    Task: _task,
    nn.Module: _module,
}
