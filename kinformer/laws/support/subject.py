"""Subjects of the laws: a part within a layer or a model, or a model in training."""

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
SOURCE = 7  # columns of a source; x has another length in most laws
GARBAGE = 100.0
EFFORT = 4 if os.environ.get("KINFORMER_PROVE") == "1" else 1  # factor on the number of trials of a law


@dataclass(frozen=True, eq=False)
class Subject:
    """A layer or model that contains a part, for laws (properties that every part is tested for) to call.

    `forms` makes it from the example of a part.

    part: the instance of the part that the example makes.
    make: function that builds the layer of width `width`, or the model that takes tokens below `vocab`.
    place: description of this use of the part in reports, such as "cross-attention"; "" for the plain use.
    width: width of the layer.
    vocab: size of the model's vocabulary; 0 for a layer.
    only: pattern that limits the pairs that queries may read (`ctx.only`), if any.
    also: pattern of pairs that queries may read in addition (`ctx.also`), if any.
    source: "other" for cross-attention over a source of another length than x, "equal" for a source of equal length at
        the same positions, "" without a source.
    pattern: exactly the pairs that queries read, if they are known.
    tried: True if the part may refuse this use.
    secondary: True if other subjects test the same part; long tests then leave this one out.
    shares: names of weights that layers may share, each with the reason, from the example of the part.
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
        """Build a seeded module in float64 and eval mode, without dropout or constant parameters."""
        return build_module(self.make, seed)

    @cached_property
    def refusal(self) -> str:
        """The reason why the part cannot be tested in this use, or "".

        The part may refuse the use, or it may need a value that no earlier layer passes on here.
        """
        try:
            module = self.build()
            missing = [want.name for want in getattr(module, "wants", ()) if not want.optional]
            if missing or not self.tried:
                return (
                    f"the part needs {missing[0]!r} from an earlier layer, and no layer sends it here"
                    if missing
                    else ""
                )
            self.call(module, self.ragged(5))
            self.call(module, self.batch([4] * ROWS), None if self.no_state(module) else self.start(module, ROWS, 4))
        except (ValueError, NoState) as error:
            return "" if "\n" in str(error) or not self.tried else f"refused: {error}"
        except Exception:
            return ""  # the laws report the error
        return ""

    def batch(
        self, lengths: Sequence[int], lefts: Sequence[int] | None = None, columns: int | None = None, *, seed: int = 0
    ) -> InputBatch:
        """Return a batch of random padded rows for this layer or model.

        lengths: number of tokens of each row.
        lefts: length of the padding before the tokens of each row; 0 by default.
        columns: length of all rows, padding included; by default the largest of `lengths`.
        seed: seed of the tokens.
        """
        columns = max(lengths) if columns is None else columns
        rows = len(lengths)
        pos = positions(lengths, lefts or [0] * rows, columns)
        source_pos = pos if self.source == "equal" else self.source_positions(rows) if self.source else None
        source = None if source_pos is None else self.fill_rows(source_pos, seed + 100)
        return InputBatch(self.fill_rows(pos, seed), pos, self.only, self.also, source, source_pos)

    def ragged(self, length: int, *, seed: int = 0) -> InputBatch:
        """Return a batch of three rows: one without padding, one padded left, one padded right."""
        left, right = (length + 2) // 4, length // 3
        return self.batch([length, length - left, length - right], [0, left, 0], length, seed=seed)

    def source_positions(self, rows: int) -> Tensor:
        """Return the positions of sources of 5 to 7 tokens, which differ in length from x in most laws."""
        return positions([SOURCE - n % 3 for n in range(rows)], [n % 2 for n in range(rows)], SOURCE)

    def fill_rows(self, pos: Tensor, seed: int, garbage: int = 0) -> Tensor:
        """Return rows with random content at real positions, and -1 (for a model) or large numbers at padding."""
        rows, columns = pos.shape
        garbage_there = -1 if self.vocab else GARBAGE * numbers(rows, columns, self.width, seed + garbage + 50)
        return place_content(self.content(rows, columns, seed), pos, garbage_there)

    def content(self, rows: int, columns: int, seed: int) -> Tensor:
        """Return random rows without padding: tokens for a model, vectors for a layer; some tokens repeat."""
        content = tokens(rows, columns, self.vocab, seed) if self.vocab else numbers(rows, columns, self.width, seed)
        return repeat_tokens(content, seed)

    def call(self, module: Any, batch: InputBatch, state: State | None = None) -> Out:
        """Call a layer, or the method `logits` of a model.

        A model gets a context with positions only if the batch has patterns; otherwise it makes its own.
        """
        if not self.vocab:
            return module(batch.x, state, batch.context())
        limited = batch.only is not None or batch.also is not None
        # a model encodes its source itself, so its context holds none
        ctx = dataclasses.replace(batch, source=None, source_pos=None).context() if limited else None
        if batch.source is not None:
            return module.logits(batch.x, state, ctx, source=batch.source)
        return module.logits(batch.x, state, ctx)

    def start(self, module: Any, rows: int, length: int, dtype: torch.dtype | None = None) -> State:
        """Return the decoding state before the first token, in the precision of the module or in `dtype`."""
        return module.start(rows, length, dtype=dtype)

    def no_state(self, module: Any) -> str | None:
        """Return the error text of NoState if the module has no decoding state, or None if it has one."""
        try:
            self.start(module, 1, 4)
        except NoState as error:
            return str(error)
        return None

    def states(self, module: Any, rows: int, length: int) -> list[State | None]:
        """Return the states to call a module with: None, and a fresh decoding state if it has one."""
        return [None] if self.no_state(module) is not None else [None, self.start(module, rows, length)]

    def modes(self, module: Any) -> Iterator[bool]:
        """Set eval mode and yield False; if the module has a memory, set train mode and yield True.

        A memory (states carried between chunks) builds another state in train mode. The module ends in eval mode.
        """
        for training in (False, True) if any(isinstance(part, Memory) for part in module.modules()) else (False,):
            module.train(training)
            yield training
        module.eval()

    def call_traced(self, module: Any, batch: InputBatch, state: State | None = None) -> tuple[Out, Tensor]:
        """Return the output of a call, and a tensor [B T D] at its input to compute gradients for.

        The tensor is x for a layer, and zeros that are added to the token embeddings for a model.
        """
        if not self.vocab:
            leaf = batch.x.clone().requires_grad_()
            return self.call(module, dataclasses.replace(batch, x=leaf), state), leaf
        with _added_to_embedding(module, batch) as leaf:
            return self.call(module, batch, state), leaf


@dataclass(frozen=True, eq=False)
class TrainingSubject:
    """A model in training, for laws (properties that every part is tested for) to call.

    The model takes batches of its own kind, from its method `sample`, and returns a loss.

    part: the instance of the model that the example makes.
    make: function that builds the model.
    place: description of this use in reports.
    also: None; no pattern widens the pairs that queries may read.
    tried: False; the model may not refuse this use.
    shares: names of weights that layers may share, each with the reason, from the example of the model.
    """

    part: Any
    make: Callable[[], Any]
    place: str = "in training"
    also: None = None
    tried: bool = False
    shares: Mapping[str, str] = field(default_factory=dict)

    def build(self, seed: int = 0) -> Any:
        """Build a seeded model, as `Subject.build` does."""
        return build_module(self.make, seed)

    def ragged(self, length: int) -> "SampledBatch":
        """Return a batch of three random rows from the model's method `sample`, in float64."""
        return SampledBatch(self.part.sample(ROWS, length, 0)).to(torch.float64)

    def call(self, module: Any, batch: "SampledBatch", state: State | None = None) -> Out:
        """Return the loss as an `Out`: y is the total loss [1], and aux are its parts by name."""
        loss = module(batch.x)
        return Out(loss.total[None], None, dict(loss.parts), stats=loss.stats)

    def states(self, module: Any, rows: int, length: int) -> list[State | None]:
        """Return only None: laws test losses without a decoding state, and states with logits."""
        return [None]


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """A training batch from a model's method `sample`, with the interface of `InputBatch`.

    x: the batch: tensors in tuples, lists and dicts.
    pos: None, because such a batch has no positions.
    is_real: an index of all entries, because there is no padding.
    """

    x: Any
    pos: None = None
    is_real: Any = ...

    def to(self, dtype: torch.dtype) -> "SampledBatch":
        """Return the batch with its floating-point numbers in another precision."""
        return SampledBatch(_map_tensors(self.x, lambda t: t.to(dtype) if t.is_floating_point() else t))

    def map_tensors(self, f: Callable[[Tensor], Tensor]) -> "SampledBatch":
        """Return the batch with `f` applied to every tensor."""
        return SampledBatch(_map_tensors(self.x, f))

    def rows(self, rows: Sequence[int]) -> "SampledBatch":
        """Return a batch of the rows with these indices, which may repeat."""
        return SampledBatch(_map_tensors(self.x, lambda t: t[torch.tensor(rows)]))

    def tensors(self) -> list[Tensor]:
        """Return every tensor of the batch."""
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
    """Build a module for a law: seeded, in float64 and eval mode, without dropout.

    Parameters with equal entries get noise, because a parameter that is 0 or 1 everywhere could hide an error.

    make: function that builds the module.
    seed: seed of its weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make().double().eval()
        add_parameter_noise(module)
    disable_dropout(module)
    return module


def make_rounded_pair(module: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return two copies of a module: one in a low precision, one in float64 with the same rounded weights.

    module: the module.
    dtype: the low precision.
    """
    low = copy.deepcopy(module).to(dtype)
    return low, copy.deepcopy(low).double()


@contextmanager
def _added_to_embedding(module: Any, batch: InputBatch) -> Iterator[Tensor]:
    """Add a leaf of zeros to the token embeddings of the batch's shape while the context is entered."""
    embedding = next(part for part in module.modules() if isinstance(part, nn.Embedding))
    leaf = torch.zeros(*batch.size, embedding.embedding_dim, dtype=torch.float64, requires_grad=True)

    def add(part: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
        return y + leaf if y.shape == leaf.shape else y

    hook = embedding.register_forward_hook(add)
    try:
        yield leaf
    finally:
        hook.remove()
