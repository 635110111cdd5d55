"""Routing Transformer: which heads of which blocks route, what moves the centroids, and the published form."""

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from kinformer.core.after_step import after_step
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.lab.train.reads_ahead import reads_ahead
from kinformer.members.routing_transformer import routing_transformer
from kinformer.members.support.wiring import SINUSOIDS, Positions
from kinformer.models.lm import LM
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.relative import Relative
from kinformer.nn.mechanisms.centroids import Centroids
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.routing_published import PublishedRouting
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.split import SplitHeads
from kinformer.nn.patterns.band import Band
from kinformer.nn.positions.learned import Learned
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.positions.sinusoidal import Sinusoidal

TOKENS = torch.arange(60).remainder(11).view(3, 20)


def tiny(depth: int = 3, **keywords: object) -> LM:
    return routing_transformer(d=16, depth=depth, heads=4, local=4, vocab=11, **keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize("position", get_args(Positions))
def test_what_is_not_added_is_known_to_local_heads_alone(position: str, float64: None) -> None:
    """Far from its neighbours a token is told where they are by what is added alone: local heads read none of them."""
    model = tiny(position=position, head_dim=6, depth=1, clusters=1).eval()
    added = {"learned": Learned, **dict.fromkeys(SINUSOIDS, Sinusoidal)}
    assert isinstance(model.position, added.get(position, type(None)))
    (near, routing), projection = (
        model.body.layers[0].layers[0].mechanism.parts,
        model.body.layers[0].layers[0].projection,
    )
    assert (
        isinstance(near.bias, {"alibi": ALiBi, "relative": Relative}.get(position, type(None))) and routing.bias is None
    )
    assert isinstance(projection.parts[0].rotation, Rotary if position == "rotary" else type(None))
    far, further = (
        model.logits(TOKENS[:, :5], None, Context((torch.arange(5) * step).expand(3, 5), run=False)).y
        for step in (5, 9)
    )
    assert torch.allclose(far, further, atol=1e-10) == (position not in added)


def test_it_starts_where_nothing_is_known() -> None:
    model = routing_transformer(d=32, depth=2, length=64)
    loss = model(torch.randint(0, 256, (4, 33)))
    assert abs(float(loss.total.detach()) / math.log(256) - 1) < 0.03


@pytest.mark.parametrize(("routed", "first"), [(None, 0), (2, 1), (0, 3), (9, 0)])
def test_blocks_from_the_top_route_with_half_of_their_heads(routed: int | None, first: int) -> None:
    mechanisms = [block.layers[0].mechanism for block in tiny(routed=routed).body.layers]
    for mechanism in mechanisms[:first]:
        assert isinstance(mechanism, Softmax) and mechanism.pattern == Causal() & Band(4)
    for mechanism in mechanisms[first:]:
        assert isinstance(mechanism, SplitHeads)
        near, routing = mechanism.parts
        assert isinstance(near, Softmax) and near.pattern == Causal() & Band(4)
        assert isinstance(routing, Routing) and (routing.heads, routing.clusters) == (2, 32)  # sqrt(1024)


def test_keys_of_heads_that_route_are_their_queries(float64: None) -> None:
    projection = tiny().body.layers[0].layers[0].projection
    queries, keys = projection.queries_and_keys(torch.randn(2, 5, 16), torch.arange(5).expand(2, -1))
    assert torch.equal(queries.q[:, 2:], keys.k[:, 2:]) and not torch.allclose(queries.q[:, :2], keys.k[:, :2])


def test_a_step_of_training_moves_the_centroids_of_every_block_that_routes() -> None:
    model = tiny(routed=2, clusters=2, decay=0.9).train()
    before = [part.mu.clone() for part in model.modules() if isinstance(part, Centroids)]
    after_step(model, 0.5, model(TOKENS).stats)
    after = [part.mu for part in model.modules() if isinstance(part, Centroids)]
    assert len(after) == 2 and all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_the_commitment_is_paid_for() -> None:
    def parts(commitment: float) -> tuple[Tensor, dict[str, Tensor]]:
        torch.manual_seed(3)
        loss = tiny(commitment=commitment)(TOKENS)
        return loss.total, loss.parts

    total, parts_of_loss = parts(0.5)
    assert (
        torch.allclose(total, parts_of_loss["nll"] + 0.5 * parts_of_loss["commitment"])
        and parts_of_loss["commitment"] > 0
    )
    total, parts_of_loss = parts(0.0)
    assert torch.equal(total, parts_of_loss["nll"])


def test_clusters_of_one_size_are_the_published_form_and_training_says_that_they_read_ahead() -> None:
    model = tiny(window=5, clusters=3)
    parts_found = [part for part in model.modules() if isinstance(part, PublishedRouting)]
    assert len(parts_found) == 3 and all((part.clusters, part.window) == (3, 5) for part in parts_found)
    assert "can displace an earlier one" in reads_ahead(model, 20)


def test_keys_of_their_own_may_leave_a_query_alone_in_a_cluster_in_three_ways(float64: None) -> None:
    def of(**keywords: object) -> tuple[PublishedRouting, Tensor]:
        torch.manual_seed(3)
        model = tiny(window=3, clusters=4, depth=1, **keywords).eval()
        (part,) = (part for part in model.modules() if isinstance(part, PublishedRouting))
        return part, model.logits(TOKENS).y

    (paper, _), (skipped, read), (zero, less), (null, null_output) = (
        of(),
        of(shared=False),
        of(shared=False, alone="zero"),
        of(shared=False, alone="null"),
    )
    assert [part.alone for part in (paper, skipped, zero)] == ["skipped", "skipped", "zero"]
    assert null.null_k is not None and paper.null_k is None
    assert not torch.allclose(read, less) and not torch.allclose(read, null_output)
    projection = tiny(shared=False).body.layers[0].layers[0].projection
    queries, keys = projection.queries_and_keys(torch.randn(2, 5, 16), torch.arange(5).expand(2, -1))
    assert not torch.allclose(queries.q[:, 2:], keys.k[:, 2:])
    for wrong in ({"window": 3}, {"shared": False}):
        with pytest.raises(ValueError, match="alone=zero has no effect with .*, or give window!=none and shared=false"):
            tiny(alone="zero", **wrong)


def test_every_form_of_the_published_codes_is_a_keyword() -> None:
    paper, code = (
        [part for part in tiny(window=3, **keywords).modules() if isinstance(part, PublishedRouting)][0]
        for keywords in ({}, {"norm": "none", "eps": 1e-5, "update": "direction", "shared": False, "alone": "null"})
    )
    assert (paper.norm, paper.eps, paper.centroids.update, paper.null_k) == ("layer", 0.0, "sum", None)
    assert (code.norm, code.eps, code.centroids.update) == ("none", 1e-5, "direction") and code.null_k is not None
    (strict, *_) = (part for part in tiny(norm="none").modules() if isinstance(part, Routing))
    assert strict.norm == "none"
    with pytest.raises(ValueError, match="eps=0.01 has no effect with window=none; leave it out, or give window!=none"):
        tiny(eps=0.01)


def test_what_is_wrong_is_said_in_words() -> None:
    with pytest.raises(ValueError, match="commitment=-1.0: give a number from 0 up"):
        tiny(commitment=-1.0)
    with pytest.raises(ValueError, match="heads=3 is not a multiple of halves=2"):
        routing_transformer(d=12, heads=3)
