"""Tensor tables, which translate the tensors of a foreign model to ours and back."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Form(ABC):
    """The way in which foreign tensors make one of ours, and back.

    The arguments `owner` are the module that owns the linear map or norm of the tensor, such as a `QKV`.
    """

    @abstractmethod
    def join(self, tensors: Sequence[Tensor], owner: nn.Module) -> Tensor:
        """Return our tensor from the foreign ones."""

    @abstractmethod
    def split(self, tensor: Tensor, owner: nn.Module) -> Sequence[Tensor]:
        """Return the foreign tensors from ours."""


class Same(Form):
    """One foreign tensor that is ours."""

    def join(self, tensors: Sequence[Tensor], owner: nn.Module) -> Tensor:
        return tensors[0]

    def split(self, tensor: Tensor, owner: nn.Module) -> Sequence[Tensor]:
        return [tensor]


class Transposed(Form):
    """One foreign matrix whose transpose is ours, as in GPT-2's linear maps; vectors stay as they are."""

    def join(self, tensors: Sequence[Tensor], owner: nn.Module) -> Tensor:
        return tensors[0].t()

    def split(self, tensor: Tensor, owner: nn.Module) -> Sequence[Tensor]:
        return [tensor.t()]


class Stacked(Form):
    """Separate foreign queries, keys and values, which a `QKV` stacks along the first axis."""

    def join(self, tensors: Sequence[Tensor], owner: nn.Module) -> Tensor:
        return torch.cat(list(tensors))

    def split(self, tensor: Tensor, owner: Any) -> Sequence[Tensor]:
        return tensor.split(owner.widths)


class ByHead(Form):
    """One foreign matrix with the query, key and value of the first head, then of the second, and so on."""

    def join(self, tensors: Sequence[Tensor], owner: Any) -> Tensor:
        return tensors[0].unflatten(0, (owner.heads, 3, owner.k_dim)).transpose(0, 1).flatten(0, 2)

    def split(self, tensor: Tensor, owner: Any) -> Sequence[Tensor]:
        return [tensor.unflatten(0, (3, owner.heads, owner.k_dim)).transpose(0, 1).flatten(0, 2)]


class LaterRows(Form):
    """One foreign table, of which the first rows are unused; they are written as zeros.

    unused: number of these rows.
    """

    def __init__(self, unused: int) -> None:
        self.unused = unused

    def join(self, tensors: Sequence[Tensor], owner: nn.Module) -> Tensor:
        return tensors[0][self.unused :]

    def split(self, tensor: Tensor, owner: nn.Module) -> Sequence[Tensor]:
        return [nn.functional.pad(tensor, (0, 0, self.unused, 0))]


class Row(Form):
    """One foreign matrix of one row, which is our vector."""

    def join(self, tensors: Sequence[Tensor], owner: nn.Module) -> Tensor:
        return tensors[0].flatten()

    def split(self, tensor: Tensor, owner: nn.Module) -> Sequence[Tensor]:
        return [tensor[None]]


class TensorRule(NamedTuple):
    """One line of a tensor table.

    ours: name of our tensor, with {n} for the number of a layer and {p} for "weight" or "bias". A layer {n+1} of ours
        is {n} in the foreign names.
    theirs: names of the foreign tensors, with the same placeholders.
    form: the way in which they make ours.
    owner: class of the modules that own such a tensor, if tensors of others have the same name.
    """

    ours: str
    theirs: tuple[str, ...]
    form: Form = Same()
    owner: type[nn.Module] = nn.Module

    def match(self, name: str) -> Mapping[str, str] | None:
        """Return the values of the placeholders in a name of ours; None if the rule is not for it."""
        pattern = re.escape(self.ours).replace(r"\{p\}", "(?P<p>weight|bias)")
        pattern = pattern.replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{n\+1\}", r"(?P<next>\d+)")
        matched = re.fullmatch(pattern, name)
        if matched is None:
            return None
        values = matched.groupdict()
        return values | ({"n": str(int(values["next"]) - 1)} if "next" in values else {})


class Place(NamedTuple):
    """The foreign tensors of one of our tensors.

    name: name of our tensor.
    theirs: names of the foreign tensors.
    form: the way in which they make ours.
    owner: the module that owns the linear map or norm of our tensor.
    """

    name: str
    theirs: tuple[str, ...]
    form: Form
    owner: nn.Module


def places(model: nn.Module, names: Sequence[str], rules: Sequence[TensorRule]) -> Iterator[Place]:
    """Yield the foreign tensors of each of our tensors.

    model: our model.
    names: names of its tensors.
    rules: the tensor table.

    Errors: LookupError for a tensor without a rule, which is a fault of the table.
    """
    for name in names:
        owner = model.get_submodule(".".join(name.split(".")[:-2]))
        for rule in rules:
            if (values := rule.match(name)) is not None and isinstance(owner, rule.owner):
                yield Place(name, tuple(theirs.format(**values) for theirs in rule.theirs), rule.form, owner)
                break
        else:
            raise LookupError(f"the tensor table has no line for {name}")
