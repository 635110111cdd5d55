"""Routing attention against routing-transformer: what is read, the commitment loss, and the moving average."""

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, Out
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.unit_vector import unit
from kinformer.nn.mechanisms.routing_published import PublishedRouting
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


def make_routing(golden: Golden) -> PublishedRouting:
    """In train mode, where statistics are gathered; eps is the formula's."""
    sizes, tensors = golden.hyperparameters, golden.tensors
    heads, clusters, k_dim = tensors["mu"].shape
    null = "null_k" in tensors
    mechanism = PublishedRouting(
        heads,
        k_dim,
        clusters,
        sizes["window"],
        v_dim=tensors["v"].shape[-1],
        null=null,
        eps=1e-5,
        pattern=Causal() if sizes["causal"] else Full(),
        norm="none",
        decay=sizes["decay"],
        update="direction",
    ).train()
    mechanism.centroids.mu.copy_(tensors["mu"])
    if null:
        mechanism.null_k.data.copy_(tensors["null_k"].squeeze(2))
        mechanism.null_v.data.copy_(tensors["null_v"].squeeze(2))
    return mechanism


def call(mechanism: PublishedRouting, golden: Golden) -> Out:
    tensors = golden.tensors
    q = tensors["q"]
    pos = torch.arange(q.shape[2]).expand(len(q), -1)
    ctx = Context(pos, run=True)
    return mechanism(Queries(q, ctx.by_head), Keys(tensors.get("k", q), tensors["v"], ctx.by_head), None, ctx)


@goldens("routing_attention")
def test_output(golden: Golden) -> None:
    close(call(make_routing(golden), golden).y.y, golden.tensors["out"])


@goldens("routing_attention")
def test_commitment_loss(golden: Golden) -> None:
    per_token = call(make_routing(golden), golden).aux["commitment"]
    close(golden.hyperparameters["commitment"] * per_token.mean(), golden.tensors["commitment_loss"])


@goldens("routing_attention")
def test_moving_average(golden: Golden) -> None:
    """The golden's centroids are not brought to length 1 again; ours are, after each step."""
    mechanism = make_routing(golden)
    stats = call(mechanism, golden).stats
    close(mechanism.centroids.update_average(stats["clusters"]), golden.tensors["mu_ema"])
    mechanism.centroids.after_step(0.5, stats)
    close(mechanism.centroids.mu, unit(golden.tensors["mu_ema"]))
    mechanism.centroids.mu.copy_(golden.tensors["mu"])
    mechanism.centroids.decay = 0.0
    close(mechanism.centroids.update_average(stats["clusters"]), golden.tensors["batch_means"])
