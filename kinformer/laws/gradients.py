"""Law gradients: chunks have the gradients of one call, and no gradient flows through stopped pairs.

A stopped pair is a query and a key for which the part declares, in `gradient_stops`, that no gradient flows.
"""

from collections.abc import Iterator
from typing import Any

import torch

from kinformer.core.pattern import Pattern
from kinformer.laws.chunk import call_in_chunks
from kinformer.laws.support.comparisons import agree_gradients
from kinformer.laws.support.dependences import beyond_rounding, dependences, gradients, loss, memory_read
from kinformer.laws.support.findings import Broken, Unjudged, find_smallest
from kinformer.laws.support.subject import ROWS, Subject
from kinformer.nn.attention import Attention

SAYS = "chunks with a carried state have the gradients of one call, and none flow through pairs in gradient_stops"
OVER = "layer"
LENGTH = 9


def judge(subject: Subject) -> Iterator[str]:
    """Compare the gradients of a row in chunks with the gradients of one call, and yield each difference.

    subject: a layer with the part to test.

    The chunks carry a decoding state, and the gradient of every parameter is compared. The law also tests that no
    gradient flows from a query to a key if the pattern `gradient_stops` of the part contains this pair.
    """
    module = subject.build()
    stateless, judged = "", False
    for _ in subject.modes(module):
        stateless = subject.no_state(module) or ""
        if not stateless:
            yield from find_smallest(_check_cuts, LENGTH, subject, module)
        stops = [p for part in module.modules() if isinstance(p := getattr(part, "gradient_stops", None), Pattern)]
        stopping = isinstance(module, Attention) and (module.memory is None or memory_read(module) is not None)
        if stops and stopping:
            yield from find_smallest(_check_stops, LENGTH, subject, module, stops[0])
        judged = judged or not stateless or bool(stops and stopping)
    if not judged:
        raise Unjudged(f"no decoding state to test: {stateless}")


def _check_cuts(length: int, subject: Subject, module: Any) -> None:
    batch = subject.ragged(length)
    whole = subject.call(module, batch, subject.start(module, ROWS, length))
    expected = gradients(loss(whole, batch), module)
    for sizes in ([1] * length, [length - length // 2, length // 2], [2, length - 2]):
        cut = call_in_chunks(subject, module, batch, sizes, subject.start(module, ROWS, length))
        actual = gradients(loss(cut, batch), module)
        agree_gradients(
            actual, expected, f"{length} tokens in chunks of {sizes} give different gradients than one call"
        )


def _check_stops(length: int, subject: Subject, module: Any, stops: Pattern) -> None:
    batch = subject.ragged(length)
    at = batch.pos.clamp_min(0)
    where = stops(torch.arange(ROWS)[:, None, None], 0, at[:, :, None], at[:, None, :]) & batch.is_real[:, :, None]
    wrong = where & batch.is_real[:, None, :] & beyond_rounding(dependences(subject, module, batch))
    if wrong.any():
        r, t, s = wrong.nonzero()[0].tolist()
        query, key = int(batch.pos[r, t]), int(batch.pos[r, s])
        raise Broken(f"position {query} gives position {key} a gradient, but gradient_stops={stops} stops it")
