"""SPALM: a Transformer-XL that looks up a datastore, and learns when to."""

import importlib
from pathlib import Path
from typing import Any

from kinformer.core.checks import check_unused
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.members.transformer_xl import transformer_xl
from kinformer.models.lm import LM
from kinformer.models.spalm import SPALM
from kinformer.nn.biases.transformer_xl import SHARED
from kinformer.nn.initialise import Scheme, with_embeddings

START = 2.0  # the length of an embedding at the start


@member(recipe=Recipe(lr=1e-3, warmup=0.2))
def spalm(
    datastore: str | None = None,
    frozen: str | None = None,
    k: int = 4,
    distance: bool = False,
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    segment: int = 64,
    memory: int = 64,
    same_length: bool = False,
    clamp: int | None = None,
    init: Scheme = "library",
    std: float | None = None,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """SPALM (Yogatama et al., 2021, arXiv:2102.02557): short memory of hidden states, long memory of a datastore.

    Choose it over `knn-lm` where a model is trained anyway and its text has a corpus beside it: a gate learns token by
    token how far to trust what is looked up. Train a `transformer_xl`, build a datastore of it (`kinformer datastore
    build`), then train this on the same text: a row finds nothing of itself. Keys stay those of the trained model,
    values are this one's embeddings. The paper's keys are last hidden states (`--tap 4` of five layers); any will do.
    Without a datastore it is the `transformer_xl` that it is compared with. Its folder keeps the datastore's path and
    what made its keys, not the datastore: that must lie there when it is loaded, or `--datastore` say where; and the
    model that made its keys where it was, or beside the datastore under its name.

    datastore: the folder of the datastore.
    frozen: the folder of the model that made its keys; where the datastore says, unless given.
    k: neighbours of a token; the paper has 4.
    distance: let near neighbours count more; the paper saw no gain.
    std: the initial standard deviation of embeddings; with a datastore 2 / sqrt(d) unless given. A retrieved embedding
        y adds at most |y|^2 to the logit of its token, which starts at d std^2 = 4. With the 0.02 of `transformer_xl`
        it would be 0.05 for d=128 and rise slowly in training, so the gate would stay closed. The paper does not
        state a value.
    Others: those of `transformer_xl`.
    """
    options: dict[str, Any] = {"head_dim": head_dim, "same_length": same_length, "clamp": clamp, "dropout": dropout}
    if std is None and datastore is not None:
        std = START * d**-0.5
    options |= {"init": init, "std": std}
    base = transformer_xl(d=d, depth=depth, heads=heads, segment=segment, memory=memory, vocab=vocab, **options)
    if datastore is None:
        check_unused("datastore=None", frozen=(frozen, None), k=(k, 4), distance=(distance, False))
        return base
    # A path is opened by a public verb, which lies above the members.
    keys = importlib.import_module("kinformer").Datastore.with_model(Path(datastore), frozen)
    model = SPALM(
        vocab,
        d,
        base.body,
        frozen=keys.model,
        store=keys.store,
        tap=keys.tap,
        made_by=keys.store.manifest.model,
        k=k,
        distance=distance,
        scale=d**0.5,
        dropout=dropout,
        lanes=True,
    )
    return with_embeddings(model, std)


EXAMPLES = (
    Example(lambda: spalm(d=16, depth=2, heads=2, segment=5, memory=3, vocab=11), shares=SHARED),
    lambda: spalm(
        d=16, depth=1, heads=2, segment=5, memory=3, same_length=True, clamp=4, init="scaled_normal", std=0.1, vocab=11
    ),
)
