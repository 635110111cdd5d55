"""Conversion: the base class of recipes that give a trained model another mechanism."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Int
from torch import Tensor

from kinformer.core.model import Model

Progress = Callable[[str, float], None]  # what is being done, and the finished fraction of it


class Promise(NamedTuple):
    """The rows for which a converted model gives the same outputs as its source, before any adaptation.

    length: longest row with equal outputs, in tokens; inf for rows of every length, 0 for none.
    reason: why they are equal, or what differs, as a sentence.
    """

    length: float
    reason: str


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


class WeightSource(NamedTuple):
    """The tensors of a source that a tensor of the converted model is computed from.

    fate: one word for this computation, such as "moved" (another name), "tiled", "averaged" or "stretched".
    names: names of the tensors in the source.
    compute: function of these tensors that returns the new tensor; by default it returns the one tensor.
    """

    fate: str
    names: tuple[str, ...]
    compute: Callable[..., Tensor] = _unchanged


@dataclass(frozen=True)
class Conversion(ABC):
    """Base class of recipes that give a trained model another mechanism and keep its weights.

    Choose a recipe by its name: `kf.convert(model, "heads", key_heads=1)`. A subclass is a frozen dataclass in a file
    of `kinformer/convert`, whose name is the recipe's. Its fields are the options, all with defaults, of types that
    keywords of members may have. A subclass writes `restructure` and `promise`.

    spellings: further names of the recipe, each with the options that it stands for.
    """

    spellings: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})

    def resolve(self, model: Model) -> "Conversion":
        """Return the recipe with the options filled in that depend on the model; this form is recorded."""
        return self

    @abstractmethod
    def restructure(self, model: Model) -> Model:
        """Return a model with the new mechanism and arbitrary weights.

        The result depends only on the options and on the structure of the model, because `load` calls this again on a
        model without weights. It is a model of a member with other keywords (`with_keywords`), of another member, or
        the same model with changed layers (`record_change`).

        model: a copy of the source, which may be changed.

        Errors: ValueError, in one line, for a model that this recipe does not fit.
        """

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        """Return the source of each tensor of the converted model that is no plain copy, by its name.

        A tensor without an entry is copied if the source has one of the same name and shape, and new otherwise.
        """
        return {}

    @abstractmethod
    def promise(self, model: Model) -> Promise:
        """Return the rows for which the converted model equals the source `model`."""

    def fit(self, source: Model, converted: Model, rows: Int[Tensor, "N T"], progress: Progress) -> None:
        """Train the new parts of the converted model on rows of tokens, by matching the source.

        Recipes without new parts to train do nothing.
        """
        return

    def without_data(self) -> str:
        """Return the part of the converted model that needs data, as a sentence; "" if it needs none."""
        return ""

    def check_adaptation(self) -> None:
        """Raise ValueError if a training of the converted model would spoil it; most recipes do nothing."""
        return

    @classmethod
    def recipe_name(cls) -> str:
        """Return the name of the recipe, which is the name of its file."""
        return cls.__module__.rpartition(".")[2]

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        return dataclasses.asdict(self)
