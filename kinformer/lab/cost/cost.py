"""cost: parameters, operations and memory of a model, measured before its training."""

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
from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import State
from kinformer.core.mechanism import NoState
from kinformer.core.memo import empty_memo
from kinformer.core.memory import MemoryCost
from kinformer.core.model import Batch, Model
from kinformer.core.pattern import pair_mask
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.state import detach, leaves, state_bytes
from kinformer.lab.cost.operator_counts import Tally, products_of
from kinformer.lab.cost.resident_memory import peak_resident, resident, restart_peak
from kinformer.lab.cost.temporal_range import TemporalRange, remembered_by_layer, temporal_range
from kinformer.lab.data.batches import device_of, to_device
from kinformer.lab.train.attention_hooks import layers_that_read, reading_through
from kinformer.lab.train.optimiser import adamw, clip, clip_groups
from kinformer.lab.train.settings import Precision, Settings

QUERIES = 64  # queries that the reference reads to count the flops per query
SAMPLED = 1024  # most queries for the count of allowed pairs; rows up to this length are counted whole
TOKENS = 4096  # most tokens of a batch that is run; at least two rows are run
PERCENT = 100  # of the progress of a measurement
STEPS = 3  # training steps; the optimiser's means exist from the second step on
FILLING, LEAST = 4096, 64  # most tokens of a row to fill a memory with, and least tokens per call
KEPT = 1.25  # bytes that glibc holds per byte alive at the peak (tests/lab/train/test_cost.py)


