"""NearestNeighbourLM: a trained language model mixed with the nearest entries of a datastore."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_in_range, check_part
from kinformer.core.example import Example
from kinformer.core.layer import Context, Out
from kinformer.core.neighbours import Entries, Neighbours, Store
from kinformer.models.lm import EXAMPLES as MODELS
from kinformer.models.lm import LM
from kinformer.models.support.memory_probabilities import log_p_by_token, log_probabilities, mix_log_p
from kinformer.models.support.run_uncompiled import run_uncompiled
from kinformer.models.support.wrapped_lm import WrappedLM, number_tokens
from kinformer.nn.depth.early_exit import EarlyExit


class NearestNeighbourLM(WrappedLM):
    """Trained language model mixed with the tokens that followed similar hidden states in a datastore.

    p = weight p_kNN + (1 - weight) p_LM

    p_kNN(w) = sum_(i: v_i = w) softmax_i(-|k_i - f(x)|^2 / temperature)

    The (k_i, v_i) are the `k` entries of a datastore that are nearest to the state f(x) of the tokens so far. Its keys
    are such states of other text, its values the tokens that followed. Choose it to give a trained model a corpus
    without training: names and phrases of the corpus become likely. `kinformer knn-lm` finds `k`, `weight` and
    `temperature` on validation data.

    Distances are squared, as in the paper's main results, and computed from the keys as the store holds them. A store
    with fewer than `k` entries returns all of them; an empty store leaves the model unchanged. With a `ContinuousCache`
    as `model`, it is the paper's kNN-LM with the continuous cache.

    model: a trained `LM`, or a `ContinuousCache` around one.
    store: entries with keys from this model, such as a `Datastore`.
    tap: name of the hidden state of the model that is f(x), as in `Tap`; it must be the one that made the store's keys.
    k: number of neighbours; the default 1024 is the paper's.
    weight: lambda, the weight of p_kNN in the mixture. The paper tunes it on validation data and finds 0.25 on the
        model's own corpus.
    temperature: temperature of the distances; the paper uses 1.

    Errors: ValueError for invalid numbers, and for a model with early exits.
    Source: Khandelwal et al., 2019, arXiv:1911.00172, section 2.
    """

    def __init__(
        self,
        model: LM | WrappedLM,
        store: Store,
        tap: str,
        *,
        k: int = 1024,
        weight: float = 0.25,
        temperature: float = 1.0,
    ):
        super().__init__(model)
        refuse_exits(self.model)
        check_part("store", store, Store, "a store, such as a Datastore")
        self.store, self.tap, self.k = store, tap, check_at_least("k", k, 1)
        self.weight = check_in_range("weight", weight, 0, 1)
        self.temperature = check_in_range("temperature", temperature, 1e-6, math.inf, open_end=True)

    def logits(
        self, tokens: Int[Tensor, "B T"], state: Any = None, ctx: Context | None = None, *, last: bool = False
    ) -> Out:
        """Return the log-probabilities of the token after each token, in float32 or better."""
        out, neighbours = self.look_up(tokens, state, ctx, last)
        model_log_p = log_probabilities(out.y)
        return out._replace(y=mix_log_p(model_log_p, self.neighbour_log_p(neighbours, model_log_p), self.weight))

    def look_up(
        self, tokens: Int[Tensor, "B T"], state: Any, ctx: Context | None, last: bool
    ) -> tuple[Out, Neighbours]:
        """Return the model's output, and the entries of the store that are nearest to f(x) at each token.

        `NearestNeighbourLM.logits` mixes the two.

        tokens, state, ctx, last: arguments of `logits`.
        """
        ctx = number_tokens(tokens, state) if ctx is None else ctx
        out = self.model.logits(tokens, state, ctx.replace(taps=(*ctx.taps, self.tap)), last=last)
        if self.tap not in out.taps:
            raise ValueError(f"the model has no hidden state {self.tap!r}; build the datastore again with this model")
        states = out.taps[self.tap]
        at = slice(states.shape[1] - out.y.shape[1], None)
        return out, self.find_neighbours(states[:, at], ctx.pos[:, at] >= 0)

    @run_uncompiled
    @torch.no_grad()
    def find_neighbours(self, states: Float[Tensor, "B T d"], real: Bool[Tensor, "B T"]) -> Neighbours:
        """Return the entries of the store that are nearest to the state f(x) of each token.

        states: state f(x) of each token.
        real: False at padding, which gets no neighbours.
        """
        return self.store.of_tokens(states, real, self.k)

    @torch.no_grad()
    def neighbour_log_p(self, neighbours: Neighbours, like: Float[Tensor, "B T V"]) -> Float[Tensor, "B T V"]:
        """Return log p_kNN of every token; tokens that are not among the neighbours get -inf.

        neighbours: entries of the store for each token.
        like: tensor with the dtype and device of the result.
        """
        return log_p_by_token(-neighbours.distances.to(like) / self.temperature, neighbours.tokens, self.vocab)


def refuse_exits(model: nn.Module) -> None:
    """Raise ValueError for a model with early exits.

    A lookup by a late hidden state would need all layers for every token, so no layer would be saved.

    model: model to check.
    """
    if any(isinstance(part, EarlyExit) for part in model.modules()):
        raise ValueError(
            "a datastore does not work with early exits: a lookup by a hidden state needs all layers, so exits save "
            "nothing. Give a model without exits"
        )


def _example() -> NearestNeighbourLM:

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, keys = MODELS[0](), torch.randn(20, 16)
    return NearestNeighbourLM(model, Entries(keys, torch.arange(20) % 11), "1.1.input", k=5, temperature=9.0)


EXAMPLES = (
    Example(
        _example,
        breaks={
            "compiles": "a search reads from a disk, which a graph cannot contain",
            "derivative": "retrieved entries are constants, so no gradient flows through them",
            "dtype": "probabilities are mixed and returned in float32 or better",
        },
    ),
)
