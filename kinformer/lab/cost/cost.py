"""cost: what a model takes before it is trained: parameters, multiplications, memory, and who reads its layers."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kinformer.attend.executors import reference
from kinformer.core.after_step import after_step
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.layer import State
from kinformer.core.mechanism import NoState
from kinformer.core.memo import empty_memo
from kinformer.core.memory import MemoryCost
from kinformer.core.model import Batch, Model
from kinformer.core.pattern import pair_mask
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.state import detach, leaves
from kinformer.lab.cost.operator_counts import Tally, products_of
from kinformer.lab.cost.resident_memory import peak_resident, resident, restart_peak
from kinformer.lab.cost.temporal_range import TemporalRange, remembered_by_layer, temporal_range
from kinformer.lab.train.attention_hooks import layers_that_read, reading_through
from kinformer.lab.train.optimiser import adamw, clip, clip_groups
from kinformer.lab.train.settings import Settings

QUERIES = 64  # of a read that the reference reads, to see what a query multiplies
SAMPLED = 1024  # queries of which live pairs are counted; of rows up to this length every one
TOKENS = 4096  # of a batch that is run as it is; at least two rows are
STAGES = 4  # its state, a batch in memory, another one, and what it multiplies
STEPS = 3  # of training: the optimiser's means are there from the second on
FILLING, LEAST = 4096, 64  # tokens of a row that are read before, at most, to fill a memory, and at a time
KEPT = 1.25  # bytes that the C library holds for each that is alive at the peak (glibc; tests/lab/train/test_cost.py)


@dataclass(frozen=True)
class Cost:
    """What a training step on `batch` rows of `length` tokens takes, and what a decoded text does.

    parameters: numbers that are learned; tied ones once.
    flops: additions and multiplications of one forward; a training step makes three times as many.
    once: those of them that a step makes once: of a model beside this one that is read and not trained, and of keys
        that are looked up exactly (`spalm`). An index of FAISS is not counted.
    state: bytes of a decoding state of one row, None where the model has none.
    weights: bytes of parameters and buffers.
    activations: bytes that are alive at the end of a forward beyond weights and optimiser.
    peak: the most bytes that are alive at once in training: weights, gradients, optimiser, activations.
    process: the most bytes of a process that trains it: what it has before, and the peak with what freed blocks leave
        behind; None where the system does not tell. It is within 15% of a fresh one's, but where blocks of some
        megabytes come and go on long rows, where glibc's heap breaks up: `kinformer cost --help` says how much, and
        what keeps it whole. It is that of a full memory, or of one that has heard 4,096 tokens of a row.
    readers: for each layer that reads, who reads it in a step: the names of executors, and how often each.
    temporal_range: how many tokens back an output can depend on one, through all layers; None where that is all of a
        text, or not known. A learned span counts as it begins.
    memories: what each layer with a memory reads beside its own segment.
    """

    batch: int
    length: int
    parameters: int
    flops: int
    once: int
    state: int | None
    weights: int
    activations: int
    peak: int
    process: int | None
    readers: Mapping[str, Mapping[str, int]]
    temporal_range: TemporalRange | None = None
    memories: Mapping[str, MemoryCost] = field(default_factory=dict)

    @property
    def step_flops(self) -> int:
        """Additions and multiplications of a training step: a backward makes two for each of the forward it goes to."""
        return 3 * self.flops - 2 * self.once


def cost(model: Model, batch: int, length: int, on_progress: Callable[[int], None] = lambda done: None) -> Cost:
    """What training and decoding a model take, found by running it on a few random rows.

    A batch of up to 4,096 tokens is run as it is; of a larger one the memory is that of two smaller ones, drawn out in
    a line. Multiplications are PyTorch's count (`torch.utils.flop_counter`) over the reference's way to
    read: of all pairs where a pattern is `Full()` or `Causal()`, else of the pairs that it allows.

    Bytes of tensors are counted, and what a kernel keeps to itself is not among them. A process is measured while it
    runs them, where the system tells (Linux) and nothing large ran in it before; else it is reckoned from the tensors.

    model: as a member makes it, on the CPU. It is trained for a few steps: do not use it afterwards.
    batch, length: rows of a batch, and tokens that a model reads of each; of a text one more comes, which it predicts.
    on_progress: called with the number of its `STAGES` that are done.

    Errors: ValueError for rows that the model does not take, and for numbers below 1.
    """
    if min(batch, length) < 1:
        raise ValueError(f"batch={batch} and length={length}; both are numbers from 1 on")
    span, memories = temporal_range(model), remembered_by_layer(model)  # before steps change what is learned
    before, anew = resident(), restart_peak()
    weights = sum(x.untyped_storage().nbytes() for x in {x.data_ptr(): x for x in _own_tensors(model)}.values())
    parameters = sum(parameter.numel() for parameter in model.parameters())
    state = _state_bytes(model, length)
    on_progress(1)
    readers: dict[str, Counter[str]] = {}
    max_rows = max(2, TOKENS // length)
    less = _memory(model, max_rows // 2, length, readers) if batch > max_rows else None
    on_progress(2)
    used = _memory(model, min(batch, max_rows), length, readers)
    on_progress(3)
    if less is not None:
        used = used.extrapolate(less, (batch - max_rows) / (max_rows - max_rows // 2))
    process = None if before is None else before + used.process_growth(before if anew else None)
    flops, once = (batch * count for count in _flops(model, length))
    reader_counts = {
        layer: dict(counts) for layer, counts in readers.items()
    }  # asdict makes other Mappings of Counters
    return Cost(
        batch,
        length,
        parameters,
        flops,
        once,
        state,
        weights,
        used.activations,
        used.peak,
        process,
        reader_counts,
        span,
        memories,
    )


def _own_tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _state_bytes(model: Model, length: int) -> int | None:
    try:
        state = model.start(1, length)
    except NoState:
        return None
    return sum(leaf.nbytes for _, leaf in leaves(state))


def sample_rows(model: Model, rows: int, length: int) -> Batch:
    """Random rows as a training on this length has them: those of a text end with a token that is only predicted."""
    return model.sample(rows, length + int(predicts_last(model)), 0)


def predicts_last(model: Model) -> bool:
    """Does it read all of a row of a text but the last token, and predict that?"""
    return model.reads == "text" and model.predicts_next


def _begin_state(model: Model, batch: Batch, length: int) -> State | None:
    return model.start(len(batch), length) if model.lanes else None


def filled_state(model: Model, rows: int, length: int, state: State | None = None) -> State | None:
    """The state of as many lanes once it grows no more: the later half of what they have read brought nothing."""
    if not model.lanes:
        return None
    size = max(length, LEAST)
    batch, max_size, full = sample_rows(model, rows, size), 0, 0
    state = _begin_state(model, batch, length) if state is None else state
    with torch.no_grad():
        for read in range(1, -(-FILLING // size) + 1):
            state = model(batch, state, 0.5).state
            if (size_now := _state_size(state)) > max_size:
                max_size, full = size_now, read
            elif read >= 2 * full + 2:
                break
    return state


def _state_size(state: State) -> int:
    """A number that grows while a state does, in bytes or in slots that hold a token, which have a position."""
    tensors = (leaf for _, leaf in leaves(state))
    return sum(leaf.nbytes + (0 if leaf.is_floating_point() else int((leaf >= 0).sum())) for leaf in tensors)


class StepMemory(NamedTuple):
    """Bytes of some training steps: of activations, at the highest within forward and backward, at that within the
    optimiser's step, and the most that the process had by then."""

    activations: int
    high: int
    steady: int
    top: int | None

    @property
    def peak(self) -> int:
        """The most bytes of tensors that were alive at once."""
        return max(self.high, self.steady)

    def extrapolate(self, less: "StepMemory", times: float) -> "StepMemory":
        """Of a larger batch, on a line from a smaller one through this; `times` as far behind it as they are apart."""
        activations, high = (
            round(now + times * (now - before)) for now, before in zip(self[:2], less[:2], strict=True)
        )
        top = None if self.top is None or less.top is None else round(self.top + times * (self.top - less.top))
        return StepMemory(activations, high, self.steady, top)

    def process_growth(self, before: int | None) -> int:
        """The bytes that a process of `here` bytes took more; reckoned from tensors where it had room from before."""
        grown = 0 if before is None or self.top is None else self.top - before
        return grown if grown >= self.peak else round(KEPT * self.peak)


