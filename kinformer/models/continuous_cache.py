"""ContinuousCache: a trained language model with a cache of its recent hidden states (Grave et al.)."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.autocast import disable_autocast
from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Out, make_state_spec
from kinformer.core.token_positions import NumberedState, next_positions
from kinformer.models.lm import EXAMPLES as MODELS
from kinformer.models.lm import LM
from kinformer.models.support.memory_probabilities import log_p_by_token, log_probabilities, mix_log_p
from kinformer.models.support.wrapped_lm import WrappedLM, number_tokens


class ContinuousCacheState(NamedTuple):
    """Decoding state of a `ContinuousCache`: next position of each row, the model's state, the cache.

    now: next position of each row.
    model: decoding state of the wrapped model.
    hidden, tokens, pos: hidden states, tokens and positions of the cache, oldest first; -1 marks an empty entry.
    """

    now: Int[Tensor, " B"]
    model: NumberedState
    hidden: Float[Tensor, "B C D"]
    tokens: Int[Tensor, "B C"]
    pos: Int[Tensor, "B C"]


class ContinuousCache(WrappedLM):
    """Trained language model mixed with a cache of the tokens that followed similar hidden states.

    p = weight p_cache + (1 - weight) p_LM

    p_cache(w) = sum_(i<t: x_(i+1) = w) softmax_i(theta h_t . h_i)

    The h_i are the inputs of the head at the `size` tokens before this one, and x_(i+1) is the token that followed
    each. Choose it to adapt a trained model to the words of the current text without training: names that occurred once
    become likely again. Each token costs a product with `size` hidden states. The first token of a row has an empty
    cache, so the model predicts the next token without it.

    model: a trained `LM`.
    size: number of earlier tokens in the cache; the paper uses 100 to 10,000.
    weight: lambda, the weight of p_cache in the mixture; tune it on validation data.
    theta: sharpness of the cache distribution, where 0 makes it uniform; tune it on validation data.

    Errors: ValueError for invalid numbers, for several documents in one row, and for rows longer than the model's
    learned positions.
    Source: Grave et al., 2016, arXiv:1612.04426, section 3.
    """

    model: LM

    def __init__(self, model: LM, *, size: int = 500, weight: float = 0.1, theta: float = 0.3):
        super().__init__(model)
        if not isinstance(model, LM):
            raise ValueError(
                f"model is a {type(model).__name__}, but a continuous cache keeps the states of an LM; give an LM"
            )
        self.size, self.weight = check_at_least("size", size, 1), check_in_range("weight", weight, 0, 1)
        self.theta = check_in_range("theta", theta, 0, math.inf, open_end=True)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> ContinuousCacheState:
        inner = self.model.start(batch, length, dtype=dtype, device=device)
        new = make_state_spec(self, batch, length, dtype, device)
        no_tokens = torch.full((batch, self.size + 1), -1, device=new.device)  # the last entry waits for its next token
        hidden = torch.zeros(batch, self.size + 1, self.model.d, dtype=new.dtype, device=new.device)
        return ContinuousCacheState(inner.now.clone(), inner, hidden, no_tokens, no_tokens.clone())

    def logits(
        self, tokens: Int[Tensor, "B T"], state: Any = None, ctx: Context | None = None, *, last: bool = False
    ) -> Out:
        """Return the log-probabilities of the token after each token, in float32 or better."""
        ctx = number_tokens(tokens, state) if ctx is None else ctx
        if ctx.only is not None:
            raise ValueError(
                "a continuous cache covers the whole row, so ctx.only cannot limit it; give each document its own row"
            )
        out = self.model.hidden(tokens, None if state is None else state.model, ctx)
        at = slice(-1 if last else 0, None)
        model_log_p = log_probabilities(self.model.scores(out, last))
        with torch.no_grad():
            history = _extend_history(state, out.y, tokens, ctx.pos)
            likely = self._cache_log_p(out.y[:, at], ctx.pos[:, at], history, model_log_p)
        if state is not None and out.state is not None:
            end = -(self.size + 1)
            rest = (history.hidden[:, end:].to(state.hidden.dtype), history.tokens[:, end:], history.pos[:, end:])
            out = out._replace(state=ContinuousCacheState(next_positions(state.now, ctx.pos), out.state, *rest))
        return self.mix(model_log_p, likely, out)

    def mix(self, model_log_p: Float[Tensor, "B T V"], likely: Float[Tensor, "B T V"], out: Out) -> Out:
        """Return the output with the model's and the cache's log-probabilities mixed by `weight`."""
        return out._replace(y=mix_log_p(model_log_p, likely, self.weight))

    def _cache_log_p(
        self, h: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"], history: "_History", like: Float[Tensor, "B T V"]
    ) -> Float[Tensor, "B T V"]:
        """Return log p_cache of each token, computed from the tokens before it."""
        h, keys, followed = h.to(like), history.hidden[:, :-1].to(like), history.tokens[:, 1:]
        back = pos[:, :, None] - history.pos[:, None, :-1]  # [B T S]
        in_cache = (back > 0) & (back <= self.size) & (history.pos[:, None, :-1] >= 0)
        with disable_autocast(h):  # autocast would round the float32 states
            scores = (self.theta * h @ keys.mT).masked_fill(~in_cache, -torch.inf)
        return log_p_by_token(scores, followed[:, None].expand(scores.shape), self.vocab)


class _History(NamedTuple):
    hidden: Float[Tensor, "B S D"]
    tokens: Int[Tensor, "B S"]
    pos: Int[Tensor, "B S"]


def _extend_history(
    state: ContinuousCacheState | None, h: Float[Tensor, "B T D"], tokens: Int[Tensor, "B T"], pos: Int[Tensor, "B T"]
) -> _History:
    """Append new tokens to the cache and sort by position, empty entries first, so that each entry precedes its next
    token.
    """
    if state is not None:
        h = torch.cat([state.hidden.to(h.dtype), h], 1)
        tokens, pos = torch.cat([state.tokens, tokens], 1), torch.cat([state.pos, pos], 1)
    order = pos.argsort(dim=1, stable=True)
    return _History(
        h.take_along_dim(order[..., None], 1), tokens.take_along_dim(order, 1), pos.take_along_dim(order, 1)
    )


def _example() -> ContinuousCache:

    return ContinuousCache(MODELS[0](), size=3, weight=0.5)


EXAMPLES = (
    Example(
        _example,
        breaks={
            "derivative": "cached states are constants, so no gradient flows through them",
            "dtype": "probabilities are mixed and returned in float32 or better",
        },
    ),
)
