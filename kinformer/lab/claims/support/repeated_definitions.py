"""Documents that define names and repeat them later, and Memorizing Transformers that learn them."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.batch import TokenBatch
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.data.batches import Batches
from kinformer.lab.train.fit import fit
from kinformer.members.memorizing_transformer import memorizing_transformer
from kinformer.models.lm import LM

NAMES, VALUES, TIMES = 4, 4, 4
DEFINITIONS = NAMES * VALUES  # tokens below define a name, the next ones repeat it, the last ones are values
VOCAB = DEFINITIONS + NAMES + VALUES
LENGTH = NAMES + 2 * NAMES * TIMES
CONTEXT = 2  # earlier tokens that local attention reads
FAR = 4 * CONTEXT  # least distance of a measured repeat from its definition
MEMORIES = (0, 8 * CONTEXT, 32 * CONTEXT)  # as 0, 1k and 4k for a context of 128
# The memory layer is the lower of two: above another layer, models of this size learn nothing within 200 steps.
SIZES: dict[str, Any] = {"d": 32, "depth": 2, "heads": 4, "segment": CONTEXT, "k": 4, "layer": 1, "vocab": VOCAB}
ROWS, RATE, TESTED = 32, 1e-2, 256
GUESS = 2.0  # bits of a guess among four values


class Documents(NamedTuple):
    """Documents that define names and then repeat each name four times, followed by its value.

    tokens: the documents. A definition is one token, which stands for a name with its value. A repeat is two tokens,
        the name and its value.
    distance: number of tokens from the name of a repeat back to its definition, at the position of the value; 0
        elsewhere.
    """

    tokens: Int[Tensor, "B T"]
    distance: Int[Tensor, "B T"]

    @property
    def batch(self) -> TokenBatch:
        """The documents as a batch in which only the values of repeats are learned."""
        return TokenBatch(self.tokens, self.distance > 0)


def documents(rows: int, seed: int) -> Documents:
    """Return random documents. Names, values and orders are drawn for each document.

    rows: number of documents.
    seed: seed of the documents.
    """
    generator = torch.Generator().manual_seed(seed)

    def order() -> Tensor:
        return torch.rand(rows, NAMES, generator=generator).argsort(1)

    values = torch.randint(VALUES, (rows, NAMES), generator=generator)
    defined, repeated = order(), torch.cat([order() for _ in range(TIMES)], 1)
    definitions = defined * VALUES + values.gather(1, defined)
    repeats = torch.stack([DEFINITIONS + repeated, DEFINITIONS + NAMES + values.gather(1, repeated)], 2)
    places = NAMES + 2 * torch.arange(NAMES * TIMES) - defined.argsort(1).gather(1, repeated)
    distances = torch.stack([torch.zeros_like(places), places], 2).flatten(1)
    return Documents(torch.cat([definitions, repeats.flatten(1)], 1), F.pad(distances, (NAMES, 0)))


def build(seed: int, memory: int, weights: LM | None = None) -> LM:
    """Return a Memorizing Transformer, which is new or has the weights of another one.

    seed: seed of new weights.
    memory: number of tokens that the memory layer stores before the segment.
    weights: model whose weights to take; None for new weights.
    """
    with seeded(seed):
        model = memorizing_transformer(**SIZES, memory=memory)
    if weights is not None:
        model.load_state_dict(weights.state_dict())
    return model


def train_on_documents(model: LM, seed: int, steps: int) -> LM:
    """Train a model on new documents in each step, and return it.

    model: model to train.
    seed: seed of the documents.
    steps: number of training steps.
    """
    with seeded(seed):
        data = Batches(
            lambda step: documents(ROWS, 10_000 * (seed + 1) + step).batch, [documents(ROWS, seed).batch]
        )  # seeds below 10,000 are not used in training
        fit(model, data, steps=steps, lr=RATE, seed=seed, measures=1)
    return model


@torch.no_grad()
def _value_bits(model: LM) -> tuple[Float[Tensor, " N"], Int[Tensor, " N"]]:
    """Return the bits of every predicted token of new documents, and its distance from a definition."""
    tokens, distance = documents(TESTED, 9_999)
    nats = F.cross_entropy(model.eval().logits(tokens[:, :-1]).y.mT, tokens[:, 1:], reduction="none")
    return nats.double().flatten() / math.log(2), distance[:, 1:].flatten()


def bits_by_distance(model: LM) -> Float[Tensor, " D"]:
    """Return the mean bits of the values of repeats, by the distance from their definition.

    Entry n is of distance n; it is NaN if no repeat has this distance.

    model: model to evaluate.
    """
    bits, distance = _value_bits(model)
    sums = torch.zeros(LENGTH, dtype=torch.double).index_add_(0, distance, bits)
    means = sums / distance.bincount(minlength=LENGTH)
    means[0] = torch.nan
    return means


def far_bits(model: LM) -> float:
    """Return the mean bits of values at least four times the context after their definition.

    model: model to evaluate.
    """
    bits, distance = _value_bits(model)
    return float(bits[distance >= FAR].mean())
