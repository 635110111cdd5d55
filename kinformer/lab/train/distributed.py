"""Distributed training: the processes that `torchrun` starts, or one process as a group of its own.

Each process holds its rows of every batch. Their results are combined so that a step equals the step of one process
with the whole batch. Losses and gradients are averaged by the number of targets, and stats are summed. The loop uses
one object for all of this: a `SingleProcess` or a `ProcessGroup`.
"""

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kinformer.core.layer import State
from kinformer.core.loss import Loss
from kinformer.core.model import Model
from kinformer.core.state import leaves, map_state, select
from kinformer.lab.train.micro_batches import row_count, rows
from kinformer.lab.train.out_of_memory import is_out_of_memory
from kinformer.lab.train.run_folder import FollowerRunFolder, RunFolder

Form = Literal["ddp", "shard"]
Call = Callable[..., Loss]
Compile = Callable[[Any], Any]
Sums = dict[str, tuple[float, int]]
PATIENCE = timedelta(minutes=10)  # how long a process waits for a silent one
# Seconds to wait until gloo's threads have dropped their last tensors, for which they need Python's lock. The group
# outlives its destruction, because modules and caches of PyTorch hold it. A process that ends earlier is aborted.
LET_GO = 0.1
SAID = ("gloo", "nccl", "connection", "peer", "collective")  # words of errors after the end of another process


class ProcessLost(RuntimeError):
    """Error of a distributed training: this process cannot join the others, or another process has ended."""


class SingleProcess:
    """A group of one process, which has every row; base class of the groups of several processes.

    The training loop calls these methods instead of a distributed library. Here they return their arguments unchanged.
    """

    rank, size = 0, 1

    def refuse_few(self, count: int, pieces: int) -> None:
        """Raise ValueError if a batch has fewer rows than the number of processes times `pieces`.

        count: rows of the batch.
        pieces: number of micro-batches into which each process splits its rows.
        """

    def share(self, batch: Any, pieces: int = 1) -> Any:
        """Return this process's rows of a training batch; refuse a batch with too few rows for `pieces`.

        batch: the whole batch.
        pieces: number of micro-batches into which each process splits its rows.
        """
        return batch

    def rows(self, count: int) -> slice:
        """Return the slice of this process's rows in a training batch of `count` rows."""
        return slice(0, count)

    def measured_rows(self, count: int) -> slice:
        """Return the slice of the rows that this process evaluates, in a batch of `count` rows."""
        return slice(0, count)

    def part(self, batch: Any) -> Any:
        """Return the rows of a validation batch that this process evaluates, or None if it has none."""
        return batch

    def own_rows(self, state: State) -> State:
        """Return this process's rows of a model's state, which holds the rows of all processes."""
        return state

    def gather_state(self, state: State) -> State:
        """Return the model's state for all rows, gathered from the processes."""
        return state

    def run(self, folder: Path) -> RunFolder:
        """Return the run folder for this process; only the first process writes the files without shards."""
        return RunFolder(folder)

    def call(self, model: Model, compile_model: Compile) -> Call:
        """Return a function that is called instead of the model and returns the loss of the whole batch.

        compile_model: returns the compiled model, or the model itself.
        """
        return compile_model(model)

    def reduce_max(self, value: float) -> float:
        """Return the largest `value` that any process passes."""
        return value

    def sum(self, sums: Sums) -> Sums:
        """Return the sums over all processes of metric totals and item counts, by metric name."""
        return sums

    def seed_step(self, seed: int, step: int) -> None:
        """Seed the random numbers of a step differently in each process; a single process does nothing."""

    @contextmanager
    def detect_lost_process(self) -> Iterator[None]:
        """Raise ProcessLost in place of an error that was caused by the end of another process."""
        yield


SINGLE_PROCESS: SingleProcess = SingleProcess()


