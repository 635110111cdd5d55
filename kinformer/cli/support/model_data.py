"""The data that a spec names, read in the tokens of a trained model."""

from pathlib import Path
from typing import Any

from kinformer.cli.errors import noted
from kinformer.lab.data.kind import Data, refuse_few, refuse_other_tokens, refuse_unread
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.text import Text
from kinformer.lab.errors import UserError, from_user


def read_for_model(model: Any, data: str, folder: Path) -> Data:
    """The data, in the tokens of the model in a folder unless the spec names a tokenizer."""
    tokenizer = {} if model.tokenizer is None or "tokenizer=" in data else {"tokenizer": str(folder)}
    with from_user(ValueError, LookupError, OSError, ImportError), noted():
        return read_spec(data, **tokenizer)


def read_text(model: Any, data: str, folder: Path, split: str) -> Text:
    """The text, in the model's tokens; UserError for what the model does not read, and where the split is empty."""
    dataset = read_for_model(model, data, folder)
    with from_user(ValueError, LookupError, OSError, ImportError), noted():
        refuse_unread(model, dataset)
        refuse_other_tokens(model, dataset)
        refuse_few(model, dataset)
    if not isinstance(dataset, Text):
        raise UserError(f"{dataset.what} came, and a datastore is of a text; give text=PATH")
    if not len(dataset.part(split).tokens):
        raise UserError(f"the {split} split of {dataset.name} is empty; give another --split, or more data")
    return dataset
