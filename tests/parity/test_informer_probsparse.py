"""ProbSparse attention against Informer's own code, the sampled keys taken over."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.mechanisms.probsparse import ProbSparse
from tests.parity.goldens import Golden, close, goldens


class Given(ProbSparse):
    """The same with keys that somebody else has drawn, for all heads and rows or for each."""

    def __init__(self, sample: Int[Tensor, "*shared T U"], **options: Any):
        super().__init__(**options)
        self.sample = sample

    def ranks(self, heads: int, rank: Tensor, keys: Tensor, draws: int) -> Tensor:
        assert self.sample.shape[-2] == rank.shape[-1]
        by_head = self.sample.view(*[1] * (4 - self.sample.dim()), *self.sample.shape)
        return by_head.expand(len(rank), -1, -1, -1)


def compare(golden: Golden) -> None:
    """The output and the chosen queries, where they are stored."""
    h, t = golden.hyperparameters, golden.tensors
    causal = bool(h.get("causal", False))
    rest: dict[str, Any] = {"rest": "sum"} if causal else {}
    mechanism = Given(t["index_sample"], causal=causal, factor=h["factor"], divisor="row", **rest)
    x, source = t["x"], t.get("kv", t["x"])

    def of(name: str, x: Tensor) -> Tensor:
        y = x @ t[f"W_{name}"] + t.get(f"b_{name}", torch.zeros(()))
        return y.unflatten(-1, (h["heads"], -1)).transpose(1, 2)

    ctx, source_ctx = Context.of_sequence(x), Context.of_sequence(source)
    queries = Queries(of("q", x), ctx.by_head)
    keys = Keys(of("k", source), of("v", source), source_ctx.by_head, own="kv" not in t)
    if "kv" not in t:
        keys = keys._replace(pos=ctx.by_head)
    y = mechanism(queries, keys, None, ctx).y.y  # [B H T V]
    # their default in decoders reads the memory of heads as if it were that of tokens
    joined = y.reshape(len(y), y.shape[2], -1) if h.get("mix") else y.transpose(1, 2).flatten(2)
    close(joined @ t["W_o"] + t.get("b_o", torch.zeros(())), t["y"])
    if "top_queries" in t:
        request, _ = mechanism.make_request(queries, keys, None, ctx)
        assert torch.equal(mechanism.choose_queries(request).sort(-1).values, t["top_queries"])


@goldens("informer_probsparse")
def test_informer_probsparse(golden: Golden) -> None:
    compare(golden)
