"""Costs of reading a long text with a decoding state: speed, bytes of the state, and memory."""

import math
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.eval_mode import evaluating
from kinformer.core.mechanism import NoState
from kinformer.core.state import leaves, state_bytes
from kinformer.lab.cost.resident_memory import peak_resident, release_freed, resident, restart_peak
from kinformer.lab.data.batches import device_of

LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768)
CHUNK = 512  # tokens that are read in one call
STEPS = 8  # tokens that are read one by one, as in generation


class ReadingCost(NamedTuple):
    """The cost of reading a row up to a length.

    length: tokens that the model has read.
    state: bytes of the decoding state of a row of this length.
    reading: tokens per second in chunks, from the previous length to this one; None if there was no time for it.
    writing: tokens per second of single steps up to this length; None likewise.
    memory: most bytes that the model, the state of this length and the reading took; None likewise, or if the system
        does not tell.
    """

    length: int
    state: int
    reading: float | None = None
    writing: float | None = None
    memory: int | None = None


def reading_costs(
    model: Any,
    seconds: float,
    lengths: tuple[int, ...] = LENGTHS,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> list[ReadingCost]:
    """Measure the cost of reading one row of random tokens at growing lengths, as in generation.

    Each length is read with a state for this length: a state that grows begins anew at each length, and a state of
    constant size continues. No state exists before its length is read. The report has the bytes of the state of every
    length, even if there is no time to read it.

    model: a language model with a decoding state.
    seconds: time limit; longer rows are then left out, and the shortest one is always read.
    lengths: the lengths in tokens, ascending. Lengths beyond the model's learned positions are left out.
    on_progress: called with the finished fraction.

    Errors: NoState if the model has no decoding state.
    """
    lengths = tuple(length for length in lengths if model.longest is None or length <= model.longest)
    if not lengths or not model.predicts_next:
        raise NoState("this model does not write texts of 1,024 tokens or more")
    costs, began = list[ReadingCost](), monotonic()
    tokens = model.sample(1, lengths[-1], 0)[:1].to(device_of(model))
    with evaluating(model), torch.inference_mode():
        sizes, shapes = zip(*(_measure_state(model, length) for length in lengths), strict=True)
        # a first call loads code of the libraries, which is no memory of the model
        model.logits(tokens[:, :STEPS], model.start(1, STEPS), last=True)
        release_freed()
        restart_peak(tokens.device)  # on a GPU this also returns freed memory
        weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        others = (resident(tokens.device) or 0) - weights  # of the process, such as another model
        before = [0 if n == 0 or shapes[n] != shapes[n - 1] else lengths[n - 1] for n in range(len(lengths))]
        reader = _Reader(model, tokens, sum(lengths) - sum(before), on_progress)
        for n, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
            deadline = began + seconds if n else math.inf
            reading = writing = peak = None
            if monotonic() < deadline:
                if before[n] == 0:
                    reader.free_state()
                has_restarted = restart_peak(tokens.device)
                if before[n] == 0:
                    reader.start(length)
                # the chunks of shorter lengths have speeds of their own
                if n == 0 or reader.read_to(lengths[n - 1], CHUNK, deadline) is not None:
                    reading = reader.read_to(length - STEPS, CHUNK, deadline)
                if reading is not None:
                    writing = reader.read_to(length, 1)
                    peak = peak_resident(tokens.device) if has_restarted else None
            costs.append(ReadingCost(length, size, reading, writing, None if peak is None else peak - others))
    return costs


class _Reader:
    """A model that reads a row piece by piece.

    model: the model.
    tokens: the row, [1, T].
    total: number of tokens that are read in all, with repetitions.
    on_progress: called with the finished fraction.
    """

    def __init__(self, model: Any, tokens: Int[Tensor, "1 T"], total: int, on_progress: Callable[[float], None]):
        self.model, self.tokens, self.total, self.on_progress = model, tokens, total, on_progress
        self.state: Any = None
        self.place = self.done = 0

    def free_state(self) -> None:
        """Free the state, so that it takes no memory beside the next one."""
        self.state = None
        release_freed()

    def start(self, length: int) -> None:
        """Begin the row anew, with a state for this length."""
        self.state, self.place = self.model.start(1, length), 0

    def read_to(self, end: int, chunk: int, deadline: float = math.inf) -> float | None:
        """Read the row up to a place; return the tokens per second, or None if the time was over before.

        end: the place, in tokens.
        chunk: tokens that are read in one call.
        deadline: time of `monotonic` after which no chunk begins.
        """
        first, began = self.place, monotonic()
        while self.place < end:
            if monotonic() >= deadline:
                return None
            until = min(self.place + chunk, end)
            self.state = self.model.logits(self.tokens[:, self.place : until], self.state, last=True).state
            self.done += until - self.place
            self.place = until
            self.on_progress(min(self.done / self.total, 1.0))
        return (end - first) / max(monotonic() - began, 1e-9)


def _measure_state(model: Any, length: int) -> tuple[int, list[tuple[torch.Size, torch.dtype]]]:
    """Return the bytes of the state of a length, and the shapes and dtypes of its tensors."""
    try:
        state = model.start(1, length, device=torch.device("meta"))  # takes no memory
    except RuntimeError:  # a part computes its start values, which the device "meta" cannot
        state = model.start(1, length)
    return state_bytes(state), [(leaf.shape, leaf.dtype) for _, leaf in leaves(state)]
