"""The conversion `positions`: longer rows, by slower rotations or longer tables of positions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.convert.support.changed_model import has_keyword, record_change, with_keywords
from kinformer.core.checks import check_at_least, check_in_range, check_option, check_unused
from kinformer.core.conversion import Conversion, Promise, WeightSource
from kinformer.core.model import Model, display_name
from kinformer.core.named_part import format_part
from kinformer.core.rotary_scaling import RotaryScaling
from kinformer.nn.positions.learned import Learned
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.positions.sinusoidal import angular
from kinformer.nn.scalings.ntk import NTKAware
from kinformer.nn.scalings.pi import PositionInterpolation
from kinformer.nn.scalings.yarn import YaRN

Kind = Literal["pi", "ntk", "yarn", "learned"]
Resize = Literal["stretched", "tiled"]


@dataclass(frozen=True)
class PositionsConversion(Conversion):
    """Make a trained model read rows `factor` times as long as in its training.

    For rotary positions choose "yarn", which is good without further training, or "ntk". Choose "pi" only if the model
    is trained further. For tables of learned positions choose "learned" and train further. With tiled tables, texts
    of the old length keep their outputs; stretched tables keep the order of all positions.

    kind: "pi", "ntk" and "yarn" scale rotations (`kinformer list scalings`). "learned" makes tables longer.
    factor: the new length divided by the old one, at least 1.
    length: the old length, in tokens; None for the longest row of the model's training.
    resize: rows of a longer table. "stretched" rows lie between old ones by linear interpolation; "tiled" rows repeat
        the old ones, as in Longformer (Beltagy et al., 2020, arXiv:2004.05150, section 5).

    Source: Chen et al., 2023, arXiv:2306.15595; Peng et al., 2023, arXiv:2309.00071.
    """

    spellings: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {kind: {"kind": kind} for kind in ("pi", "ntk", "yarn", "learned")}
    )

    kind: Kind = "yarn"
    factor: float = 4.0
    length: int | None = None
    resize: Resize = "stretched"

    def __post_init__(self) -> None:
        check_option("kind", self.kind, Kind)
        check_option("resize", self.resize, Resize)
        check_in_range("factor", self.factor, 1, torch.inf, open_end=True)
        if self.length is not None:
            check_at_least("length", self.length, 1)
        if self.kind != "learned":
            check_unused(f"kind={self.kind}", resize=(self.resize, "stretched"))

    def resolve(self, model: Model) -> Conversion:
        if self.length is not None:
            return self
        return replace(self, length=model.window if self.kind == "learned" else model.trained_length)

    def restructure(self, model: Model) -> Model:
        converted = self._with_longer_tables(model) if self.kind == "learned" else self._with_slower_rotations(model)
        if self.length is not None:
            converted.trained_length = self._new_length(self.length)
        return converted

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        if self.kind != "learned":
            return {}
        old, sources = dict(_tables(source)), dict[str, WeightSource]()
        compute = stretch if self.resize == "stretched" else tile
        for name, part in _tables(converted):
            rows = min(old[name].table.num_embeddings, self._old_length() + source.own)
            weight = f"{name}.table.weight"
            sources[weight] = WeightSource(
                self.resize, (weight,), partial(compute, rows=rows, length=part.table.num_embeddings)
            )
        return sources

    def promise(self, model: Model) -> Promise:
        if self.kind == "learned" and (self.resize == "tiled" or self.factor == 1):
            return Promise(self._old_length(), f"the first {self._old_length():,} positions keep their vectors")
        if self.factor == 1:
            return Promise(torch.inf, "a factor of 1 changes no rotation")
        if self.kind != "learned" and self._keeps_rotations(model):
            return Promise(torch.inf, f"{self.kind} changes none of the rotations that this model has")
        stays = "the first position keeps its vector" if self.kind == "learned" else "a single token has no distances"
        return Promise(0 if model.own else 1, f"{stays}; longer rows have other outputs")

    def _with_slower_rotations(self, model: Model) -> Model:
        rotations = [part for part in model.modules() if isinstance(part, Rotary)]
        if not rotations:
            raise ValueError(
                f"cannot convert this {display_name(model)} by {self.kind}: it has no rotary positions. Choose "
                "learned for a model with learned positions"
            )
        if scaled := [part.scaling for part in rotations if part.scaling is not None]:
            raise ValueError(
                f"cannot convert this {display_name(model)} by {self.kind}: got rotary positions with the scaling "
                f"{format_part(scaled[0])}, expected plain ones. Convert the model from before that scaling"
            )
        scaling = self._scaling(model)
        if has_keyword(model, "scaling"):
            converted: Model = with_keywords(model, scaling=format_part(scaling))
            return converted
        for part in rotations:
            part.scaling = scaling
        return record_change(model, self)

    def _scaling(self, model: Model) -> RotaryScaling:
        factor = float(self.factor)
        if self.kind == "pi":
            return PositionInterpolation(factor)
        if self.kind == "ntk":
            return NTKAware(factor)
        if self.length is None:
            raise ValueError(
                f"cannot convert this {display_name(model)} by yarn: the length of its training is not known. Give "
                "length="
            )
        return YaRN(factor, self.length)

    def _keeps_rotations(self, model: Model) -> bool:
        """Return True if the scaling leaves every rotation of the model as it is, such as a single pair under ntk."""
        scaling = self._scaling(model)
        for part in model.modules():
            if isinstance(part, Rotary) and part.turned:
                turns = angular(part.turned, torch.float64, torch.device("cpu"), part.base)
                if scaling.attention_scaling != 1 or not torch.equal(scaling.scale(turns, part.base), turns):
                    return False
        return True

    def _with_longer_tables(self, model: Model) -> Model:
        tables = _tables(model)
        if not tables:
            raise ValueError(
                f"cannot convert this {display_name(model)} by learned: it has no learned positions. Choose yarn for "
                "a model with rotary positions"
            )
        longest = model.longest or 0
        if not self._old_length() <= longest:
            raise ValueError(
                f"cannot convert this {display_name(model)} by learned: got length={self.length}, expected at most its "
                f"{longest} learned positions"
            )
        length = self._new_length(self._old_length())
        if has_keyword(model, "length"):
            converted: Model = with_keywords(model, length=length)
            _check_only_tables_differ(model, converted)
            return converted
        for _, part in tables:
            part.length = length + model.own
            like = part.table.weight
            part.table = nn.Embedding(part.length, like.shape[1], device=like.device, dtype=like.dtype)
            nn.init.normal_(part.table.weight, std=0.02)
        return record_change(model, self)

    def _old_length(self) -> int:
        if self.length is None:
            raise ValueError("cannot convert by learned: the model has no learned positions. Choose yarn")
        return self.length

    def _new_length(self, length: int) -> int:
        return round(self.factor * length)


def stretch(table: Float[Tensor, "P D"], *, rows: int, length: int) -> Float[Tensor, "Q D"]:
    """Return a table with more positions, each between two old ones by linear interpolation.

    The first and the last position keep their vectors.

    table: the old table.
    rows: number of its rows that are used, from the first on.
    length: number of positions of the new table.
    """
    # the ends stay, because vectors outside the old range would be extrapolated
    return F.interpolate(table[:rows].T[None], length, mode="linear", align_corners=True)[0].T


def tile(table: Float[Tensor, "P D"], *, rows: int, length: int) -> Float[Tensor, "Q D"]:
    """Return a table with more positions, in which the rows of the old one repeat in order.

    table: the old table.
    rows: number of its rows that are used, from the first on.
    length: number of positions of the new table.
    """
    return table[torch.arange(length, device=table.device) % rows]


def _tables(model: nn.Module) -> list[tuple[str, Learned]]:
    """Return the tables of learned positions of a model, with their names."""
    return [(name, part) for name, part in model.named_modules() if isinstance(part, Learned)]


def _check_only_tables_differ(model: Model, converted: Model) -> None:
    """Raise ValueError if other tensors than tables of positions depend on the length."""
    tables = {f"{name}.table.weight" for name, _ in _tables(model)}
    old = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for name, tensor in converted.state_dict().items():
        if name not in tables and old.get(name) != tensor.shape:
            raise ValueError(
                f"cannot convert this {display_name(model)} by learned: {name} depends on the length too, and not "
                "only tables of positions. Convert a model of another member"
            )
