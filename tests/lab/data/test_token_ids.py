"""Token ids that a user has as tensors, arrays, lists or a column: all are the same data, and none is changed."""

from typing import Any

import numpy
import pytest
import torch

from kinformer.core.model import Model
from kinformer.lab.data.as_data import as_data
from kinformer.lab.data.batches import Batches
from kinformer.members.gpt import gpt

ROWS = [[n % 60, (7 * n) % 60, (n * n) % 60, 1] for n in range(120)]


def decoder() -> Model:
    return gpt(d=8, depth=1, heads=2)


def test_lists_of_token_ids_are_token_ids() -> None:
    expected = as_data(decoder(), torch.tensor(ROWS))
    assert len(expected.begins["train"]) > 90
    for rows in (ROWS, tuple(map(tuple, ROWS)), [list(numpy.array(row)) for row in ROWS], [*ROWS, []]):
        assert as_data(decoder(), rows).fingerprint == expected.fingerprint
    flat = [token for row in ROWS for token in row]
    assert as_data(decoder(), flat).fingerprint == as_data(decoder(), torch.tensor(flat)).fingerprint
    assert as_data(decoder(), flat, [1, 2, 3]).valid.tolist() == [1, 2, 3]


def test_a_column_of_token_ids_is_a_list_of_rows() -> None:
    rows = pytest.importorskip("datasets").Dataset.from_dict({"input_ids": ROWS})
    assert as_data(decoder(), rows["input_ids"]).fingerprint == as_data(decoder(), ROWS).fingerprint


def test_rows_of_dicts_with_integers_of_numpy_are_rows() -> None:
    rows = [{"input_ids": list(numpy.array(row))} for row in ROWS]
    assert as_data(decoder(), rows, batch=2).fingerprint == as_data(decoder(), ROWS).fingerprint


@pytest.mark.parametrize("largest", [2**31, 2**32 + 5, 2**62])
def test_an_id_that_needs_more_than_32_bits_is_refused(largest: int) -> None:
    rows = [[1, 2], [3, largest]]
    for data in (rows, numpy.array(rows, numpy.uint64), [{"input_ids": row} for row in rows]):
        with pytest.raises(ValueError, match="has the token id .*, expected at most 2,147,483,647"):
            as_data(decoder(), data)
    assert as_data(decoder(), [[1, 2], [3, 2**31 - 1]]).vocab == 2**31


def test_a_text_that_is_missing_is_named_with_its_row() -> None:
    with pytest.raises(ValueError, match="the field 'text' of row 2 of list of dicts is not a text: got NoneType"):
        as_data(decoder(), [{"text": "one"}, {"text": None}], batch=2)


def test_a_message_names_the_argument_that_is_wrong() -> None:
    with pytest.raises(ValueError, match="valid is <Tensor torch.float32"):
        as_data(decoder(), torch.tensor(ROWS), torch.randn(5))


def test_batches_that_are_ready_take_no_sizes() -> None:
    batches: Any = Batches([torch.tensor(ROWS)])
    for size in ("batch", "length"):
        with pytest.raises(ValueError, match=f"{size}= has no effect on batches that are ready"):
            as_data(decoder(), batches, **{size: 2})


def test_no_iterator_of_a_loader_is_opened_before_the_first_step() -> None:
    opened = []

    class Loader:
        def __iter__(self) -> Any:
            opened.append(1)
            return iter([torch.tensor(ROWS)])

    data = as_data(decoder(), Loader(), [torch.tensor(ROWS)])
    assert not opened
    data.at(0)
    assert len(opened) == 1
