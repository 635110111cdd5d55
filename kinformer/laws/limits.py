"""Law limits: no query attends to a key that `ctx.only` excludes, or the part refuses the batch.

`ctx.only` is a pattern that limits a batch to some pairs of a query and a key.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.on_heads import OnHeads
from kinformer.laws.support.comparisons import agree
from kinformer.laws.support.dependences import beyond_rounding, dependences
from kinformer.laws.support.findings import Broken, Unjudged, find_smallest, findings
from kinformer.laws.support.input_batch import InputBatch
from kinformer.laws.support.queries_and_keys import draw_queries_and_keys
from kinformer.laws.support.subject import GARBAGE, Subject

SAYS = "pairs that ctx.only excludes are not read, or the batch is refused"
OVER = ("layer", "mechanism")
LENGTH = 9
HEADS = 4
ODD_HEADS = OnHeads(1, 2)


class LimitsRefused(Exception):
    """Raised inside the law `limits` if a part refuses a batch with limits (a pattern in `ctx.only`)."""


def judge(subject: Subject | Mechanism) -> Iterator[str]:
    """Limit the pairs of a batch by `ctx.only`, and yield a sentence for each excluded key that is read.

    subject: a mechanism, or a layer with the part to test.

    A layer gets rows of two documents that may not attend to each other. The law replaces the tokens of one document,
    also by large numbers; the outputs of the other document must not change. Gradients would not show everything: a
    hard choice has a gradient of zero and may still use excluded tokens. A mechanism gets a pattern that excludes all
    keys of some heads.
    """
    try:
        if isinstance(subject, Mechanism):
            yield from _by_head(subject.double().eval())
            return
        module = subject.build()
        for _ in subject.modes(module):
            yield from find_smallest(_check_documents, LENGTH, subject, module)
    except LimitsRefused as why:
        raise Unjudged(f"refused: {why}") from why


def _check_documents(length: int, subject: Subject, module: Any) -> None:
    batch = subject.ragged(length)
    # each row has its own border; the ids are longer than the rows, because a layer may add tokens of its own
    border = torch.tensor([length // 2, length // 3, length // 2 + 1])[:, None]
    ids = (torch.arange(4 * LENGTH) >= border).long()
    batch = batch.narrow(Document(ids))
    try:
        read = dependences(subject, module, batch)
    except ValueError as error:
        raise LimitsRefused(str(error)) from error
    token_documents = ids.gather(1, batch.pos.clamp_min(0))
    wrong = (
        beyond_rounding(read)
        & batch.is_real[:, :, None]
        & batch.is_real[:, None, :]
        & (token_documents[:, :, None] != token_documents[:, None, :])
    )
    if wrong.any():
        r, t, s = wrong.nonzero()[0].tolist()
        query, key = int(batch.pos[r, t]), int(batch.pos[r, s])
        raise Broken(f"position {query} of {length} reads position {key}, which ctx.only=Document(...) excludes")
    _redraw(length, subject, module, batch, token_documents)


@torch.no_grad()
def _redraw(length: int, subject: Subject, module: Any, batch: InputBatch, document: Tensor) -> None:
    before = subject.call(module, batch)
    for changed in (0, 1):
        other_pos = torch.where(document == changed, -1, batch.pos)
        for seed, size in ((1000, 1.0), (2000, GARBAGE)):
            redrawn = subject.content(*batch.size, seed) * (1 if subject.vocab else size)
            mark = batch.is_real & (document == changed)
            x = torch.where(mark if batch.x.dim() == 2 else mark[..., None], redrawn, batch.x)
            after = subject.call(module, dataclasses.replace(batch, x=x))
            sentence = (
                f"in a row of {length} tokens with two documents, changed tokens of one document change the other one"
            )
            agree(after.y, before.y, sentence, pos=other_pos)
            for name, value in before.aux.items():
                if value.dim():
                    agree(after.aux[name], value, f"{sentence} (aux {name!r})", pos=other_pos)


def _by_head(mechanism: Mechanism) -> Iterator[str]:
    judged, why = False, "the part refuses all tried numbers of heads"
    for heads in (HEADS, 2):
        for first in (0, 1):
            try:
                queries, keys = draw_queries_and_keys(mechanism, heads=heads, groups=heads)
                queries = queries._replace(head=first)
                expected = _read(mechanism, queries, keys, None)
            except Exception:
                continue  # made for another number of heads, or needs further inputs: other laws check that
            if _are_heads_mixed(expected, queries.q):
                why = "its outputs mix the heads"
                continue
            try:
                actual = _read(mechanism, queries, keys, ODD_HEADS)
            except ValueError as error:
                raise LimitsRefused(str(error)) from error
            judged = True
            yield from findings(_check_heads, actual, expected, first)
    if not judged:
        raise Unjudged(why)


def _read(mechanism: Mechanism, queries: Queries, keys: Keys, only: Pattern | None) -> Tensor:
    return mechanism(queries, keys, None, Context(queries.pos[:, 0], run=True, only=only, labels=queries.labels)).y.y


def _are_heads_mixed(y: Tensor, q: Tensor) -> bool:
    if y.shape[1] != q.shape[1]:
        return True
    (gradient,) = torch.autograd.grad(y[:, 0].sum(), q, retain_graph=True, allow_unused=True)
    return gradient is not None and bool((gradient[:, 1:] != 0).any())


def _check_heads(actual: Tensor, expected: Tensor, first: int) -> None:
    for h in range(actual.shape[1]):
        head = f"head {first + h} (of heads numbered from {first})"
        if (first + h) % 2 == 0 and not bool((actual[:, h].abs() <= 1e-12).all()):
            raise Broken(f"{head} reads keys, which ctx.only={ODD_HEADS} excludes")
        if (first + h) % 2 and not torch.allclose(actual[:, h], expected[:, h], atol=1e-9, rtol=1e-9):
            raise Broken(f"{head} gives a different result with ctx.only={ODD_HEADS}, which excludes none of its keys")
