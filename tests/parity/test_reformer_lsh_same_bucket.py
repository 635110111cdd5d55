"""Reformer's LSH attention against reformer-pytorch where a query reads its own bucket alone."""

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.unit_vector import unit
from kinformer.nn.mechanisms.lsh_published import PublishedLSH
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


def mechanism(golden: Golden) -> PublishedLSH:
    sizes, r = golden.hyperparameters, golden.tensors["R"]
    k_dim, rounds, half = r.shape
    pattern = Causal() if sizes["causal"] else Full()
    lsh = PublishedLSH(1, k_dim, 2 * half, sizes["bucket_size"], rounds, pattern=pattern, divided=False)
    lsh.hash.r.copy_(r[None])
    return lsh


@goldens("reformer_lsh_same_bucket")
def test_buckets(golden: Golden) -> None:
    rounds, buckets = golden.tensors["R"].shape[1], 2 * golden.tensors["R"].shape[2]
    theirs = golden.tensors["buckets"].view(-1, rounds, golden.tensors["qk"].shape[1]) % buckets
    assert torch.equal(mechanism(golden).hash(golden.tensors["qk"][:, None])[:, 0].mT, theirs)


@goldens("reformer_lsh_same_bucket")
def test_output(golden: Golden) -> None:
    q, v = golden.tensors["qk"][:, None], golden.tensors["v"][:, None]
    pos = torch.arange(q.shape[2]).expand(len(q), -1)
    ctx = Context(pos, run=True)
    out = mechanism(golden)(Queries(q, ctx.by_head), Keys(unit(q), v, ctx.by_head), None, ctx)
    close(out.y.y[:, 0], golden.tensors["out"])
