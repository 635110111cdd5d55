"""Minutes that a suggested command trains a member, from a training step that is timed on a short row."""

import math
from statistics import median

import torch

from kinformer.lab.advise.estimates import TrainingEstimate, estimate_training
from kinformer.lab.compare.step_time import step_seconds
from kinformer.lab.train.settings import Precision

STEPS = 200  # fewest steps of a suggested training
TURNS = 3  # steps whose median time is taken
TIMED = 512  # most tokens of the row whose step is timed
ROUND_MINUTES = (3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720)  # minutes that are suggested
DAY = 24 * 60


def training_minutes(
    estimate: TrainingEstimate, length: int, batch: int, precision: Precision, device: torch.device
) -> int:
    """Return the minutes in which a member (named model) makes about 200 steps, rounded up.

    Three steps on a single row of at most 512 tokens are timed. A whole step takes longer than their median, in
    proportion to its estimated operations.

    estimate: the member with its estimated operations.
    length: tokens of a row.
    batch: rows of a batch.
    precision: precision of the training.
    device: device of the training.
    """
    timed = min(length, TIMED)
    model = estimate.choice.build(0).to(device)
    seconds = median(step_seconds(model, 1, timed, precision) for _ in range(TURNS))
    growth = estimate.row_flops / estimate_training(estimate.choice, timed).row_flops
    return round_up_minutes(STEPS * batch * growth * seconds / 60)


def round_up_minutes(minutes: float) -> int:
    """Return the next round number of minutes, such as 15 for 11.3.

    It is at least 3. Beyond 12 hours, it is a number of whole days.

    minutes: the number to round up.
    """
    return next((number for number in ROUND_MINUTES if number >= minutes), math.ceil(minutes / DAY) * DAY)