def _memory(model: Model, rows: int, length: int, readers: dict[str, Counter[str]]) -> StepMemory:
    """Some training steps on as many rows. Who read the layers in the last one goes into `readers`."""
    model.train()
    optimiser, apart, clipped = adamw(model, 1e-6, 0.0), clip_groups(model), Settings().clip
    batch = sample_rows(model, rows, length)
    activations = high = steady = 0

    def note(layer: str, executor: str, request: Request) -> None:
        readers.setdefault(layer or "reads", Counter())[executor] += 1

    with Tally(_own_tensors(model)) as tally, layers_that_read(model, note):
        state = _begin_state(model, batch, length)
        for step in range(STEPS * (1 + model.lanes)):  # of lanes with an empty memory, and with a full one
            if step == STEPS:
                state = filled_state(model, rows, length, state)
                tally.restart()
            readers.clear()
            before = tally.live
            loss = model(batch, state, 0.5)
            activations = max(activations, tally.live - before)
            loss.total.backward()
            clip(apart, clipped)
            high = max(high, tally.restart())
            optimiser.step()
            steady = max(steady, tally.restart())
            optimiser.zero_grad(set_to_none=True)
            after_step(model, 0.5, loss.stats)
            state = detach(loss.state) if model.lanes else None
            del loss
            tally.restart()
    return StepMemory(activations, high, steady, peak_resident())


