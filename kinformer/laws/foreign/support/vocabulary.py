"""The vocabulary of a model of any library, and functions of tokens as modules."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

SIZES = ("vocab_size", "n_vocab", "vocab", "num_tokens", "n_tokens", "entity_vocab_size")


class TokenFunction(nn.Module):
    """A function of tokens as a module.

    function: the function. The module whose method it is, if any, is a submodule.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function
        self.owner = getattr(function, "__self__", None)
        self.vocab_size = vocabulary(function)

    def __deepcopy__(self, memo: dict[int, Any]) -> "TokenFunction":
        return TokenFunction(copy.deepcopy(self.forward, memo))


def vocabulary(model: Any) -> int | None:
    """Return the number of different tokens that a model takes, or None if it is unknown.

    It comes from an attribute, from the config or from the first nn.Embedding.

    model: a module, or a function of tokens that is a method of a module or refers to one.
    """
    owners = [model, getattr(model, "config", None), getattr(model, "__self__", None)]
    owners += [cell.cell_contents for cell in getattr(model, "__closure__", None) or ()]
    get_text_config = getattr(owners[1], "get_text_config", None)
    owners += [get_text_config()] if callable(get_text_config) else []
    for owner in owners:
        for size in (count_of(owner, name) for name in SIZES):
            if size is not None:
                return size
    parts = (part for owner in owners if isinstance(owner, nn.Module) for part in owner.modules())
    return next((part.num_embeddings for part in parts if isinstance(part, nn.Embedding)), None)


def count_of(owner: Any, name: str, least: int = 1) -> int | None:
    """Return an attribute or key that is a whole number; None for anything else.

    owner: an object or a mapping.
    name: name of the attribute or key.
    least: the smallest number that counts.
    """
    value = owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else None
