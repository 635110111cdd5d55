"""Decoders for claims: a small training on text or pictures, with its validation bits."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple, TypeVar

from kinformer.core.model import Model
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.data.data import Data
from kinformer.lab.train.fit import fit

Name = TypeVar("Name", bound=str)


class TrainingSizes(NamedTuple):
    """Sizes of a small training.

    rows: rows of a batch.
    rate: peak learning rate, after the warm-up.
    length: bytes of a row of text; None for pictures, whose size is their own.
    valid: validation bytes on which a model is measured; None for the default of `fit`.
    """

    rows: int
    rate: float
    length: int | None = None
    valid: int | None = None


class BitsCurve(NamedTuple):
    """Learning curve of one training.

    steps: number of training steps at each evaluation.
    bits: validation bits at each evaluation, per byte of text or per value of a picture.
    """

    steps: list[int]
    bits: list[float]


def train_for_bits(make: Callable[[], Model], seed: int, steps: int, data: Data, sizes: TrainingSizes) -> BitsCurve:
    """Train a model on text or pictures, and return its validation bits at four times.

    Models of one seed read the same rows in the same order.

    make: function that builds the model; its random weights depend on the seed.
    seed: seed of the weights and of the rows.
    steps: number of training steps.
    data: text or pictures to learn from.
    sizes: sizes of the training.
    """
    with seeded(seed):
        points = fit(
            make(),
            data,
            steps=steps,
            batch=sizes.rows,
            length=sizes.length,
            lr=sizes.rate,
            seed=seed,
            measures=4,
            valid_bytes=sizes.valid,
        ).points
    return BitsCurve([point.step for point in points], [point.valid for point in points])


def last_bits(curves: Mapping[Name, Sequence[BitsCurve]]) -> dict[Name, list[float]]:
    """Return the last validation bits per byte of each seed, by the name of the model.

    curves: a learning curve of each seed, by the name of the model.
    """
    return {name: [run.bits[-1] for run in runs] for name, runs in curves.items()}


def describe_values(values: Sequence[float]) -> str:
    """Return as text the mean over seeds, twice its standard error, and all values.

    values: the number of each seed.
    """
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{mean(values):.4f} ± {2 * error:.4f} ({', '.join(f'{value:.4f}' for value in values)})"


def describe_training(steps: int, sizes: TrainingSizes) -> str:
    """Return the sizes of a training as text.

    steps: number of training steps.
    sizes: sizes of the training.
    """
    rows = "row" if sizes.rows == 1 else "rows"
    return f"{steps} steps of {sizes.rows} {rows} of {sizes.length} bytes, learning rate {sizes.rate:g}"
