"""The Transformer family as parts that compose.

Every public name is here: `kinformer.Softmax`, `kinformer.Causal`, `kinformer.gpt`. A name is imported from its file at
its first use: `import kinformer` imports neither torch nor anything else, so the command line answers at once.
"""

import importlib
import sys
import types

__version__ = "0.1.0"

# Contracts, data that travels, and verbs, by file. Parts and members need no entry: their folders are searched.
_FILES = {
    "nn.attention": ("Attention",),
    "nn.multihead_attention": ("MultiheadAttention",),
    "laws.check": ("check",),
    "core.aggregation": ("Aggregation",),
    "core.bias": ("Bias", "Plus"),
    "core.residual_block": ("Join", "ResidualBlock"),
    "core.kv_cache": ("KV",),
    "core.choice": ("choice", "run_checkpointed"),
    "core.example": ("Example",),
    "core.feature_map": ("FeatureMap",),
    "core.heads": ("Keys", "Queries", "StateSpec", "HeadSizes"),
    "core.extra_projection": ("ExtraProjection",),
    "core.key_value_mechanism": ("KeyValueMechanism",),
    "core.layer": ("Context", "Layer", "Out", "PerPair", "PerToken", "Want"),
    "core.loss": ("Loss", "Penalty"),
    "core.mechanism": ("Mechanism", "NoState"),
    "core.memory": ("Memory",),
    "core.model": ("EvaluationSums", "Metric", "Model", "Writer"),
    "attend.pattern_parts": ("PatternPart", "parts"),
    "core.pattern": ("And", "Heads", "Not", "Or", "Pattern"),
    "core.position": ("Position", "Rotation"),
    "core.projection": ("Projection",),
    "core.attention_output": ("AttentionOutput", "received_attention", "merge", "weights"),
    "core.request": ("Refusal", "Request"),
    "core.score": ("Score",),
    "core.shorten": ("Shorten",),
    "core.state": ("UncastState", "detach", "fork", "reset", "select", "share_positions"),
    "lab.data.batches": ("Batches",),
    "core.discover": ("member",),
    "attend": ("attend", "explain"),
    "decoding.generate": ("generate",),
    "checkpoint.checkpoint": ("load", "save"),
    "lab.datastore.datastore": ("Datastore",),
    "lab.train.fit": ("fit",),
    "core.training_recipe": ("Recipe",),
    "lab.train.learning_rate_schedule": ("RecipeLR",),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__all__":
        return __dir__()
    file = _FILE_OF.get(name) or (None if name.startswith("_") else _parts().get(name))
    if file is None:
        raise AttributeError(f"kinformer has no public name {name!r}; dir(kinformer) lists them")
    value = getattr(importlib.import_module(f"kinformer.{file}"), name)
    globals()[name] = value
    return value


def _parts() -> dict[str, str]:
    """The file of every part and member by name; the files are read and not imported."""
    from kinformer.core.discover import public_names  # reads the folders, which `import kinformer` need not wait for

    return public_names()


def __dir__() -> list[str]:
    return sorted({"__version__", *_FILE_OF, *_parts()})


class _Package(types.ModuleType):
    """A package whose verbs stay in sight: an imported folder `attend` does not hide the function of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _FILE_OF and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
