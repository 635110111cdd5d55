"""ArenaTask: a task of the arena, with its budget and the score that a plain GPT must reach on it."""

from collections.abc import Mapping
from dataclasses import dataclass

from kinformer.core.training_recipe import Recipe
from kinformer.lab.train.settings import Settings

NOVEL = "text=NOVEL"  # the place of the file that the user names
RATES = (1.5e-3, 5e-3, 1.5e-2)  # learning rates that are tried for each group of members
SOLVED = 0.9  # accuracy that gpt must reach with every seed
WARMUP = 0.1  # fraction of a training run in which the rate rises
SAMPLE = 32_768  # bytes of a text that a measurement reads


@dataclass(frozen=True)
class ArenaTask:
    """A task of the arena: data, a budget in steps, and the score that gpt must reach.

    A task compares members only if a plain GPT of the same size learns it within the budget. Otherwise all scores
    measure the budget. So each task begins with gpt, and the other members follow if gpt passes with every seed.

    name: name of the task.
    data: the data, as --data takes it; NOVEL stands for a text that the user names.
    steps: training steps of every member.
    batch: rows of a batch.
    length: tokens of a row of text; the rows of other data have their own length.
    heads: attention heads of each layer; None for the members' own numbers.
    """

    name: str
    data: str
    steps: int
    batch: int
    length: int = 128
    heads: int | None = None

    @property
    def is_text(self) -> bool:
        """Whether the task is a text, which is measured in bits per byte; lower is better."""
        return self.data.startswith("text=")

    def settings(self, rate: float, seed: int) -> Settings:
        """Return the settings of a training run, which are the same for all members except for the rate.

        rate: peak learning rate, after the warm-up.
        seed: seed of the weights and batches.
        """
        recipe = Recipe(lr=rate, warmup=WARMUP)
        return Settings(batch=self.batch, length=self.length, seed=seed, plan=recipe, measures=4, valid_bytes=SAMPLE)

    def passes(self, score: float, levels: Mapping[str, float]) -> bool:
        """Return whether gpt has learned the task: an accuracy of 90%, or fewer bits per byte than gzip -9.

        score: the score of gpt on test data.
        levels: reference scores of the data by name, such as "gzip -9".
        """
        return score < levels["gzip -9"] if self.is_text else score >= SOLVED


# The budgets come from training runs of gpt; docs/arena.md lists them.
TASKS = (
    ArenaTask("novel", NOVEL, 600, 16),
    ArenaTask("induction", "task=induction,length=16,symbols=8", 400, 32),
    ArenaTask("selective_copying", "task=selective_copying,length=4,dots=8", 500, 32),
    ArenaTask("in_context_recall", "task=in_context_recall,pairs=8,keys=2", 600, 64),
    ArenaTask("listops", "task=listops,longest=12,arguments=3,deepest=2", 600, 32),
    ArenaTask("sequence_compression", "task=sequence_compression", 200, 32),
    ArenaTask("memorization", "task=memorization", 150, 32),
    ArenaTask("mqar_4", "task=mqar,pairs=4,length=16", 1000, 64, heads=1),
    ArenaTask("noisy_in_context_recall", "task=noisy_in_context_recall,pairs=8,keys=2", 500, 64, heads=1),
    ArenaTask("fuzzy_in_context_recall", "task=fuzzy_in_context_recall,keys=2,times=4,longest=2", 600, 64),
)
