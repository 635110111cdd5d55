"""Routing: the strict form by a loop from the equation; for both forms centroids that follow what training reads."""

import inspect
import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kinformer.attend import read
from kinformer.core.choice import Choices
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.loss import Penalty
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.centroids import Centroids
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.routing_published import PublishedRouting
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.sorted_groups import read_sorted, sort_rounds
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.shared_qk import SharedQK

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K, C = 2, 2, 11, 4, 3
PADDED = torch.tensor([[-1, -1, 0, 1, 2, 3, 4, 5, 6, -1, -1], list(range(T))])


def inputs(groups=H):
    return torch.randn(B, H, T, K), torch.randn(B, groups, T, K), torch.randn(B, groups, T, K)


def bundles(q, k, v, pos=None, k_pos=None, own=True, **limits):
    """Queries, keys and the context of one call."""
    pos = torch.arange(q.shape[2]).expand(len(q), -1) if pos is None else pos
    ctx = Context(pos, run=True, **limits)
    return Queries(q, ctx.by_head), Keys(k, v, ctx.by_head if k_pos is None else k_pos[:, None], own=own), ctx


def call(mechanism, q, k, v, pos=None, state=None, **keywords):
    queries, keys, ctx = bundles(q, k, v, pos, **keywords)
    return mechanism(queries, keys, state, ctx)


def started(mechanism, groups=H, cross=False):
    """A state for rows of T tokens."""
    spec = StateSpec(B, T, torch.get_default_dtype(), torch.device("cpu"))
    return mechanism.start(spec, HeadSizes(H, groups, groups, K, K, cross))


def normed(x):
    """Without gain and bias: mean 0, variance 1."""
    return (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)


def similar(mechanism, h, x):
    """The product of a vector's direction with each centroid of a head."""
    return [float(x @ mu / x.norm()) for mu in mechanism.centroids.mu[h]]


def nearest(mechanism, h, x):
    similarity = similar(mechanism, h, x)
    return similarity.index(max(similarity))


