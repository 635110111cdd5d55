"""The Transformer family as parts that compose.

The public names live here, and each is imported from its file when it is first asked for: `import kinformer` brings in
neither torch nor anything else, so the command line answers at once.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinformer.attend import attend, explain
    from kinformer.attend.parts import Part, parts
    from kinformer.checkpoint.checkpoint import load, save
    from kinformer.core.aggregation import Aggregation
    from kinformer.core.bias import Bias, Plus
    from kinformer.core.block import Join, ResidualBlock
    from kinformer.core.cache import KV
    from kinformer.core.choice import choice, recomputed
    from kinformer.core.discover import member
    from kinformer.core.example import Example
    from kinformer.core.feature_map import FeatureMap
    from kinformer.core.heads import Keys, Queries, Room, Side, Sizes
    from kinformer.core.keyed import Keyed
    from kinformer.core.layer import Context, Layer, Out, PerPair, PerToken, Want
    from kinformer.core.loss import Loss, Penalty
    from kinformer.core.mechanism import Mechanism, NoState
    from kinformer.core.memory import Memory
    from kinformer.core.model import Judged, Metric, Model, Writer
    from kinformer.core.pattern import And, Heads, Not, Or, Pattern
    from kinformer.core.position import Position, Rotation
    from kinformer.core.projection import Projection
    from kinformer.core.read import Read, mass, merge, weights
    from kinformer.core.recipe import Recipe
    from kinformer.core.request import Refusal, Request
    from kinformer.core.score import Score
    from kinformer.core.shorten import Shorten
    from kinformer.core.state import Exact, detach, fork, reset, select, shared
    from kinformer.decoding.generate import generate
    from kinformer.lab.data.batches import Batches
    from kinformer.lab.datastore.datastore import Datastore
    from kinformer.lab.train.fit import fit
    from kinformer.lab.train.recipe_lr import RecipeLR
    from kinformer.laws.check import check
    from kinformer.nn.attention import Attention

__version__ = "0.1.0"

__all__ = [
    "KV",
    "Aggregation",
    "And",
    "Attention",
    "Batches",
    "Bias",
    "Context",
    "Datastore",
    "Exact",
    "Example",
    "FeatureMap",
    "Heads",
    "Join",
    "Judged",
    "Keyed",
    "Keys",
    "Layer",
    "Loss",
    "Mechanism",
    "Memory",
    "Metric",
    "Model",
    "NoState",
    "Not",
    "Or",
    "Out",
    "Part",
    "Pattern",
    "Penalty",
    "PerPair",
    "PerToken",
    "Plus",
    "Position",
    "Projection",
    "Queries",
    "Read",
    "Recipe",
    "RecipeLR",
    "Refusal",
    "Request",
    "ResidualBlock",
    "Room",
    "Rotation",
    "Score",
    "Shorten",
    "Side",
    "Sizes",
    "Want",
    "Writer",
    "__version__",
    "attend",
    "check",
    "choice",
    "detach",
    "explain",
    "fit",
    "fork",
    "generate",
    "load",
    "mass",
    "member",
    "merge",
    "parts",
    "recomputed",
    "reset",
    "save",
    "select",
    "shared",
    "weights",
]

_FILES = {
    "nn.attention": ("Attention",),
    "laws.check": ("check",),
    "core.aggregation": ("Aggregation",),
    "core.bias": ("Bias", "Plus"),
    "core.block": ("Join", "ResidualBlock"),
    "core.cache": ("KV",),
    "core.choice": ("choice", "recomputed"),
    "core.example": ("Example",),
    "core.feature_map": ("FeatureMap",),
    "core.heads": ("Keys", "Queries", "Room", "Side", "Sizes"),
    "core.keyed": ("Keyed",),
    "core.layer": ("Context", "Layer", "Out", "PerPair", "PerToken", "Want"),
    "core.loss": ("Loss", "Penalty"),
    "core.mechanism": ("Mechanism", "NoState"),
    "core.memory": ("Memory",),
    "core.model": ("Judged", "Metric", "Model", "Writer"),
    "attend.parts": ("Part", "parts"),
    "core.pattern": ("And", "Heads", "Not", "Or", "Pattern"),
    "core.position": ("Position", "Rotation"),
    "core.projection": ("Projection",),
    "core.read": ("Read", "mass", "merge", "weights"),
    "core.request": ("Refusal", "Request"),
    "core.score": ("Score",),
    "core.shorten": ("Shorten",),
    "core.state": ("Exact", "detach", "fork", "reset", "select", "shared"),
    "lab.data.batches": ("Batches",),
    "core.discover": ("member",),
    "attend": ("attend", "explain"),
    "decoding.generate": ("generate",),
    "checkpoint.checkpoint": ("load", "save"),
    "lab.datastore.datastore": ("Datastore",),
    "lab.train.fit": ("fit",),
    "core.recipe": ("Recipe",),
    "lab.train.recipe_lr": ("RecipeLR",),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _FILE_OF:
        raise AttributeError(f"kinformer has no public name {name!r}; dir(kinformer) lists them")
    value = getattr(importlib.import_module(f"kinformer.{_FILE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
