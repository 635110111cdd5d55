"""Law neighbours: earlier layers of the same call do not change the result of a layer.

Layers of a call share a context, which caches results such as masks. Results of other layers must not be mistaken for
results of this layer.
"""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from kinformer.core.layer import Layer
from kinformer.core.mechanism import Mechanism
from kinformer.core.memory import Memory
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.core.state import share_positions
from kinformer.laws.support.comparisons import agree_out
from kinformer.laws.support.findings import Unjudged, findings
from kinformer.laws.support.layer_forms import forms
from kinformer.laws.support.subject import ROWS, Subject, build_module
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.hidden import Hidden
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV

SAYS = "other layers in the same call do not change the result"
OVER = "layer"
LENGTH, NEAR = 7, Causal() & Band(1)


def judge(subject: Subject) -> Iterator[str]:
    """Call a layer by itself and after another layer in the same context; yield each difference.

    subject: a layer with the part to test.

    The context of a call caches results, such as masks, for all layers. The other layer is attention under the same
    patterns or another pattern, attention with a memory, or another layer with the part. The decoding states of both
    layers share their positions, as in a stack.
    """
    if subject.vocab or subject.source:
        raise Unjudged("this law tests no models, which make their own context, and no layers with a source")
    module = subject.build()
    if subject.tried:
        raise Unjudged("this use of the part shares the same cached results as its plain use, which is tested")
    other_layers = list(_other_layers(subject, module))
    for training in subject.modes(module):
        for layer in other_layers:
            yield from findings(_check_together, subject, module, layer.train(training))
        if subject.no_state(module) is None:
            yield from findings(_check_shared_state, subject, module, _attention(subject.width, NEAR).train(training))


def _attention(width: int, pattern: Pattern, heads: int = 1, **keywords: Any) -> Any:
    return build_module(lambda: Attention(QKV(width, heads), Softmax(pattern), **keywords))


def _other_layers(subject: Subject, module: nn.Module) -> Iterator[Layer]:
    patterns = {repr(p): p for part in module.modules() if isinstance(p := _pattern(part), Pattern) and not p.tensors()}
    projection = next((part.projection for part in module.modules() if isinstance(part, Attention)), None)
    yield _attention(
        subject.width, NEAR, projection.heads if projection is not None and subject.width % projection.heads == 0 else 1
    )
    for pattern in patterns.values():
        yield _attention(subject.width, pattern)
    reads = [part.reads for part in module.modules() if isinstance(part, Memory)]
    segment = next(
        (pattern_read for pattern_read in reads if isinstance(pattern_read, Segment) and pattern_read.memory),
        Segment(2, 2),
    )
    less = Segment(segment.length, segment.memory - 1)  # segments like the part's own memory, but a shorter memory
    yield _attention(subject.width, Causal() & less, memory=Hidden(less.length, less.memory))
    for form in forms(subject.part, partial(copy.deepcopy, subject.part)) if subject.part is not None else ():
        if not isinstance(form, Subject) or form.source or form.vocab or form.place == subject.place:
            continue
        if not form.refusal:
            yield form.build()


def _pattern(part: nn.Module) -> Pattern | None:
    return part.pattern if isinstance(part, Mechanism) and hasattr(part, "pattern") else None  # type: ignore[return-value]


def _check_together(subject: Subject, module: Any, other: Layer) -> None:
    batch = subject.ragged(LENGTH)
    want, ctx = subject.call(module, batch), batch.context()
    try:
        other(batch.x, None, ctx)
    except ValueError:
        return  # the other layer refuses the limits of this batch
    agree_out(
        module(batch.x, None, ctx),
        want,
        f"in the same call after {_describe(other)}, the part gives a different result",
        batch.pos,
    )


@torch.no_grad()
def _check_shared_state(subject: Subject, module: Any, other: Layer) -> None:
    batch = subject.batch([LENGTH] * ROWS)
    alone = subject.start(module, ROWS, 2)
    other_state, mine = share_positions((other.start(ROWS, 2), subject.start(module, ROWS, 2)))
    for lo, hi in ((0, 2), (2, 3), (3, 6), (6, LENGTH)):
        piece = batch.columns(lo, hi)
        ctx = piece.context()
        try:
            other_state = other(piece.x, other_state, ctx).state
        except ValueError:
            return
        expected, actual = subject.call(module, piece, alone), module(piece.x, mine, ctx)
        agree_out(
            actual,
            expected,
            f"in the same state with {_describe(other)}, the part gives a different result at {hi} tokens",
            piece.pos,
        )
        alone, mine = expected.state, actual.state


def _describe(other: Any) -> str:
    mechanism = getattr(other, "mechanism", None)
    return f"attention under {mechanism.pattern}" if isinstance(mechanism, Softmax) else "another use of the same part"