def softmax_of(pairs, values):
    if not pairs:
        return torch.zeros(values.shape[-1])
    logits = torch.stack([s for _, s in pairs])
    return sum(w * values[j] for w, (j, _) in zip(logits.softmax(0), pairs, strict=True))


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize("pattern", [Causal(), Full(), Causal() & Band(4)], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_query_reads_the_keys_of_its_cluster(pattern, norm, groups):
    mechanism, (q, k, v) = Routing(H, K, C, pattern=pattern, norm=norm), inputs(groups)
    y = call(mechanism, q, k, v, PADDED).y.y
    prepared = normed if norm == "layer" else lambda x: x
    for b, h, i in ((b, h, i) for b in range(B) for h in range(H) for i in range(T) if PADDED[b, i] >= 0):
        g = h * groups // H
        query, at = prepared(q[b, h, i]), PADDED[b]
        keys = [(j, prepared(k[b, g, j])) for j in range(T) if at[j] >= 0 and bool(pattern(b, h, at[i], at[j]))]
        same = [(j, x) for j, x in keys if nearest(mechanism, h, x) == nearest(mechanism, h, query)]
        expected = softmax_of([(j, query @ x / math.sqrt(K)) for j, x in same], v[b, g])
        torch.testing.assert_close(y[b, h, i], expected, rtol=0, atol=1e-12)


def test_one_cluster_of_everything_is_attention():
    q, k, v = inputs()
    plain = call(Softmax(Causal()), F.layer_norm(q, [K]), F.layer_norm(k, [K]), v, PADDED).y
    read = call(Routing(H, K, 1), q, k, v, PADDED).y
    torch.testing.assert_close(read.y, plain.y, rtol=0, atol=1e-12)
    torch.testing.assert_close(read.lse, plain.lse, rtol=0, atol=1e-12)
    published = call(PublishedRouting(H, K, 1, T), q, k, v, PADDED).y
    torch.testing.assert_close(published.y, plain.y, rtol=0, atol=1e-12)
    assert published.lse is None


def test_with_one_vector_for_queries_and_keys_a_token_reads_itself():
    layer = Attention(SharedQK(16, 2), Routing(2, 8, 50))
    x, pos = torch.randn(1, 9, 16), torch.arange(9)[None]
    queries, keys = layer.projection.queries_and_keys(x, pos)
    assert torch.equal(
        layer.mechanism.centroids.assign_clusters(queries.q), layer.mechanism.centroids.assign_clusters(keys.k)
    )
    assert (call(layer.mechanism, queries.q, keys.k, keys.v).y.lse > -torch.inf).all()


def test_documents_choose_for_themselves_in_the_strict_form():
    mechanism, (q, k, v) = Routing(H, K, 2), inputs()
    ids = torch.arange(T).ge(5).long().expand(B, -1)
    combined, second = call(mechanism, q, k, v, only=Document(ids)).y.y, torch.arange(5, T)
    own = call(mechanism, *(x[:, :, second] for x in (q, k, v)), second.expand(B, -1)).y.y
    torch.testing.assert_close(combined[:, :, 5:], own, rtol=0, atol=1e-12)


@pytest.mark.parametrize("update", ["sum", "direction"])
@pytest.mark.parametrize("kind", [Routing, lambda *a, **k: PublishedRouting(*a, 3, **k)], ids=["strict", "published"])
def test_centroids_are_a_moving_average_of_what_training_reads(kind, update):
    """mu' = decay mu + (1 - decay) (sum of q in mu + sum of k in mu) / 2, or the direction of that sum; at length 1."""
    mechanism, (q, k, v) = kind(H, K, 7, norm="none", decay=0.8, update=update).train(), inputs()
    old = mechanism.centroids.mu.clone()
    out = call(mechanism, q, k, v, PADDED)
    assert torch.equal(mechanism.centroids.mu, old)
    expected, distance, empty_count = old.clone(), torch.zeros(B, T), 0
    for h in range(H):
        sums, members = torch.zeros(7, K), [0] * 7
        for b, i, x in ((b, i, x[b, h, i]) for x in (q, k) for b in range(B) for i in range(T)):
            c = max(range(7), key=lambda c, h=h, x=x: float(x @ old[h, c]))
            distance[b, i] += ((x / x.norm() - old[h, c]) ** 2).mean() / (2 * H)
            if PADDED[b, i] >= 0:
                sums[c] += x / x.norm()
                members[c] += 1
        for c in (c for c in range(7) if members[c]):
            target = sums[c] / sums[c].norm() if update == "direction" else sums[c] / 2
            expected[h, c] = 0.8 * old[h, c] + 0.2 * target
            expected[h, c] /= expected[h, c].norm()
        empty_count += members.count(0)
    real = PADDED >= 0
    torch.testing.assert_close(out.aux["commitment"][real], distance[real], rtol=0, atol=1e-12)
    mechanism.centroids.after_step(0.5, out.stats)
    torch.testing.assert_close(mechanism.centroids.mu, expected, rtol=0, atol=1e-10)
    nothing = mechanism.centroids.update_average(torch.zeros(H, 7, K))
    torch.testing.assert_close(nothing, mechanism.centroids.mu, rtol=0, atol=1e-12)
    empty = (out.stats["clusters"] == 0).all(-1)
    assert int(empty.sum()) == empty_count and torch.allclose(mechanism.centroids.mu[empty], old[empty], atol=1e-12)


def test_evaluation_and_recomputation_count_nothing():
    mechanism, (q, k, v) = Routing(H, K, C), inputs()
    out = call(mechanism.eval(), q, k, v)
    assert not out.stats
    before = mechanism.centroids.mu.clone()
    mechanism.centroids.after_step(0.5, out.stats)
    assert torch.equal(mechanism.centroids.mu, before)
    mechanism.train()
    plain, calls = call(mechanism, q, k, v).stats, []

    def run(q):
        calls.append(q)
        out = call(mechanism, q, k, v)
        return out.y.y, out.stats["clusters"]

    y, stats = checkpoint(run, q.requires_grad_(), use_reentrant=False)
    y.sum().backward()
    assert len(calls) == 2
    assert torch.equal(stats, plain["clusters"]) and not stats.requires_grad
    assert torch.equal(mechanism.centroids.mu, before)


def test_centroids_find_the_directions_that_there_are():
    planted = torch.eye(K)[:C] * 3
    mechanism = Routing(1, K, C, norm="none", decay=0.9, seed=3).train()
    before = None
    for _ in range(100):
        x = (planted[torch.randint(C, (4, T))] + 0.2 * torch.randn(4, T, K))[:, None]
        out = call(mechanism, x, x, x)
        before = float(out.aux["commitment"].mean()) if before is None else before
        mechanism.centroids.after_step(0.5, out.stats)
    similarity = mechanism.centroids.mu[0] @ torch.eye(K)[:C].T
    assert float(out.aux["commitment"].detach().mean()) < 0.2 * before
    assert sorted(similarity.argmax(1).tolist()) == list(range(C)) and bool((similarity.amax(1) > 0.98).all())


def test_centroids_come_from_the_seed_and_are_saved():
    a, b, c = Routing(2, 4, 4, seed=1), Routing(2, 4, 4, seed=1), Routing(2, 4, 4, seed=2)
    assert torch.equal(a.centroids.mu, b.centroids.mu) and not torch.equal(a.centroids.mu, c.centroids.mu)
    c.load_state_dict(a.state_dict())
    assert torch.equal(a.centroids.mu, c.centroids.mu)
    assert not list(a.parameters())


def unchecked(kind, *args, **keywords):
    """Made as outside of the tests, where nothing checks annotations."""
    return inspect.unwrap(kind.__init__)(kind.__new__(kind), *args, **keywords)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Routing(2, 4, 0), "clusters=0: give a whole number of at least 1"),
        (lambda: Routing(2, 4, 3, decay=1.5), "decay=1.5: give a number from 0 to 1"),
        (lambda: PublishedRouting(2, 4, 3, 0), "window=0: give a whole number of at least 1"),
        (
            lambda: unchecked(PublishedRouting, 2, 4, 3, 2, alone="none"),
            "alone='none' is not known; choose 'skipped' or 'zero'",
        ),
        (lambda: PublishedRouting(2, 4, 3, 2, eps=-1.0), "eps=-1.0: give a number from 0 up"),
        (lambda: unchecked(Routing, 2, 4, 3, norm="rms"), "norm='rms' is not known; choose 'layer' or 'none'"),
        (lambda: unchecked(Centroids, 2, 4, 3, 0.9, "mean", 0), "update='mean' is not known; choose 'sum' or 'dir"),
        (lambda: call(Routing(4, 8, 2), *inputs()), "^Routing was made for 4 heads of width 8, but got 2 of width 4"),
        (lambda: call(PublishedRouting(4, 8, 2, 3), *inputs()), "^PublishedRouting was made for 4 heads of width 8"),
        (
            lambda: call(Routing(H, K, 2), *inputs(), also=Tokens(1)),
            "^Routing reads its clusters, so ctx.also cannot add keys",
        ),
        (lambda: call(PublishedRouting(H, K, 2, 3), *inputs(), also=Tokens(1)), "^PublishedRouting reads its clusters"),
    ],
)
def test_what_is_wrong_is_said_in_words(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", [Routing, lambda *a: PublishedRouting(*a, 3)], ids=["strict", "published"])
@pytest.mark.parametrize("tokens", [T - 1, T, T + 2])
def test_keys_of_another_sequence_are_refused(tokens, kind):
    """Also where they stand at the same positions: keys say whose they are."""
    q, k = torch.randn(B, H, T, K), torch.randn(B, H, tokens, K)
    mechanism = kind(H, K, 2)
    with pytest.raises(ValueError, match=r"one sequence, but got keys of another sequence\. Use Softmax") as error:
        call(mechanism, q, k, k, k_pos=torch.arange(tokens).expand(B, -1), own=False)
    assert str(error.value).startswith(type(mechanism).__name__)
    with pytest.raises(ValueError, match=r"one sequence, but got keys of another sequence\. Use Softmax"):
        started(mechanism, cross=True)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("pattern", [Causal(), Full(), Causal() & Band(9)], ids=str)
@pytest.mark.parametrize("queries", [1, 7, 40])
def test_sorted_by_cluster_is_the_same_read(queries, pattern, groups):
    """Keys in any order, some of them padding; queries of some of the tokens."""
    mechanism = Routing(H, K, 5, pattern=pattern)
    k_pos = torch.stack([torch.randperm(40) for _ in range(B)])
    k_pos[0, :8] = -1
    q_pos = torch.stack([pos[torch.randperm(40)[:queries]] for pos in k_pos])
    leaves = torch.randn(B, H, queries, K), torch.randn(B, groups, 40, K), torch.randn(B, groups, 40, K)
    for x in leaves:
        x.requires_grad_()
    queries_ready, keys, ctx = bundles(*leaves, q_pos, k_pos=k_pos)
    queries_ready, keys = mechanism.preprocess(queries_ready, keys, ctx)
    request, _ = mechanism.make_request(queries_ready, keys._replace(tags=mechanism.tags(keys)), None, ctx)
    dense, sorted_read = read(request), read_sorted(request, sort_rounds(request, 5))
    weight, is_read = torch.randn(dense.y.shape), dense.lse > -math.inf
    assert torch.allclose(sorted_read.y, dense.y, atol=1e-12) and torch.allclose(sorted_read.lse, dense.lse, atol=1e-12)
    gradients = [
        torch.autograd.grad((r.y * weight).sum() + r.lse[is_read].sum(), leaves, retain_graph=True)
        for r in (dense, sorted_read)
    ]
    assert all(torch.allclose(mine, other, atol=1e-11) for mine, other in zip(*gradients, strict=True))


def test_long_rows_cost_their_clusters(monkeypatch):
    mechanism, requests, length = Routing(1, K, 16), [], 1024
    home = "kinformer.nn.mechanisms.sorted_groups"
    monkeypatch.setattr(f"{home}.read", lambda request: requests.append(request) or read(request))
    call(mechanism, *(torch.randn(1, 1, length, K) for _ in range(3)))
    assert sum(request.pairs for request in requests) < length**2 / 4


@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_finds_the_clusters_of_kept_keys_and_reports_of_its_own_token(groups):
    mechanism, (q, k, v) = Routing(H, K, C).train(), inputs(groups)
    whole, state, pos = call(mechanism, q, k, v), started(mechanism, groups), torch.arange(T).expand(B, -1)
    steps = []
    for t in range(T):
        steps.append(call(mechanism, *(x[:, :, t : t + 1] for x in (q, k, v)), pos[:, t : t + 1], state))
        state = steps[-1].state
        assert state.tags["cluster"].shape == (B, groups, T, H // groups)
    for name in ("y", "lse"):
        tags = torch.cat([getattr(step.y, name) for step in steps], 2)
        torch.testing.assert_close(tags, getattr(whole.y, name), rtol=0, atol=1e-12)
    commitment = torch.cat([step.aux["commitment"] for step in steps], 1)
    torch.testing.assert_close(commitment, whole.aux["commitment"], rtol=0, atol=1e-12)
    sums = sum(step.stats["clusters"] for step in steps)
    torch.testing.assert_close(sums, whole.stats["clusters"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [Routing, lambda *a: PublishedRouting(*a, 3)], ids=["strict", "published"])
def test_a_layer_computed_again_finds_the_forwards_clusters(kind):
    mechanism, (q, k, v), choices = kind(H, K, C), inputs(), Choices()
    with choices.record():
        first = call(mechanism, q, k, v).y.y
    mechanism.centroids.mu.copy_(mechanism.centroids.mu.flip(-1))
    with choices.replay():
        recomputed = call(mechanism, q, k, v).y.y
    assert torch.equal(first, recomputed) and not torch.allclose(first, call(mechanism, q, k, v).y.y)


@pytest.mark.parametrize("kind", [Routing, lambda *a: PublishedRouting(*a, 3)], ids=["strict", "published"])
def test_the_commitment_trains_what_lies_beneath(kind):
    layer = Attention(SharedQK(8, H), kind(H, K, C)).train()
    assert layer.mechanism.penalties() == {"commitment": Penalty(trains=(), reaches_x=True)}
    x = torch.randn(B, T, 8, requires_grad=True)
    layer(x).aux["commitment"].mean().backward()
    assert x.grad.abs().sum() > 0
    changed = {name for name, weight in layer.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert changed == {"projection.qk.weight", "projection.qk.bias"}


def test_clusters_are_as_precise_under_autocast():
    centroids, x = Routing(2, 64, 64).centroids.float(), torch.randn(4, 2, 300, 64).float()
    alone = centroids.assign_clusters(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(centroids.assign_clusters(x), alone)


@pytest.mark.parametrize(
    "mechanism", [Routing(4, 8, 3), PublishedRouting(4, 8, 3, 4)], ids=lambda mechanism: type(mechanism).__name__
)
def test_a_layer_of_fewer_heads_is_refused_when_it_is_built(mechanism):
    with pytest.raises(
        ValueError, match=r"was made for 4 heads of width 8, but got 2 of width 8\. Create it with heads=2"
    ):
        Attention(SharedQK(16, 2), mechanism)
