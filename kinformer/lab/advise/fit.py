"""Fit: a member (named model) that can do a task, with its estimated costs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kinformer.lab.advise.arena_scores import ArenaScores
from kinformer.lab.advise.estimates import TrainingEstimate


@dataclass(frozen=True)
class Fit:
    """A member (named model) that can do a task, with its estimated costs.

    name: name of the member.
    estimate: the estimated training cost.
    process: estimated bytes of the whole process that trains it on the batch.
    largest_batch: most rows of a batch that fit in memory.
    faster: a measured row length, and how many times as fast as the baseline member a training step is there; None if
        not measured.
    length: tokens of a row.
    reach: largest number of tokens from an output back to the earliest token that can change it; None if no limit is
        known.
    """

    name: str
    estimate: TrainingEstimate
    process: float
    largest_batch: int
    faster: tuple[int, float] | None
    length: int
    reach: int | None = None

    @property
    def limits(self) -> list[str]:
        """Sentences about what the member cannot do on such rows: it may see only a part of them."""
        if self.reach is None or self.reach + 1 >= self.length:
            return []
        tokens = f"the last {self.reach + 1:,} of the {self.length:,} tokens of a row"
        return [f"An output depends on at most {tokens}, before training."]

    @property
    def costs(self) -> tuple[float, float, float]:
        """Training operations, bytes of the decoding state and bytes of the training process; lower is better.

        A model without a decoding state reads all earlier tokens again, so its state counts as infinite.
        """
        state = self.estimate.state_bytes
        return self.estimate.row_flops, float("inf") if state is None else state, self.process

    def as_json(self, tasks: Sequence[ArenaScores]) -> dict[str, Any]:
        """Return the member as values for JSON.

        tasks: the tasks of the arena.
        """
        estimate = self.estimate
        return {
            "member": estimate.choice.text,
            "parameters": estimate.parameters,
            "process_bytes": round(self.process),
            "largest_batch": self.largest_batch,
            "step_flops_of_a_row": round(estimate.row_flops),
            "state_bytes": None if estimate.state_bytes is None else round(estimate.state_bytes),
            "faster_than_baseline": self.faster,
            "reach": self.reach,
            "arena": {task.name: asdict(task.members[self.name]) for task in tasks if self.name in task.members},
        }
