"""Learner: takes optimiser steps; a failed step leaves weights and random numbers unchanged."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.core.after_step import after_step
from kinformer.core.layer import State
from kinformer.core.loss import Loss
from kinformer.core.model import Model
from kinformer.core.state import select
from kinformer.lab.data.batches import device_of, to_device, tokens_of
from kinformer.lab.data.data import Stream
from kinformer.lab.data.lanes import Lanes
from kinformer.lab.data.resumable_stream import ResumableStream, StepError
from kinformer.lab.train.distributed import SingleProcess
from kinformer.lab.train.learning_rate_schedule import RecipeLR
from kinformer.lab.train.micro_batches import combine_losses, cut, cut_state, detach_loss, join_states, row_count, rows
from kinformer.lab.train.optimiser import adamw, clip, clip_groups
from kinformer.lab.train.out_of_memory import is_out_of_memory, largest_fitting
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.training_tensors import random_tensors, restore_random


class StepResult(NamedTuple):
    """The result of an optimiser step.

    tokens: tokens of the whole batch.
    lr: the learning rate.
    norm: norm of the gradient before clipping.
    parts: the parts of the loss by name, and their total as "total".
    """

    tokens: int
    lr: float
    norm: float
    parts: Mapping[str, float]


class Learner:
    """A model with its optimiser, its batches, and the model state that is carried from step to step.

    model: the model.
    stream: the sequence of batches.
    settings: settings of the training.
    group: the processes that share the batches.
    """

    def __init__(self, model: Model, stream: Stream, settings: Settings, group: SingleProcess) -> None:
        self.model, self.stream, self.settings, self.group = model, stream, settings, group
        self.device = device_of(model)
        self.recipe = settings.recipe(model)
        self.call = group.call(model, torch.compile if settings.compile else _keep_eager)
        recipe = self.recipe
        self.optimiser = adamw(model, recipe.peak, settings.decay, recipe.betas, recipe.eps)
        self.schedule = RecipeLR(self.optimiser, recipe)
        self.apart = clip_groups(model)
        self.state: State | None = None

    def step(self, number: int, spent: float) -> StepResult:
        """Take optimiser step `number` at the fraction `spent` of the budget.

        Errors: StepError if its loss is not finite, or if memory is too small.
        """
        self.group.seed_step(self.settings.seed, number)
        tokens, losses, norm = self.gradients(number, spent)
        lr = self.schedule.begin(number, spent)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        parts, stats = combine_losses(losses)
        with self.stream.moving() if isinstance(self.stream, ResumableStream) else nullcontext():
            after_step(self.model, spent, stats)
        self.state = join_states([loss.state for loss in losses]) if isinstance(self.stream, Lanes) else None
        return StepResult(tokens, lr, float(norm), parts)

    def gradients(self, number: int, spent: float) -> tuple[int, list[Loss], Tensor]:
        """Compute the gradient of a step; return the batch's tokens, the losses of its pieces, and the norm.

        The gradient is left in the parameters, clipped; the norm is its norm before clipping.

        number: number of the step.
        spent: fraction of the budget that is spent.
        """
        random_state, failed = random_tensors(self.device), None
        try:
            pieces, states, tokens = self.pieces(number)
            losses = self.learn(number, pieces, states, spent)
            norm = clip(self.apart, self.settings.clip)
            self._check_finite("gradient", norm, number)
            return tokens, losses, norm
        except StepError as error:
            failed = error
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or self.group.size > 1:  # a search for what fits needs all processes
                raise
        self.optimiser.zero_grad(set_to_none=True)  # outside the handler, which keeps the failed step's tensors alive
        failed = failed or self._too_large_error(number, spent)
        restore_random(self.device, random_state)
        raise failed

    def pieces(self, number: int) -> tuple[list[Any], list[State | None], int]:
        """Return this process's rows in pieces, the model state before each piece, and the number of tokens.

        The pieces are micro-batches. The number of tokens counts the whole batch, over all processes.

        number: number of the step.
        """
        count = self.settings.accumulate
        batch = self.stream.at(number)
        mine = self.group.share(batch, count)
        pieces = [to_device(self.device, piece) for piece in cut(mine, count)]
        if not isinstance(self.stream, Lanes):
            return pieces, [None] * len(pieces), tokens_of(batch)
        self.state = self.stream.state_before(self.model, number, self.state, self.group.rows(self.stream.batch))
        return pieces, cut_state(self.state, row_count(mine), count), tokens_of(batch)

    def learn(self, number: int, pieces: list[Any], states: list[State | None], spent: float) -> list[Loss]:
        """Add up the gradients of the mean loss over all targets of the pieces; return the detached losses.

        number: number of the step, for errors.
        pieces: micro-batches of this process.
        states: the model state before each piece, or None.
        spent: fraction of the budget that is spent.
        """
        losses = []
        for piece, state in zip(pieces, states, strict=True):
            loss = self.read(piece, state, spent)
            self._check_finite("loss", loss.total, number)
            (loss.total if len(pieces) == 1 else loss.total * loss.count).backward()
            losses.append(detach_loss(loss))
        if len(pieces) > 1:
            self.divide(sum(float(loss.count) for loss in losses))
        return losses

    def read(self, piece: Any, state: State | None, spent: float) -> Loss:
        """Return the model's loss for a piece of the batch, in the precision of the settings."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            return self.call(piece, state, spent)

    def divide(self, count: float) -> None:
        """Divide the gradients, which are sums over `count` targets, by that number."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(max(count, 1.0))

    def _check_finite(self, name: str, value: Tensor, number: int) -> None:
        """Raise StepError if a value of step `number` is not finite."""
        if not math.isfinite(scalar := float(value.detach())):
            batch = f"chunk {number % self.stream.chunks}" if isinstance(self.stream, Lanes) else f"batch {number}"
            why = f"the {name} became {scalar} at step {number:,}, in {batch}"
            raise StepError(why, self.advice_on_overflow)

    @property
    def advice_on_overflow(self) -> str:
        """The advice for a loss that is not finite."""
        if any(parameter.dtype == torch.float16 for parameter in self.model.parameters()):
            return "training overflows weights in float16: call model.float(), with precision='bf16' for speed"
        return f"try a lr below {self.recipe.peak:g}"

    def _too_large_error(self, number: int, spent: float) -> StepError:
        """Return an error with the number of rows that fit, tried on this batch."""
        batch, state = self.stream.at(number), self.state
        count = row_count(batch)

        def attempt(row_limit: int) -> None:
            before = None if state is None else select(state, torch.arange(row_limit, device=self.device))
            try:
                self.learn(number, [to_device(self.device, rows(batch, 0, row_limit))], [before], spent)
            finally:
                self.optimiser.zero_grad(set_to_none=True)

        fits = largest_fitting(attempt, -(-count // self.settings.accumulate))
        why = f"out of memory on {self.device}: the batch of {count:,} rows at step {number:,} does not fit"
        if not fits:
            return StepError(why, "a single row does not fit: give checkpointing, a smaller length or a smaller model")
        advice = f"{fits:,} rows fit: give batch={fits}, or accumulate={-(-count // fits)} to split the same batch"
        return StepError(why, advice)


def _keep_eager(model: Model) -> Model:
    return model
