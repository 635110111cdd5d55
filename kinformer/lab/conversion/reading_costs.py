"""Costs of reading a long text with a decoding state: speed, bytes of the state, and memory."""

from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

import torch

from kinformer.core.eval_mode import evaluating
from kinformer.core.mechanism import NoState
from kinformer.core.state import leaves
from kinformer.lab.cost.resident_memory import peak_resident, release_freed, resident, restart_peak
from kinformer.lab.data.batches import device_of

LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768)
CHUNK = 512  # tokens that are read in one call
STEPS = 8  # tokens that are read one by one, as in generation


class ReadingCost(NamedTuple):
    """The cost of reading a row up to a length.

    length: tokens that the model has read.
    state: bytes of the decoding state of a row of this length.
    reading: tokens per second of the chunks before this length; None if they were not read in the given time.
    writing: tokens per second of single steps after this length; None likewise.
    memory: most bytes that the model and its reading took until here; None likewise, or if the system does not tell.
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

    The state of every length is measured, even if there is no time to fill it.

    model: a language model with a decoding state.
    seconds: time after which no longer row is read; the shortest one is always read.
    lengths: the lengths in tokens, ascending. Lengths beyond the model's learned positions are left out.
    on_progress: called with the finished fraction.

    Errors: NoState if the model has no decoding state.
    """
    lengths = tuple(length for length in lengths if model.longest is None or length <= model.longest)
    if not lengths or not model.predicts_next:
        raise NoState("this model does not write texts of 1,024 tokens or more")
    costs, read, began = list[ReadingCost](), 0, monotonic()
    tokens = model.sample(1, lengths[-1], 0)[:1].to(device_of(model))
    with evaluating(model), torch.inference_mode():
        release_freed()
        restart_peak(tokens.device)
        weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        others = (resident(tokens.device) or 0) - weights  # of the process, such as another model
        sizes = [state_bytes(model.start(1, length)) for length in lengths]
        state = model.start(1, lengths[-1])
        for length, size in zip(lengths, sizes, strict=True):
            first, start = read, monotonic()
            while read < length - STEPS and (length == lengths[0] or monotonic() - began < seconds):
                at = min(read + CHUNK, length - STEPS)
                state = model.logits(tokens[:, read:at], state, last=True).state
                read = at
                on_progress(read / lengths[-1])
            if read < length - STEPS:
                costs.append(ReadingCost(length, size))
                continue
            reading = (read - first) / max(monotonic() - start, 1e-9)
            start = monotonic()
            for at in range(read, length):
                state = model.logits(tokens[:, at : at + 1], state, last=True).state
            read = length
            writing = STEPS / max(monotonic() - start, 1e-9)
            peak = peak_resident(tokens.device)
            costs.append(ReadingCost(length, size, reading, writing, None if peak is None else peak - others))
    return costs


def state_bytes(state: Any) -> int:
    """Return the bytes of a decoding state; a tensor that several layers share counts once.

    state: the state.
    """
    tensors = {id(leaf): leaf for _, leaf in leaves(state)}
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors.values())
