"""The data that a spec names, read in the tokens of a trained model."""

from pathlib import Path
from typing import Any

from kinformer.cli.errors import print_warnings
from kinformer.lab.data.data import Data
from kinformer.lab.data.data_fits_model import refuse_few, refuse_other_tokens, refuse_unread
from kinformer.lab.data.resolve import DataSource, resolve
from kinformer.lab.data.text import TextData
from kinformer.lab.errors import UserError, from_user


def source_for(model: Any, folder: Path, data: str) -> DataSource:
    """The data of a spec for a model; the tokenizer of the model's folder reads it unless the spec names another.

    Errors: UserError, before any data is read, for a kind of data that the model does not read.
    """
    with from_user(ValueError), print_warnings():
        source = resolve(data, None if model.tokenizer is None else str(folder))
        if source.kind is not None:
            refuse_unread(model, source.kind)
    return source


def read_for_model(model: Any, data: str, folder: Path) -> Data:
    """The data of a spec, in the tokens of the model in a folder unless the spec names a tokenizer."""
    source = source_for(model, folder, data)
    with from_user(ValueError, LookupError, OSError, ImportError), print_warnings():
        return source.read()


def read_text(model: Any, source: DataSource, split: str) -> TextData:
    """The text, in the model's tokens; UserError for what the model does not read, and where the split is empty."""
    with from_user(ValueError, LookupError, OSError, ImportError), print_warnings():
        dataset = source.read()
        refuse_unread(model, dataset)
        refuse_other_tokens(model, dataset)
        refuse_few(model, dataset)
    if not isinstance(dataset, TextData):
        raise UserError(f"{dataset.noun} came, and a datastore is of a text; give text=PATH")
    if not len(dataset.part(split).tokens):
        raise UserError(f"the {split} split of {dataset.name} is empty; give another --split, or more data")
    return dataset
