"""The plan of a conversion: the fate of every tensor, and the converted model with its weights."""

import copy
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.convert.support.changed_model import conversions
from kinformer.core.conversion import Conversion, Promise
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.keywords import check_keywords
from kinformer.core.model import Model
from kinformer.core.quote import quote

LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class TensorFate(NamedTuple):
    """Tensors of equal role in all layers, and what a conversion does with them.

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
    """What a conversion will do with a model.

    recipe: name of the recipe.
    options: every option with its value.
    promise: rows with equal outputs.
    fates: what happens to each group of tensors.
    """

    recipe: str
    options: dict[str, Any]
    promise: Promise
    fates: tuple[TensorFate, ...]


def find_conversion(what: str, options: Mapping[str, Any]) -> Conversion:
    """Return the conversion that a text names: a recipe, one of its spellings, or a pattern expression.

    what: the text, such as "heads", "yarn" or "Causal() & Band(255)".
    options: options of the recipe.

    Errors: ValueError for an unknown name, with the nearest one; TypeError for wrong options.
    """
    recipes = conversions()
    spelled: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in recipes} | {
        alias: (name, dict(preset)) for name, recipe in recipes.items() for alias, preset in recipe.spellings.items()
    }
    name = what.replace("-", "_")
    recipe_name, preset = ("pattern", {"pattern": what}) if "(" in what else spelled.get(name, ("", {}))
    if not recipe_name:
        raise ValueError(
            f"there is no conversion to {quote(what)}"
            f"{suggest_names(what, spelled, '; `kinformer list conversions` lists them')}"
        )
    recipe = recipes[recipe_name]
    check_keywords(recipe, options)
    return recipe(**{**preset, **options})


@torch.no_grad()
def convert_weights(source: Model, conversion: Conversion) -> tuple[Model, ConversionPlan]:
    """Return a converted model with the weights of its source, in eval mode, and the plan that made it.

    source: the trained model, which stays as it is.
    conversion: the conversion, resolved for this model.

    Errors: ValueError, in one line, if the conversion does not fit the model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the new parts
        converted = conversion.restructure(copy.deepcopy(source))
    rules, old = conversion.weight_sources(source, converted), source.state_dict(keep_vars=True)
    tensors, fates, used = dict[str, Tensor](), list[tuple[str, str, Tensor]](), set[int]()
    for name, new in _unique_tensors(converted).items():
        fate, names = "new", tuple[str, ...]()
        if name in rules:
            fate, names = rules[name].fate, rules[name].names
            tensors[name] = rules[name].compute(*(old[each].detach() for each in names))
        elif name in old and old[name].shape == new.shape:
            fate, names, tensors[name] = "copied", (name,), old[name].detach()
        fates.append((name, fate, new))
        used.update(id(old[each]) for each in names)
    fates += [(name, "dropped", x) for name, x in _unique_tensors(source).items() if id(x) not in used]
    converted.load_state_dict(tensors, strict=False)
    recipe = type(conversion).__module__.rpartition(".")[2]
    plan = ConversionPlan(recipe, conversion.options, conversion.promise(source), _group(fates))
    return converted.eval(), plan


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
