"""Subject: a part put to work as a layer or model, so that a law can watch it."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.layer import Context, Out, State
from kinformer.core.mechanism import NoState
from kinformer.core.memory import Memory
from kinformer.core.pattern import Pattern
from kinformer.laws.batch import SOURCE, Batch, numbers, placed, positions, tokens

ROWS = 3
GARBAGE = 100.0


@dataclass(frozen=True, eq=False)
class Subject:
    """A part at work: `make` builds a layer of width `width`, or a model that takes tokens below `vocab`.

    `only` and `also` are patterns of the batch; `source` says that it reads one; `pattern`, where that is known, is
    exactly the set that each query reads. `place` says where the part was put. `effort` multiplies how much a law
    tries.
    """

    name: str
    make: Callable[[], Any]
    width: int = 16
    vocab: int = 0
    only: Pattern | None = None
    also: Pattern | None = None
    source: bool = False
    pattern: Pattern | None = None
    place: str = ""
    effort: int = 1

    def build(self, seed: int = 0) -> Any:
        """A fresh one, seeded, in float64 and eval mode, without dropout; no parameter keeps a constant start value."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make().double().eval()
            for p in module.parameters():
                if p.numel() and bool((p == p.flatten()[0]).all()):
                    p.data.add_(0.3 * torch.randn_like(p))
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
            elif isinstance(getattr(part, "dropout", None), float):
                part.dropout = 0.0
        return module

    def batch(
        self, lengths: Sequence[int], lefts: Sequence[int] | None = None, columns: int | None = None, *, seed: int = 0
    ) -> Batch:
        """Rows of the given lengths, after `lefts` columns of padding, which holds large numbers."""
        columns = max(lengths) if columns is None else columns
        rows = len(lengths)
        pos = positions(lengths, lefts or [0] * rows, columns)
        only, also = (None if p is None else p for p in (self.only, self.also))
        if self.vocab:
            return Batch(placed(self.content(rows, columns, seed), pos, -1), pos, only, also, *self._read(rows, seed))
        x = placed(self.content(rows, columns, seed), pos, GARBAGE * numbers(rows, columns, self.width, seed + 50))
        return Batch(x, pos, only, also, *self._read(rows, seed))

    def ragged(self, length: int, *, seed: int = 0) -> Batch:
        """Three rows: one full, one padded left, one padded right."""
        left, right = (length + 2) // 4, length // 3
        return self.batch([length, length - left, length - right], [0, left, 0], length, seed=seed)

    def content(self, rows: int, columns: int, seed: int) -> Tensor:
        """What fills the rows: tokens for a model, numbers for a layer."""
        return tokens(rows, columns, self.vocab, seed) if self.vocab else numbers(rows, columns, self.width, seed)

    def _read(self, rows: int, seed: int) -> tuple[Tensor | None, Tensor | None]:
        if not self.source:
            return None, None
        lengths, lefts = [SOURCE - n % 3 for n in range(rows)], [n % 2 for n in range(rows)]
        pos = positions(lengths, lefts, SOURCE)
        return self.sourced(pos, seed), pos

    def sourced(self, pos: Tensor, seed: int, garbage: int = 0) -> Tensor:
        """A source whose tokens stand where pos says."""
        rows, columns = pos.shape
        content = self.content(rows, columns, seed + 100)
        if self.vocab:
            return placed(content, pos, -1)
        return placed(content, pos, GARBAGE * numbers(rows, columns, self.width, seed + garbage + 150))

    def call(self, module: Any, batch: Batch, state: State | None = None) -> Out:
        """One call. A model numbers its own tokens, unless the batch has limits of its own."""
        if not self.vocab:
            return module(batch.x, state, batch.context())
        limited = batch.only is not None or batch.also is not None
        ctx = Context(batch.pos, True, batch.only, batch.also) if limited else None
        given = {"source": batch.source} if self.source else {}
        return module.logits(batch.x, state, ctx, **given)

    def start(self, module: Any, rows: int, length: int, dtype: torch.dtype = torch.float64) -> State:
        """The state before the first token."""
        return module.start(rows, length, dtype=dtype)

    def no_state(self, module: Any) -> str | None:
        """The text of NoState, where `start` says that there is no state to decode with; None where it can decode."""
        try:
            self.start(module, 1, 4)
        except NoState as error:
            return str(error)
        return None

    def modes(self, module: Any) -> Iterator[bool]:
        """eval mode, and train mode where a memory makes another state there; the module is left in eval mode."""
        for training in (False, True) if remembers(module) else (False,):
            module.train(training)
            yield training
        module.eval()

    def traced(self, module: Any, batch: Batch, state: State | None = None) -> tuple[Out, Tensor]:
        """A call, and the leaf [B T D] by which to differentiate: x, or what is added to a model's embedded tokens."""
        if not self.vocab:
            leaf = batch.x.clone().requires_grad_()
            return self.call(module, dataclasses.replace(batch, x=leaf), state), leaf
        with _added_to_embedding(module, batch) as leaf:
            return self.call(module, batch, state), leaf


@contextmanager
def _added_to_embedding(module: Any, batch: Batch) -> Iterator[Tensor]:
    """While this lasts, a leaf of zeros is added to the embedding of tokens of the batch's shape."""
    embedding = next(part for part in module.modules() if isinstance(part, nn.Embedding))
    leaf = torch.zeros(*batch.size, embedding.embedding_dim, dtype=torch.float64, requires_grad=True)

    def add(part: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
        return y + leaf if y.shape == leaf.shape else y

    hook = embedding.register_forward_hook(add)
    try:
        yield leaf
    finally:
        hook.remove()


def remembers(module: Any) -> bool:
    """Does it hold a memory, whose training state is another than its decoding state?"""
    return any(isinstance(part, Memory) for part in module.modules())


def twin(module: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """The module with its numbers rounded to a precision, once in that precision and once in float64."""
    low = copy.deepcopy(module).to(dtype)
    return low, copy.deepcopy(low).double()