class ProcessGroup(SingleProcess):
    """Processes that train one model on different rows, each with all weights (DistributedDataParallel).

    Each process has its own random numbers (dropout), seeded by seed, step and rank. With the same number
    of processes a training draws the same numbers again. With another number of processes it draws others.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def refuse_few(self, count: int, pieces: int) -> None:
        least = self.size * pieces
        if count < least:
            each = f" with {pieces} micro-batches each" if pieces > 1 else ""
            rows = f"{count} rows" if count > 1 else "a single row"
            raise ValueError(f"{self.size} processes{each} cannot share a batch of {rows}; give at least {least} rows")

    def share(self, batch: Any, pieces: int = 1) -> Any:
        count = row_count(batch)
        self.refuse_few(count, pieces)
        mine = self.rows(count)
        return rows(batch, mine.start, mine.stop)

    def rows(self, count: int) -> slice:
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def measured_rows(self, count: int) -> slice:
        return self.rows(count)

    def part(self, batch: Any) -> Any:
        mine = self.measured_rows(row_count(batch))
        return rows(batch, mine.start, mine.stop) if mine.stop > mine.start else None

    def own_rows(self, state: State) -> State:
        count = _rows_of(state)
        return state if count is None else select(state, torch.arange(count)[self.rows(count)])

    def gather_state(self, state: State) -> State:
        if state is None:
            return None
        done: dict[int, tuple[Tensor, Tensor]] = {}

        def gather(name: str, leaf: Tensor) -> Tensor:
            if id(leaf) not in done:
                done[id(leaf)] = leaf, _concatenate_rows(leaf, self.size)
            return done[id(leaf)][1]

        return map_state(gather, state)

    def run(self, folder: Path) -> RunFolder:
        return FollowerRunFolder(folder) if self.rank else RunFolder(folder)

    def call(self, model: Model, compile_model: Compile) -> Call:
        step = DistributedDataParallel(SharedLossModel(compile_model(model), self), find_unused_parameters=True)

        def call(*inputs: Any) -> Loss:
            total, opaque = step(*inputs)
            return opaque.loss._replace(total=total)

        return call

    def reduce_max(self, value: float) -> float:
        largest = torch.tensor(float(value), dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return float(largest)

    def sum(self, sums: Sums) -> Sums:
        by_process: list[Sums] = [{} for _ in range(self.size)]
        dist.all_gather_object(by_process, sums)
        names = dict.fromkeys(name for part in by_process for name in part)
        of = {name: [part[name] for part in by_process if name in part] for name in names}
        return {
            name: (sum(total for total, _ in pairs), sum(count for _, count in pairs)) for name, pairs in of.items()
        }

    def seed_step(self, seed: int, step: int) -> None:
        mixed = hashlib.sha256(f"{seed} {step} {self.rank}".encode()).digest()
        torch.manual_seed(int.from_bytes(mixed[:8], "little") >> 1)

    @contextmanager
    def detect_lost_process(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            if isinstance(error, dist.DistError) or any(word in str(error).lower() for word in SAID):
                raise ProcessLost("another process of this training has ended, so this process stops too") from error
            raise


class ShardedGroup(ProcessGroup):
    """Processes that train one model on different rows and also shard its weights (`fully_shard`).

    Choose it if a model, its gradients and its optimiser do not fit on one device. The weights of each block are
    gathered when it runs. Each process evaluates all validation data, because all processes have to run each block at
    the same time.
    """

    def measured_rows(self, count: int) -> slice:
        return slice(0, count)

    def sum(self, sums: Sums) -> Sums:
        return sums

    def call(self, model: Model, compile_model: Compile) -> Call:
        from kinformer.lab.train.fsdp import shard

        shard(model)
        program = compile_model(model)

        def call(*inputs: Any) -> Loss:
            with warnings.catch_warnings():
                # blocks may return views, such as the keys of `Lending`; no part writes into its inputs
                warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
                return whole_batch_loss(program(*inputs), self)

        return call


class OpaqueLoss:
    """A wrapper that hides a `Loss` from DistributedDataParallel (DDP).

    Without it, DDP would treat the model's state, which is a field of the loss, as an output to differentiate.

    loss: the loss to hide.
    """

    __slots__ = ("loss",)

    def __init__(self, loss: Loss) -> None:
        self.loss = loss


class SharedLossModel(nn.Module):
    """A wrapper around a model; it returns the loss over the rows of all processes.

    model: the model, or its compiled program.
    group: the processes that share the batch.
    """

    def __init__(self, model: Any, group: ProcessGroup) -> None:
        super().__init__()
        self.model, self.group = model, group
        # DDP searches for unused parameters and warns if it finds none; this parameter is always unused
        self.idle = nn.Parameter(torch.zeros((), device=next(model.parameters()).device))

    def forward(self, batch: Any, state: Any, progress: float) -> tuple[Tensor, OpaqueLoss]:
        loss = whole_batch_loss(self.model(batch, state, progress), self.group)
        return loss.total, OpaqueLoss(loss)


def whole_batch_loss(loss: Loss, group: ProcessGroup) -> Loss:
    """Return the loss of the whole batch, computed from the losses of all processes.

    Its gradient is the gradient of this process's rows, times the number of processes. DDP and FSDP then average
    gradients over processes, which gives the gradient of the whole batch.

    loss: the loss of this process's rows.
    group: the processes that share the batch.
    """
    count = torch.as_tensor(loss.count, device=loss.total.device).double()
    mine = torch.stack([loss.total.detach(), *(part.detach() for part in loss.parts.values())]).double()
    sums = torch.stack([count, *(count * mine)])
    dist.all_reduce(sums)
    every = sums[0].clamp_min(1)
    total, *parts = (sums[1:] / every).to(loss.total.dtype)
    part = loss.total * (group.size * count / every).to(loss.total.dtype)
    stats = {name: loss.stats[name].clone() for name in sorted(loss.stats)}
    for value in stats.values():
        dist.all_reduce(value)
    named = dict(zip(loss.parts, parts, strict=True))
    return Loss(total + (part - part.detach()), named, loss.state, stats, sums[0].long())


def _rows_of(state: State) -> int | None:
    """Return the number of rows of a state; None for a state without tensors."""
    return next((len(leaf) for _, leaf in leaves(state)), None)


def _concatenate_rows(leaf: Tensor, size: int) -> Tensor:
    """Gather the rows of all processes in rank order; the number of rows per process may differ by one."""
    counts = [torch.zeros((), dtype=torch.long) for _ in range(size)]
    dist.all_gather(counts, torch.tensor(len(leaf)))
    max_rows = max(int(count) for count in counts)
    padded = torch.cat([leaf, leaf.new_zeros(max_rows - len(leaf), *leaf.shape[1:])]).contiguous()
    padded_rows = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(padded_rows, padded)
    return torch.cat([rows[: int(count)] for rows, count in zip(padded_rows, counts, strict=True)])


@contextmanager
def processes(form: Form = "ddp") -> Iterator[SingleProcess]:
    """Enter the process group of this process: the processes that torchrun started, or this process only.

    On a GPU machine each process uses the GPU of its local rank and communicates by NCCL; otherwise by gloo. If this
    context created the process group, it destroys the group at an exit without error.

    form: "ddp" keeps all weights in each process; "shard" keeps a part of them in each.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    if not (launched or dist.is_initialized()):
        yield SingleProcess()
        return
    mine = not dist.is_initialized()
    if mine:
        _join_group()
    yield ShardedGroup() if form == "shard" else ProcessGroup()
    if mine:
        dist.destroy_process_group()
        time.sleep(LET_GO)


def _join_group() -> None:
    """Join the process group that torchrun has started; ProcessLost, in one line, if that fails."""
    gpus, place = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        if place >= gpus:
            raise ProcessLost(f"too few GPUs for process {place + 1} on this machine: got {gpus}. Start at most {gpus}")
        torch.cuda.set_device(place)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise ProcessLost(f"cannot connect to the other processes: {str(error).splitlines()[0]}") from error
