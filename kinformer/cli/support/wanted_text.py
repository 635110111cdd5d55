"""The text that a spec names, for commands that look things up in texts and in nothing else."""

from typing import Any

from kinformer.cli.errors import UserError, from_user, noted
from kinformer.lab.data.kind import refuse_few, refuse_other_tokens, refuse_unread
from kinformer.lab.data.resolve import DataSource
from kinformer.lab.data.text import TextData


def text_of(model: Any, source: DataSource, split: str) -> TextData:
    """The text, in the model's tokens; UserError for what the model does not read, and where the split is empty."""
    with from_user(ValueError, LookupError, OSError, ImportError), noted():
        found = source.read()
        refuse_unread(model, found)
        refuse_other_tokens(model, found)
        refuse_few(model, found)
    if not isinstance(found, TextData):
        raise UserError(f"{found.noun} came, and a datastore is of a text; give text=PATH")
    if not len(found.part(split).tokens):
        raise UserError(f"the {split} split of {found.name} is empty; give another --split, or more data")
    return found
