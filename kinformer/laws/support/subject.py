"""Subject: a part put to work as a layer, or a model, so that a law can watch it."""

import copy
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kinformer.core.dropout import disable_dropout
from kinformer.core.layer import Out, State
from kinformer.core.mechanism import NoState
from kinformer.core.memory import Memory
from kinformer.core.parameter_noise import add_parameter_noise
from kinformer.core.pattern import Pattern
from kinformer.laws.support.input_batch import InputBatch, numbers, place_content, positions, repeat_tokens, tokens

ROWS = 3
SOURCE = 7  # tokens of a source: another number than any length a law uses for x by itself
GARBAGE = 100.0
EFFORT = 4 if os.environ.get("KINFORMER_PROVE") == "1" else 1  # how much more a law tries


@dataclass(frozen=True, eq=False)
class Subject:
    """A part at work: `make` builds a layer of width `width`, or a model that takes tokens below `vocab`.

    `part` is what the example itself makes; `place` says where it was put. `only` and `also` are patterns of the batch;
    `source` says that it reads one: of another length than x, or as long as x, at the same positions. `pattern`, where
    that is known, is exactly the set that each query reads. `tried`: a way of use that the part may refuse.
    `secondary`: a further place of a part that is judged in another one as well. `shares`: shared weights that the
    example declares.
    """

    part: Any
    make: Callable[[], Any]
    place: str = ""
    width: int = 16
    vocab: int = 0
    only: Pattern | None = None
    also: Pattern | None = None
    source: Literal["", "other", "equal"] = ""
    pattern: Pattern | None = None
    tried: bool = False
    secondary: bool = False
    shares: Mapping[str, str] = field(default_factory=dict)

    def build(self, seed: int = 0) -> Any:
        """A fresh one, seeded, in float64 and eval mode, without dropout; no parameter keeps a constant start value."""
        return build_module(self.make, seed)

    @cached_property
    def refusal(self) -> str:
        """Why it cannot be judged in this use: what it says where it may refuse, or what it wants and nobody sends."""
        try:
            module = self.build()
            missing = [want.name for want in getattr(module, "wants", ()) if not want.optional]
            if missing or not self.tried:
                return f"it wants {missing[0]!r} from below, and nothing here sends that" if missing else ""
            self.call(module, self.ragged(5))
            self.call(module, self.batch([4] * ROWS), None if self.no_state(module) else self.start(module, ROWS, 4))
        except (ValueError, NoState) as error:
            return "" if "\n" in str(error) or not self.tried else f"refused: {error}"
        except Exception:
            return ""  # the laws will say what is wrong
        return ""

    def batch(
        self, lengths: Sequence[int], lefts: Sequence[int] | None = None, columns: int | None = None, *, seed: int = 0
    ) -> InputBatch:
        """Rows of the given lengths, after `lefts` columns of padding, which holds large numbers."""
        columns = max(lengths) if columns is None else columns
        rows = len(lengths)
        pos = positions(lengths, lefts or [0] * rows, columns)
        source_pos = pos if self.source == "equal" else self.source_positions(rows) if self.source else None
        source = None if source_pos is None else self.fill_rows(source_pos, seed + 100)
        return InputBatch(self.fill_rows(pos, seed), pos, self.only, self.also, source, source_pos)

    def ragged(self, length: int, *, seed: int = 0) -> InputBatch:
        """Three rows: one full, one padded left, one padded right."""
        left, right = (length + 2) // 4, length // 3
        return self.batch([length, length - left, length - right], [0, left, 0], length, seed=seed)

    def source_positions(self, rows: int) -> Tensor:
        """Where the tokens of a source of another length stand."""
        return positions([SOURCE - n % 3 for n in range(rows)], [n % 2 for n in range(rows)], SOURCE)

    def fill_rows(self, pos: Tensor, seed: int, garbage: int = 0) -> Tensor:
        """Content where pos says, and at padding -1 for a model, large numbers for a layer."""
        rows, columns = pos.shape
        garbage_there = -1 if self.vocab else GARBAGE * numbers(rows, columns, self.width, seed + garbage + 50)
        return place_content(self.content(rows, columns, seed), pos, garbage_there)

    def content(self, rows: int, columns: int, seed: int) -> Tensor:
        """Content of the rows: tokens for a model, numbers for a layer; rows contain repeated tokens."""
        content = tokens(rows, columns, self.vocab, seed) if self.vocab else numbers(rows, columns, self.width, seed)
        return repeat_tokens(content, seed)

    def call(self, module: Any, batch: InputBatch, state: State | None = None) -> Out:
        """One call. A model numbers its own tokens, unless the batch has limits or a source of its own."""
        if not self.vocab:
            return module(batch.x, state, batch.context())
        limited = batch.only is not None or batch.also is not None
        # the context of a model holds no tokens of a source: the model encodes them itself
        ctx = dataclasses.replace(batch, source=None, source_pos=None).context() if limited else None
        if batch.source is not None:
            return module.logits(batch.x, state, ctx, source=batch.source)
        return module.logits(batch.x, state, ctx)

    def start(self, module: Any, rows: int, length: int, dtype: torch.dtype | None = None) -> State:
        """The state before the first token, in the module's own precision unless told."""
        return module.start(rows, length, dtype=dtype)

    def no_state(self, module: Any) -> str | None:
        """The text of NoState, where `start` says that there is no state to decode with; None where it can decode."""
        try:
            self.start(module, 1, 4)
        except NoState as error:
            return str(error)
        return None

    def states(self, module: Any, rows: int, length: int) -> list[State | None]:
        """None, and a fresh state where there is one: the two ways in which a call is made."""
        return [None] if self.no_state(module) is not None else [None, self.start(module, rows, length)]

    def modes(self, module: Any) -> Iterator[bool]:
        """eval mode, and train mode where a memory makes another state there; the module is left in eval mode."""
        for training in (False, True) if any(isinstance(part, Memory) for part in module.modules()) else (False,):
            module.train(training)
            yield training
        module.eval()

    def call_traced(self, module: Any, batch: InputBatch, state: State | None = None) -> tuple[Out, Tensor]:
        """A call, and the leaf [B T D] by which to differentiate: x, or what is added to a model's embedded tokens."""
        if not self.vocab:
            leaf = batch.x.clone().requires_grad_()
            return self.call(module, dataclasses.replace(batch, x=leaf), state), leaf
        with _added_to_embedding(module, batch) as leaf:
            return self.call(module, batch, state), leaf