def _flops(model: Model, length: int) -> tuple[int, int]:
    """Additions and multiplications of the forward of one row, its memory filled; and those that no backward goes to.

    Only where another model is held are gradients made, to tell the two: what is reversible cannot be counted with
    them. One thread, as what others multiply in a search is not seen.
    """
    model.train()
    batch, threads = sample_rows(model, 1, length), torch.get_num_threads()
    has_frozen, state = bool(getattr(model, "held", ())), filled_state(model, 1, length)
    try:
        torch.set_num_threads(1 if has_frozen else threads)
        with torch.set_grad_enabled(has_frozen), counting() as tally:
            model(batch, state, 0.5)
    finally:
        torch.set_num_threads(threads)
    return tally.flops, tally.still if has_frozen else 0


@contextmanager
def counting() -> Iterator[Tally]:
    """While it is entered a Tally counts what is multiplied, reads of keys as the reference makes them."""
    shares = dict[Any, float]()  # the part of its pairs that a pattern allows
    with Tally() as tally, reading_through(partial(_count_read, tally, shares)):
        yield tally


def _count_read(tally: Tally, shares: dict[Any, float], name: str, request: Request, executor: Any) -> AttentionOutput:
    """A read that is counted as the reference's, whoever reads."""
    with tally.without_counting():
        tally.add(_read_flops(request, shares))
        return executor.read(request)


def _read_flops(request: Request, shares: dict[Any, float]) -> int:
    """What the reference multiplies for a read, or the share of it that the pattern allows."""
    queries = request.queries.q.shape[2]
    piece = request.replace(memo=empty_memo()) if queries <= QUERIES else request.piece(slice(0, QUERIES), None)
    whole = products_of(lambda: reference.read(piece)) * queries / min(QUERIES, queries)
    if type(request.pattern) in (Full, Causal):
        return round(whole)
    key = request.pattern, _values(request.queries.pos), _values(request.keys.pos)
    if request.rows is not None or key not in shares:
        shares[key] = _share(request)
    return round(whole * shares[key])


def _values(pos: Tensor) -> tuple[tuple[int, ...], bytes]:
    """Positions by value: where a tensor lies, another may lie next."""
    return tuple(pos.shape), pos.numpy().tobytes()


def _share(request: Request) -> float:
    """The pairs that are allowed over all pairs."""
    queries, keys = request.queries, request.keys
    heads = range(queries.head, queries.head + queries.q.shape[1])
    step = -(-queries.q.shape[2] // SAMPLED)
    at = queries.pos[:, :, step // 2 :: step]
    total = 0.0
    for positions in at.split(QUERIES, 2):
        allowed = pair_mask(request.pattern, positions, keys.pos, heads, request.rows)
        shape = (len(queries.q), len(heads), positions.shape[2], keys.pos.shape[2])
        total += math.prod(shape) if allowed is None else int(allowed.expand(shape).sum())
    return total / (len(queries.q) * len(heads) * at.shape[2] * keys.pos.shape[2])
