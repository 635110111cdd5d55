"""SPALM: a Transformer-XL with a datastore, and a gate that learns when to trust it."""

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

START = 2.0  # initial length of an embedding


@member(cost="L * (segment + memory)", recipe=Recipe(lr=1e-3, warmup=0.2))
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
    """SPALM (Yogatama et al., 2021, arXiv:2102.02557): a Transformer-XL with a datastore.

    Hidden states are the short memory, and the datastore is the long memory. Choose it over `kinformer knn-lm`, which
    needs no training, if you train a model anyway and have a corpus for its text. A gate learns for each token how much
    to use the retrieved neighbours.

    Train a `transformer_xl`, build a datastore with it (`kinformer datastore build`), then train this member on the
    same text; a row never retrieves its own text. The keys stay those that the trained model computed, and the values
    are token embeddings of this model. The paper's keys are last hidden states (`--tap 4` of five layers); any states
    work.

    The saved folder stores the path of the datastore and the source of its keys, but not the datastore itself. The
    datastore must be at this path when the model is loaded, or `--datastore` gives its path. The model that made the
    keys must be at its old path, or next to the datastore under its name.

    datastore: folder of the datastore. None builds the `transformer_xl` that is the baseline.
    frozen: folder of the model that made the keys; the folder that the datastore names if None.
    k: number of neighbours per token; 4 in the paper.
    distance: let near neighbours count more; the paper saw no gain.
    std: initial standard deviation of embeddings; with a datastore 2 / sqrt(d) if None. A retrieved embedding y adds at
        most |y|^2 to the logit of its token, and |y|^2 starts at d std^2 = 4. With the 0.02 of `transformer_xl` it
        would be 0.05 for d=128 and rise slowly in training, so the gate would stay closed. The paper does not state a
        value.
    d, depth, heads, head_dim, segment, memory, same_length, clamp, init, vocab, dropout: as in `transformer_xl`.
    """
    options: dict[str, Any] = {"head_dim": head_dim, "same_length": same_length, "clamp": clamp, "dropout": dropout}
    if std is None and datastore is not None:
        std = START * d**-0.5
    options |= {"init": init, "std": std}
    base = transformer_xl(d=d, depth=depth, heads=heads, segment=segment, memory=memory, vocab=vocab, **options)
    if datastore is None:
        check_unused("datastore=None", frozen=(frozen, None), k=(k, 4), distance=(distance, False))
        return base
    # Datastore is a public name of the package, which imports the members, so it is imported late.
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
