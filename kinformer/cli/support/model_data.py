"""Reading of data with the tokenizer of a trained model."""

from collections.abc import Callable
from typing import Any

from kinformer.cli.errors import print_warnings
from kinformer.lab.data.data import Data
from kinformer.lab.data.data_fits_model import refuse_few, refuse_other_tokens, refuse_unread
from kinformer.lab.data.resolve import DataSource, resolve
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import UserError, from_user


def source_for(model: Any, data: str) -> DataSource:
    """Return the data that a user names, with the model's tokenizer unless the user names another.

    model: the model.
    data: the data as the user writes it, such as "text=notes.txt".

    Errors: UserError, before any data is read, for a kind of data that the model does not read.
    """
    with from_user(ValueError), print_warnings():
        source = resolve(data, model.tokenizer)
        if source.kind is not None:
            refuse_unread(model, source.kind)
    return source


def read_for_model(model: Any, data: str, read: Callable[[DataSource], Data] = DataSource.read) -> Data:
    """Read the data that a user names, with the model's tokenizer unless the user names another.

    model: the model.
    data: the data as the user writes it, such as "text=notes.txt".
    read: the way to read the data: `DataSource.read`, or `DataSource.read_whole`.

    Errors: UserError if the data cannot be read, or the model does not read this kind of data.
    """
    source = source_for(model, data)
    with from_user(ValueError, LookupError, OSError, ImportError), print_warnings():
        return read(source)


def read_text(model: Any, source: DataSource, split: str) -> TextData:
    """Read a text as tokens of the model's tokenizer.

    model: the model.
    source: the data source.
    split: the split that must not be empty.

    Errors: UserError for data that is not text or that the model does not read, and for an empty split.
    """
    with from_user(ValueError, LookupError, OSError, ImportError), print_warnings():
        dataset = source.read()
        refuse_unread(model, dataset)
        refuse_other_tokens(model, dataset)
        refuse_few(model, dataset)
    if not isinstance(dataset, TextData):
        raise UserError(f"wrong --data for a datastore: got {dataset.noun}, expected a text. Give text=PATH")
    if not len(dataset.part(split).tokens):
        raise UserError(f"the {split} split of {dataset.name} is empty; give another --split, or more data")
    return dataset
