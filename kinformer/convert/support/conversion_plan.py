"""The plan of a conversion: the fate of every tensor, and the converted model with its weights."""

import copy
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.convert.support.changed_model import conversions
from kinformer.core.conversion import Conversion, Promise, WeightSource
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import members
from kinformer.core.keywords import as_texts, check_keywords
from kinformer.core.model import Model
from kinformer.core.quote import quote
from kinformer.models.support.retrieval_lm import RetrievalLM

LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class TensorFate(NamedTuple):
    """Tensors of equal role in all layers, and their fate in a conversion.

    name: their name, with {n} in place of the number of the layer.
    fate: "copied", "new", "dropped", or the word of a `WeightSource`.
    tensors: number of tensors.
    parameters: number of their values.
    """

    name: str
    fate: str
    tensors: int
    parameters: int


class ConversionPlan(NamedTuple):
    """Plan of a conversion: its options, its promise, and the fate of every tensor.

    recipe: name of the recipe.
    options: every option with its value.
    promise: rows with equal outputs.
    fates: the fate of each group of tensors.
    """

    recipe: str
    options: dict[str, Any]
    promise: Promise
    fates: tuple[TensorFate, ...]

    @property
    def title(self) -> str:
        """The recipe with the options that are set, such as "window(window=252, sinks=4)"."""
        return title_of(self.recipe, self.options)

    @property
    def promise_text(self) -> str:
        """The promise as a sentence."""
        length, reason = self.promise
        if length == math.inf:
            return f"Outputs are equal to the source's for rows of every length: {reason}."
        if length > 0:
            return f"Outputs are equal to the source's for rows of up to {length:,} tokens: {reason}."
        return f"Outputs differ from the source's: {reason}."

    def fate_cells(self) -> list[list[str]]:
        """Return the table of tensors as texts, with its headings in the first row."""
        rows = [[fate.name, fate.fate, f"{fate.tensors:,}", f"{fate.parameters:,}"] for fate in self.fates]
        return [["tensor", "fate", "tensors", "numbers"], *rows]


def title_of(recipe: str, options: Mapping[str, Any]) -> str:
    """Return a recipe with the options that are set, such as "window(window=252, sinks=4)".

    recipe: name of the recipe.
    options: its options.
    """
    return f"{recipe}({', '.join(f'{name}={value}' for name, value in options.items() if value not in ((), [], None))})"


def find_recipe(what: str) -> tuple[type[Conversion], dict[str, Any]]:
    """Return the recipe that a text names, and the options that the text stands for.

    what: a recipe, one of its spellings, a member, or a pattern expression, such as "heads", "yarn", "linformer" or
        "Causal() & Band(255)". A recipe precedes a member of the same name.

    Errors: ValueError for an unknown name, with the nearest one.
    """
    recipes = conversions()
    if "(" in what:
        return recipes["pattern"], {"pattern": what}
    spelled: dict[str, tuple[type[Conversion], dict[str, Any]]] = {
        alias: (recipe, dict(preset)) for recipe in recipes.values() for alias, preset in recipe.spellings.items()
    }
    spelled |= {name: (recipe, {}) for name, recipe in recipes.items()}
    name = what.replace("-", "_")
    if name not in spelled and name in members():
        return recipes["member"], {"member": name}
    if name not in spelled:
        near = suggest_names(what, {*spelled, *members()}, "; `kinformer list convert` lists them")
        raise ValueError(f"there is no conversion to {quote(what)}{near}")
    return spelled[name]


def find_conversion(what: str, options: Mapping[str, Any]) -> Conversion:
    """Return the conversion that a text names.

    what: the text, as in `find_recipe`.
    options: options of the recipe.

    Errors: ValueError for an unknown name, with the nearest one; TypeError for wrong options.
    """
    recipe, preset = find_recipe(what)
    check_keywords(options_source(what), options)
    if "member" in preset:
        options = {"keywords": tuple(as_texts(options))}
    return recipe(**{**preset, **options})


def plan_conversion(model: Model, what: str, options: Mapping[str, Any]) -> "PlannedConversion":
    """Return the plan of the conversion that a text names.

    A number of layers to keep is planned as no layer, because only a measurement can choose the layers.

    model: the trained model.
    what: the text, as in `find_recipe`.
    options: options of the recipe.

    Errors: the errors of `find_conversion`; ValueError if the conversion does not fit the model.
    """
    if isinstance(options.get("keep"), int):
        find_conversion(what, options)  # refuses a number for recipes whose layers are named
        options = {**options, "keep": ()}
    return PlannedConversion.of(model, find_conversion(what, options))