@dataclass(frozen=True, eq=False)
class TrainingSubject:
    """A model as training sees it: batches of its own kind in, a loss and what is reported out."""

    part: Any
    make: Callable[[], Any]
    place: str = "in training"
    also: None = None
    tried: bool = False
    shares: Mapping[str, str] = field(default_factory=dict)

    def build(self, seed: int = 0) -> Any:
        """As a Subject's."""
        return build_module(self.make, seed)

    def ragged(self, length: int) -> "SampledBatch":
        """Three rows that the model itself draws, in float64."""
        return SampledBatch(self.part.sample(ROWS, length, 0)).to(torch.float64)

    def call(self, module: Any, batch: "SampledBatch", state: State | None = None) -> Out:
        """The loss [1], its parts as aux."""
        loss = module(batch.x)
        return Out(loss.total[None], None, dict(loss.parts), stats=loss.stats)

    def states(self, module: Any, rows: int, length: int) -> list[State | None]:
        """Losses are taken without a state here; states are judged where a model says its logits."""
        return [None]


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """A batch of a model's own kind: tensors in tuples, lists and dicts."""

    x: Any
    pos: None = None
    is_real: Any = ...

    def to(self, dtype: torch.dtype) -> "SampledBatch":
        """The same, its numbers in another precision."""
        return SampledBatch(_map_tensors(self.x, lambda t: t.to(dtype) if t.is_floating_point() else t))

    def map_tensors(self, f: Callable[[Tensor], Tensor]) -> "SampledBatch":
        """The same with f made of every tensor."""
        return SampledBatch(_map_tensors(self.x, f))

    def rows(self, rows: Sequence[int]) -> "SampledBatch":
        """The given rows, which may repeat."""
        return SampledBatch(_map_tensors(self.x, lambda t: t[torch.tensor(rows)]))

    def tensors(self) -> list[Tensor]:
        """Every tensor of it."""
        collected: list[Tensor] = []

        def keep(t: Tensor) -> Tensor:
            collected.append(t)
            return t

        _map_tensors(self.x, keep)
        return collected


def _map_tensors(x: Any, f: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(x, Tensor):
        return f(x)
    if isinstance(x, Mapping):
        return {name: _map_tensors(value, f) for name, value in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_map_tensors(value, f) for value in x))
    return type(x)(_map_tensors(value, f) for value in x) if isinstance(x, tuple | list) else x


def build_module(make: Callable[[], Any], seed: int = 0) -> Any:
    """What `make` makes, seeded, in float64 and eval mode, without dropout; no parameter starts as a constant."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make().double().eval()
        add_parameter_noise(module)
    disable_dropout(module)
    return module


def make_rounded_pair(module: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """The module with its numbers rounded to a precision, once in that precision and once in float64."""
    low = copy.deepcopy(module).to(dtype)
    return low, copy.deepcopy(low).double()


@contextmanager
def _added_to_embedding(module: Any, batch: InputBatch) -> Iterator[Tensor]:
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
