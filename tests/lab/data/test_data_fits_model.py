"""Checks that data fits a model: its kind, and how many kinds of something it has."""

from typing import Any, ClassVar

import pytest
import torch

from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data, Stream
from kinformer.lab.data.data_fits_model import open_stream, refuse_few, refuse_unfit, refuse_unread
from kinformer.lab.data.images import ImageData
from kinformer.lab.data.sets import SetData
from kinformer.lab.data.text import TextData
from tests.lab.train import tiny


class Palette(Data):
    """Data of these sizes."""

    noun: ClassVar[str] = "a palette"
    sizes: ClassVar[dict[str, int]]  # type: ignore[misc]

    def stream(self, model: Any, batch: int, length: int, seed: int, limit: int) -> Stream:
        raise NotImplementedError

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        raise NotImplementedError


def data_of_sizes(sizes: dict[str, int]) -> Palette:
    return type("Sized", (Palette,), {"sizes": sizes})()


class Short(tiny.Bigram):
    """A model of eight learned positions."""

    longest = 8  # type: ignore[assignment]


def test_a_model_is_given_data_of_a_kind_that_it_reads() -> None:
    model = tiny.Bigram(4)
    refuse_unread(model, TextData)
    for kind in (ImageData, SetData):
        with pytest.raises(ValueError, match=f"reads a text, but got {kind.noun}; give text=PATH"):
            refuse_unread(model, kind)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"vocab": 256}, "a palette has 256 kinds of bytes, but .* is made for 8; give it vocab=256"),
        ({"vocab": 4000}, "a palette has 4,000 kinds of tokens, but .* is made for 8; give it vocab=4000"),
        ({"classes": 9}, "a palette has 9 labels, but .* is made for 2; give it classes=9"),
        ({"colours": 12}, "a palette has 12 colours, but .* is made for 3; give it colours=12"),
    ],
)
def test_more_kinds_than_the_model_knows_are_refused(sizes: dict[str, int], expected: str) -> None:
    model: Any = tiny.Bigram(4)
    model.vocab, model.classes, model.colours = 8, 2, 3
    with pytest.raises(ValueError, match=expected):
        refuse_few(model, data_of_sizes(sizes))


def test_sizes_that_the_model_knows_or_has_no_number_for_are_accepted() -> None:
    model: Any = tiny.Bigram(4)
    model.colours = 12
    refuse_few(model, data_of_sizes({"colours": 12, "shapes": 99}))


def test_rows_longer_than_the_learned_positions_are_refused() -> None:
    refuse_unfit(tiny.Bigram(4), tiny.text(), 16)
    refuse_unfit(Short(4), tiny.text(), 8)
    with pytest.raises(ValueError, match="have 16 tokens, but .* train it on a length of 8, or give it length=16"):
        refuse_unfit(Short(4), tiny.text(), 16)


def test_batches_of_a_training_of_ones_own_are_the_stream() -> None:
    batches = Batches([torch.zeros(1, 4, dtype=torch.long)])
    assert open_stream(tiny.Bigram(4), batches, 1, 4, 0, 1) is batches
