"""GuessLevel: the score of a model that has learned nothing, to recognise a failed training."""

import math
from typing import NamedTuple

from kinformer.core.model import Metric, Model
from kinformer.lab.data.data import Data
from kinformer.lab.train.settings import Settings

GUESSES = ("guessing", "always ")  # beginnings of the names of levels that no learning is needed for


class GuessLevel(NamedTuple):
    """The score of a guess that needs no training, such as 8 bits per byte for 256 equally likely bytes.

    name: the guess in words, such as "a uniform guess".
    value: its score.
    metric: the metric of the score.
    """

    name: str
    value: float
    metric: Metric

    def is_better(self, value: float) -> bool:
        """Return True if a score is better than the guess.

        value: the score of a model, in the same metric.
        """
        return value < self.value if self.metric.better == "less" else value > self.value

    def __str__(self) -> str:
        return f"{self.name} ({self.value:.3f} {self.metric.name})"


def guess_level(model: Model, data: Data, settings: Settings) -> GuessLevel | None:
    """Return the score of a guess on validation data; None if the metric has no such level.

    In bits, the guess gives all tokens the same probability: log2 of the vocabulary per token. For accuracy it is the
    level that the data knows, such as the share of right answers of a guess, or of always the commonest label.

    model: the model, which decides the metric.
    data: the data.
    settings: settings with the length of rows and the size of the sample.
    """
    metric = data.metric(model)
    if metric.unit == "bits":
        return GuessLevel("a uniform guess", math.log2(data.vocab) / data.bytes_per_token, metric)
    if metric.name != "accuracy":
        return None
    levels = data.levels(model, "valid", settings.length, settings.sample_bytes)
    known = {name: value for name, value in levels.items() if name.startswith(GUESSES)}
    return next((GuessLevel(name, value, metric) for name, value in known.items()), None)
