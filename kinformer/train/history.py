"""History: what a training did, measurement by measurement."""

import json
from dataclasses import asdict, dataclass, field

from kinformer.core.model import Metric


@dataclass(frozen=True)
class Point:
    """A measurement: after so many steps and minutes of training, the metric on valid and the loss in training.

    `train` is smoothed, in bits where the metric is in bits and else in the loss's own unit.
    """

    step: int
    minutes: float
    train: float
    valid: float


@dataclass
class History:
    """What a training did: its points, and the tokens and seconds it took, measuring and saving not counted."""

    metric: Metric
    points: list[Point] = field(default_factory=list)
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def best(self) -> Point:
        """The point with the best metric on valid: the model that the folder holds."""
        sign = 1 if self.metric.better == "less" else -1
        return min(self.points, key=lambda point: sign * point.valid)

    @property
    def speed(self) -> float:
        """Tokens per second of training."""
        return self.tokens / self.seconds

    def text(self) -> str:
        """All of it as JSON."""
        return json.dumps({**asdict(self), "metric": self.metric._asdict()}, indent=2)