@dataclass(frozen=True)
class Cost:
    """Cost of a training step on `batch` rows of `length` tokens, and of a decoded text.

    batch: rows of a batch.
    length: tokens of a row.
    parameters: number of learned numbers; tied parameters count once.
    flops: additions and multiplications of one forward pass. A training step makes three times as many.
    once: the part of `flops` that has no backward pass, so that a training step makes it only once. It belongs to a
        second model that is not trained, and to an exact search of keys (`spalm`). A FAISS index is not counted.
    state: bytes of the decoding state of one row; None if the model has no state.
    weights: bytes of parameters and buffers.
    activations: bytes that are alive at the end of a forward pass, without weights and optimiser.
    peak: most bytes that are alive at once in training: weights, gradients, optimiser, activations.
    process: most bytes of the training process: its bytes before the training, plus the peak, plus the fragmentation of
        freed blocks. None if the system does not report it. The estimate is within 15% of a fresh process. Long rows
        may need more, if they allocate and free blocks of some megabytes, which fragment the heap of glibc; `kinformer
        cost --help` gives a remedy. For a model with a memory of earlier segments, the memory is full or holds 4,096
        tokens of a row.
    readers: for each attention layer, the executors (ways to compute attention) that it uses in a step, and the number
        of calls of each.
    temporal_range: the number of tokens from an output back to the earliest token that can change it, through all
        layers. None if it is the whole text, or unknown. A learned attention span counts with its initial value.
    memories: the memory of earlier segments that each layer attends to, by the name of the layer.
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
        """Number of additions and multiplications of a training step.

        The backward pass makes two for each one of the forward pass, without `once`.
        """
        return 3 * self.flops - 2 * self.once


def cost(
    model: Model,
    batch: int,
    length: int,
    on_progress: Callable[[int], None] = lambda done: None,
    precision: Precision = "float32",
) -> Cost:
    """Measure the cost of training and decoding a model by running it on a few random rows.

    A batch of up to 4,096 tokens is run whole. The memory of a larger batch is extrapolated linearly from two smaller
    batches. Additions and multiplications are counted by PyTorch (`torch.utils.flop_counter`). Attention counts as
    the reference executor computes it. That is over all pairs of query and key for the patterns `Full()` and
    `Causal()`, and only over the allowed pairs for other patterns.

    Bytes of tensors are counted, without the internal buffers of kernels. The process is measured during these runs if
    the system reports its memory (Linux) and if nothing large ran in it before. Otherwise its memory is estimated from
    the tensors. On a GPU, the memory that PyTorch holds there is measured instead, without the context of CUDA.

    model: a model as a member function returns it. It is trained for a few steps: do not use it afterwards.
    batch, length: rows of a batch, and tokens that the model reads of each row. A row of a text has one more token,
        which is only predicted.
    on_progress: called with the finished percentage, at least after each training step.
    precision: "bf16" runs the forward passes in bfloat16 by autocast, as a training does.

    Errors: ValueError if the model does not take such rows, or if a number is below 1.
    """
    if min(batch, length) < 1:
        raise ValueError(f"wrong batch or length: got batch={batch} and length={length}, expected at least 1")
    span, memories = temporal_range(model), remembered_by_layer(model)  # before training steps change the weights
    device = device_of(model)
    before, anew = resident(device), restart_peak(device)
    weights = sum(x.untyped_storage().nbytes() for x in {x.data_ptr(): x for x in _own_tensors(model)}.values())
    parameters = sum(parameter.numel() for parameter in model.parameters())
    state = _state_bytes(model, length)
    readers: dict[str, Counter[str]] = {}
    max_rows = max(2, TOKENS // length)
    sizes = [*([max_rows // 2] if batch > max_rows else []), min(batch, max_rows)]
    total_rows, done_rows = STEPS * (1 + model.lanes) * sum(sizes) + 1, 0  # 1: the row whose operations are counted

    def on_step(rows: int) -> None:
        nonlocal done_rows
        done_rows += rows
        on_progress(PERCENT * done_rows // total_rows)

    by_size = [_memory(model, rows, length, readers, precision, on_step) for rows in sizes]
    less, used = by_size[0] if len(sizes) > 1 else None, by_size[-1]
    if less is not None:
        used = used.extrapolate(less, (batch - max_rows) / (max_rows - max_rows // 2))
    process = None if before is None else before + used.process_growth(before if anew else None)
    flops, once = (batch * count for count in _flops(model, length))
    on_progress(PERCENT)
    reader_counts = {
        layer: dict(counts) for layer, counts in readers.items()
    }  # asdict turns Counters into other mappings
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
    """Return the parameters and buffers of a model."""
    return [*model.parameters(), *model.buffers()]


def _state_bytes(model: Model, length: int) -> int | None:
    """Return the bytes of the decoding state of a row; None if the model has no state."""
    try:
        with evaluating(model):  # some layers with a memory have another state in training
            return state_bytes(model.start(1, length))
    except NoState:
        return None


def sample_rows(model: Model, rows: int, length: int) -> Batch:
    """Return random rows as a training has them; a row of a text ends with a token that is only predicted.

    model: the model, which draws the rows.
    rows: number of rows.
    length: tokens that the model reads of each row.
    """
    batch: Batch = to_device(device_of(model), model.sample(rows, length + int(predicts_last(model)), 0))
    return batch


def predicts_last(model: Model) -> bool:
    """Return True if the model reads all tokens of a text row except the last, and predicts that token.

    model: the model.
    """
    return model.reads == "text" and model.predicts_next


def _begin_state(model: Model, batch: Batch, length: int) -> State | None:
    return model.start(len(batch), length) if model.lanes else None


def filled_state(model: Model, rows: int, length: int, state: State | None = None) -> State | None:
    """Return the state that a model carries from batch to batch when it has stopped growing.

    None for a model that is not trained on lanes (parallel pieces of a text).

    The state counts as full if the second half of the tokens read did not enlarge it.

    model: the model.
    rows: number of lanes.
    length: tokens per row.
    state: a state to start from; an empty one by default.
    """
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
    """Return a number that grows with a state: its bytes plus its slots with a token, which have a position."""
    tensors = (leaf for _, leaf in leaves(state))
    return sum(leaf.nbytes + (0 if leaf.is_floating_point() else int((leaf >= 0).sum())) for leaf in tensors)


class StepMemory(NamedTuple):
    """Memory that a few training steps were measured to use, in bytes.

    activations: bytes of activations.
    high: peak within forward and backward passes.
    steady: peak within the optimiser's step.
    top: peak of the process; None if the system does not report it.
    """

    activations: int
    high: int
    steady: int
    top: int | None

    @property
    def peak(self) -> int:
        """The most bytes of tensors that were alive at once."""
        return max(self.high, self.steady)

    def extrapolate(self, less: "StepMemory", times: float) -> "StepMemory":
        """Return the memory for a larger batch, extrapolated linearly from two measured batches.

        less: memory of a smaller batch.
        times: distance to the larger batch, in units of the distance between the two known batches.
        """
        activations, high = (
            round(now + times * (now - before)) for now, before in zip(self[:2], less[:2], strict=True)
        )
        top = None if self.top is None or less.top is None else round(self.top + times * (self.top - less.top))
        return StepMemory(activations, high, self.steady, top)

    def process_growth(self, before: int | None) -> int:
        """Return by how many bytes the process grew in the training steps.

        before: bytes of the process before the steps; None if unknown. Then, or if the process had unused memory
            before, the growth is estimated from tensors.
        """
        grown = 0 if before is None or self.top is None else self.top - before
        return grown if grown >= self.peak else round(KEPT * self.peak)


def _memory(
    model: Model,
    rows: int,
    length: int,
    readers: dict[str, Counter[str]],
    precision: Precision,
    on_step: Callable[[int], None],
) -> StepMemory:
    """Run some training steps on `rows` rows, and call `on_step(rows)` after each.

    The executors of the last step are counted in `readers`.
    """
    model.train()
    optimiser, apart, clipped = adamw(model, 1e-6, 0.0), clip_groups(model), Settings().clip
    batch, device = sample_rows(model, rows, length), device_of(model)
    activations = high = steady = 0

    def note(layer: str, executor: str, request: Request) -> None:
        readers.setdefault(layer or "reads", Counter())[executor] += 1

    with Tally(_own_tensors(model)) as tally, layers_that_read(model, note):
        state = _begin_state(model, batch, length)
        for step in range(STEPS * (1 + model.lanes)):  # lanes: with an empty memory, then with a full one
            if step == STEPS:
                state = filled_state(model, rows, length, state)
                tally.restart()
            readers.clear()
            before = tally.live
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
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
            on_step(rows)
    return StepMemory(activations, high, steady, peak_resident(device))


def _flops(model: Model, length: int) -> tuple[int, int]:
    """Return the flops of the forward pass of one row with a full memory, and the flops without a backward pass.

    Gradients are enabled only for a model that holds another one, to separate the two counts. Flops of reversible parts
    cannot be counted with gradients. One thread is used then, because the count misses other threads of a search.
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
    """Count flops and memory in a `Tally` while the context is entered.

    Attention counts with the flops of the reference implementation, even if a faster one runs.
    """
    shares = dict[Any, float]()  # allowed share of the pairs, by pattern and positions
    with Tally() as tally, reading_through(partial(_count_read, tally, shares)):
        yield tally


def _count_read(tally: Tally, shares: dict[Any, float], name: str, request: Request, executor: Any) -> AttentionOutput:
    """Read with the chosen executor, and count the flops of the reference."""
    with tally.without_counting():
        tally.add(_read_flops(request, shares))
        return executor.read(request)


def _read_flops(request: Request, shares: dict[Any, float]) -> int:
    """Return the flops of the reference for a request, times the share of pairs that the pattern allows."""
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
    """Return positions by value, because another tensor may later have the same address."""
    return tuple(pos.shape), pos.cpu().numpy().tobytes()


def _share(request: Request) -> float:
    """Return the number of allowed pairs over the number of all pairs."""
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
