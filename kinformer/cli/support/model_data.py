"""The text that a spec names, for commands that look things up in texts and in nothing else."""

from pathlib import Path
from typing import Any

from kinformer.cli.errors import noted
from kinformer.lab.data.kind import refuse_few, refuse_other_tokens, refuse_unread
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.text import Text
from kinformer.lab.errors import UserError, from_user


def read_text(model: Any, data: str, folder: Path, split: str) -> Text:
    """The text, in the model's tokens; UserError for what the model does not read, and where the split is empty."""
    tokenizer = {} if model.tokenizer is None or "tokenizer=" in data else {"tokenizer": str(folder)}
    with from_user(ValueError, LookupError, OSError, ImportError), noted():
        dataset = read_spec(data, **tokenizer)
        refuse_unread(model, dataset)
        refuse_other_tokens(model, dataset)
        refuse_few(model, dataset)
    if not isinstance(dataset, Text):
        raise UserError(f"{dataset.what} came, and a datastore is of a text; give text=PATH")
    if not len(dataset.part(split).tokens):
        raise UserError(f"the {split} split of {dataset.name} is empty; give another --split, or more data")
    return dataset
