"""Probabilities of remembered tokens: a softmax over memory entries, mixed with a model's predictions."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.autocast import at_least_float32


def log_p_by_token(scores: Float[Tensor, "*A S"], tokens: Int[Tensor, "*A S"], vocab: int) -> Float[Tensor, "*A V"]:
    """Return log p(w) = log sum_(i: token_i = w) softmax(scores)_i; other tokens get -inf.

    Each i is an entry of a memory, such as a cache or the nearest neighbours. The computation uses logarithms, so very
    unlikely tokens keep their precision. A token of -1, or a score of -inf, marks an empty entry. If all entries are
    empty, every token gets -inf.

    scores: score of each entry of the memory.
    tokens: token that each entry stores.
    vocab: number of tokens.
    """
    is_memory = (tokens >= 0) & (scores > -torch.inf)
    scores = scores.masked_fill(~is_memory, -torch.inf)
    norm = scores.logsumexp(-1, keepdim=True)
    likely = torch.where(is_memory, scores - norm, -torch.inf)
    at = tokens.clamp_min(0)
    maximum = likely.new_full((*tokens.shape[:-1], vocab), -torch.inf).scatter_reduce(-1, at, likely, "amax")
    away = torch.where(is_memory, likely - maximum.gather(-1, at), -torch.inf).exp()
    return torch.zeros_like(maximum).scatter_add(-1, at, away).log() + maximum


def mix_log_p(model_log_p: Float[Tensor, "*A V"], other: Float[Tensor, "*A V"], weight: float) -> Float[Tensor, "*A V"]:
    """Return log(weight p_other + (1 - weight) p_model), or log p_model if the memory is empty.

    model_log_p: log-probabilities of the model.
    other: log-probabilities of the memory; all -inf if it is empty.
    weight: weight of the memory in the mixture.
    """
    log_weight, log_rest = (-math.inf if x <= 0 else math.log(x) for x in (weight, 1 - weight))
    other, weighted_model = other + log_weight, model_log_p + log_rest
    impossible = torch.maximum(other, weighted_model) == -torch.inf  # the gradient of logaddexp is NaN there
    total = torch.logaddexp(
        other.masked_fill(impossible, 0.0), weighted_model.masked_fill(impossible, 0.0)
    ).masked_fill(impossible, -torch.inf)
    return torch.where((other > -torch.inf).any(-1, keepdim=True), total, model_log_p)


def log_probabilities(logits: Float[Tensor, "*A V"]) -> Float[Tensor, "*A V"]:
    """Return the log-probabilities of logits, in float32 or better.

    logits: scores of the tokens.
    """
    return at_least_float32(logits).log_softmax(-1)