def options_source(what: str) -> Callable[..., Any]:
    """Return the function or class whose keywords are the options of a conversion.

    It is the recipe, or for the recipe `member` the new member.

    what: the text, as in `find_recipe`.
    """
    recipe, preset = find_recipe(what)
    return members()[preset["member"]] if "member" in preset else recipe


@dataclass(frozen=True)
class PlannedConversion:
    """A conversion of a model that is decided and not yet computed.

    source: the trained model, which stays as it is.
    conversion: the conversion, with all options decided.
    converted: the model with the new mechanism, without the weights of the source.
    rules: source of each of its tensors that is no plain copy.
    """

    source: Model
    conversion: Conversion
    converted: Model
    rules: Mapping[str, WeightSource]

    @classmethod
    def of(cls, source: Model, conversion: Conversion) -> "PlannedConversion":
        """Return the plan of a conversion of a model.

        source: the trained model.
        conversion: the conversion.

        Errors: ValueError, in one line, if the conversion does not fit the model.
        """
        if isinstance(source, RetrievalLM) and source.datastore is not None:
            raise ValueError(
                "cannot convert a model with a datastore: its keys were made by the model as it is. Convert the model "
                "that it was made from, and then build a datastore"
            )
        conversion = conversion.resolve(source)
        device = next(source.parameters()).device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)  # of the new parts
            converted = conversion.restructure(copy.deepcopy(source))
        return cls(source, conversion, converted, conversion.weight_sources(source, converted))

    @property
    def plan(self) -> ConversionPlan:
        """The options, the promise, and the fate of every tensor."""
        old, fates, used = self.source.state_dict(keep_vars=True), list[tuple[str, str, Tensor]](), set[int]()
        for name, new in _unique_tensors(self.converted).items():
            fate, names = self._origin(name, new, old)
            fates.append((name, fate, new))
            used.update(id(old[each]) for each in names)
        fates += [(name, "dropped", x) for name, x in _unique_tensors(self.source).items() if id(x) not in used]
        recipe, options = self.conversion.recipe_name(), self.conversion.options
        return ConversionPlan(recipe, options, self.conversion.promise(self.source), _group(fates))

    def new_tensors(self) -> frozenset[str]:
        """Return the names of the converted model's tensors that come from no tensor of the source."""
        old, tensors = self.source.state_dict(), _unique_tensors(self.converted)
        return frozenset(name for name, new in tensors.items() if self._origin(name, new, old)[0] == "new")

    @torch.no_grad()
    def carry_out(self) -> Model:
        """Return the converted model with the weights of the source, in eval mode."""
        old, tensors = self.source.state_dict(), dict[str, Tensor]()
        for name, new in _unique_tensors(self.converted).items():
            fate, names = self._origin(name, new, old)
            if fate != "new":
                tensors[name] = old[name] if fate == "copied" else self.rules[name].compute(*map(old.get, names))
        self.converted.load_state_dict(tensors, strict=False)
        frozen = {name for name, parameter in self.source.named_parameters() if not parameter.requires_grad}
        for name, parameter in self.converted.named_parameters():
            if frozen and {name, *self._origin(name, parameter, old)[1]} & frozen:
                parameter.requires_grad_(False)
        return self.converted.eval()

    def _origin(self, name: str, new: Tensor, old: Mapping[str, Tensor]) -> tuple[str, tuple[str, ...]]:
        """Return the fate of a tensor, and the names of its sources."""
        if (rule := self.rules.get(name)) is not None:
            return rule.fate, rule.names
        return ("copied", (name,)) if name in old and old[name].shape == new.shape else ("new", ())


def _unique_tensors(model: Model) -> dict[str, Tensor]:
    """Return every parameter and persistent buffer once, by its first name."""
    by_id = {id(tensor): (name, tensor) for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    return {name: tensor for name, tensor in reversed(by_id.values())}


def _group(fates: list[tuple[str, str, Tensor]]) -> tuple[TensorFate, ...]:
    """Join the tensors of equal role and fate in all layers."""
    groups: dict[tuple[str, str], list[int]] = {}
    for name, fate, tensor in fates:
        groups.setdefault((LAYER.sub("{n}", name, count=1), fate), []).append(tensor.numel())
    return tuple(TensorFate(name, fate, len(sizes), sum(sizes)) for (name, fate), sizes in groups.items())
