"""PublishedRouting: algorithm 1 of the paper by a loop, faults that it notices, clusters without a key, decoding."""

import math

import pytest
import torch

from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms import routing_published
from kinformer.nn.mechanisms.centroids import Centroids
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.routing_published import PublishedRouting, RoutedTokens
from kinformer.nn.projections.shared_qk import SharedQK
from tests.nn.mechanisms.test_routing import PADDED, B, C, H, K, T, call, inputs, normed, similar, softmax_of, started

pytestmark = pytest.mark.usefixtures("float64")


def check(pattern, window, *, norm="layer", null=False, eps=0.0, alone="skipped"):
    """For each centroid the top w queries read the top w keys; a query gets the mean over clusters that took it, those
    in which it found no key skipped or counted as 0."""
    mechanism = PublishedRouting(H, K, C, window, pattern=pattern, norm=norm, null=null, eps=eps, alone=alone)
    q, k, v = inputs()
    y, unread = call(mechanism, q, k, v, PADDED).y.y, 0
    prepared = normed if norm == "layer" else lambda x: x
    for b, h in ((b, h) for b in range(B) for h in range(H)):
        real = [i for i in range(T) if PADDED[b, i] >= 0]
        queries, keys = {i: prepared(q[b, h, i]) for i in real}, {i: prepared(k[b, h, i]) for i in real}
        reads = {i: [] for i in real}
        for c in range(C):
            top = [
                sorted(real, key=lambda i, x=x, c=c: -similar(mechanism, h, x[i])[c])[:window] for x in (queries, keys)
            ]
            for i in top[0]:
                at = PADDED[b]
                scores = [(j, queries[i] @ keys[j] / math.sqrt(K)) for j in top[1] if bool(pattern(b, h, at[i], at[j]))]
                values = v[b, h]
                if null:
                    scores.append((T, queries[i] @ mechanism.null_k[h, c] / math.sqrt(K)))
                    values = torch.cat([values, mechanism.null_v[h, c][None]])
                if scores or alone == "zero":
                    reads[i].append(softmax_of(scores, values))
        for i, outputs in reads.items():
            unread += not outputs
            expected = sum(outputs) / (len(outputs) + eps) if outputs else torch.zeros(K)
            torch.testing.assert_close(y[b, h, i], expected, rtol=0, atol=1e-12)
    return unread


@pytest.mark.parametrize(
    ("norm", "null", "eps", "alone"),
    [("layer", False, 0.0, "skipped"), ("layer", False, 0.01, "zero"), ("none", True, 1e-5, "skipped")],
)
@pytest.mark.parametrize("pattern", [Causal(), Full()], ids=str)
@pytest.mark.parametrize("window", [1, 4, 40])
def test_the_published_form_is_algorithm_1(pattern, window, norm, null, eps, alone):
    assert check(pattern, window, norm=norm, null=null, eps=eps, alone=alone) > 0 or window > 1


@pytest.mark.parametrize("fault", ["divisor", "window", "likeness"])
def test_a_fault_is_noticed(fault, monkeypatch):
    """One cluster too many in the mean; a window of one token less; the tokens that are least like a centroid."""
    if fault == "divisor":
        mean = RoutedTokens.mean
        monkeypatch.setattr(RoutedTokens, "mean", lambda self, *arguments: mean(self, *arguments[:-1], 1.0))
    if fault == "window":
        chosen = routing_published.is_among_largest
        monkeypatch.setattr(routing_published, "is_among_largest", lambda x, count, near: chosen(x, count - 1, near))
    if fault == "likeness":
        similar_to = Centroids.similarities
        monkeypatch.setattr(Centroids, "similarities", lambda self, x: -similar_to(self, x))
    with pytest.raises(AssertionError):
        check(Full(), 4)


def test_what_a_cluster_without_an_earlier_key_counts_for():
    """Two clusters took the last query; in one of them it finds a key."""
    q = torch.tensor([[1.0, 1.0], [1.0, 1.0]])[None, None]
    k = torch.tensor([[1.0, 0.0], [0.0, 1.0]])[None, None]
    v = torch.tensor([[2.0, 4.0], [6.0, 8.0]])[None, None]
    last = {}
    for alone in ("skipped", "zero"):
        mechanism = PublishedRouting(1, 2, 2, 1, norm="none", alone=alone)
        mechanism.centroids.mu.copy_(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
        last[alone] = call(mechanism, q, k, v).y.y[0, 0, 0]
    assert torch.equal(last["skipped"], v[0, 0, 0]) and torch.equal(last["zero"], v[0, 0, 0] / 2)


def test_with_keys_that_are_their_queries_no_causal_cluster_is_without_a_key():
    """The paper's causal form: K = Q, so every query that a centroid took finds itself there."""
    layer, x = Attention(SharedQK(16, 2, unit=False), PublishedRouting(2, 8, 4, 3)), torch.randn(2, 9, 16)
    queries, keys = layer.projection.queries_and_keys(x, torch.arange(9).expand(2, -1))
    assert torch.equal(queries.q, keys.k)
    zero = PublishedRouting(2, 8, 4, 3, alone="zero")
    first = call(layer.mechanism, queries.q, keys.k, keys.v).y.y
    assert torch.equal(first, call(zero, queries.q, keys.k, keys.v).y.y) and bool((first != 0).any())


@pytest.mark.parametrize("groups", [1, 2])
def test_the_published_form_decodes_as_if_nothing_came_after(groups):
    """A step's query competes with all queries so far for a place in a cluster, as in a call that ends there."""
    mechanism, (q, k, v) = PublishedRouting(H, K, C, 3), inputs(groups)
    empty = 0
    for size in (1, 2):
        state, pos = started(mechanism, groups), torch.arange(T).expand(B, -1)
        for t in range(0, T - 1, size):
            out = call(mechanism, *(x[:, :, t : t + size] for x in (q, k, v)), pos[:, t : t + size], state)
            state = out.state
            whole = call(mechanism, *(x[:, :, : t + size] for x in (q, k, v))).y.y
            torch.testing.assert_close(out.y.y[:, :, -1], whole[:, :, -1], rtol=0, atol=1e-12)
            empty += int((whole[:, :, -1] == 0).all(-1).sum())
    assert empty > 0


def test_a_later_token_pushes_an_earlier_one_out_of_the_published_form_alone():
    x = torch.tensor([[1.0, 0.3], [1.0, 0.2], [1.0, 0.0]])[None, None]
    mechanism = PublishedRouting(1, 2, 1, 2, norm="none")
    mechanism.centroids.mu.copy_(torch.tensor([[[1.0, 0.0]]]))
    assert call(mechanism, x[:, :, :2], x[:, :, :2], x[:, :, :2]).y.y[0, 0, 0].any()
    assert not call(mechanism, x, x, x).y.y[0, 0, 0].any()
    strict = Routing(1, 2, 1, norm="none")
    assert torch.equal(call(strict, x, x, x).y.y[:, :, :2], call(strict, *(x[:, :, :2],) * 3).y.y)


def test_a_null_of_another_width_than_values_is_refused_when_the_layer_is_built():
    with pytest.raises(
        ValueError, match=r"has width 5, but the values of the layer have width 8\. Create it with v_dim=8"
    ):
        Attention(SharedQK(16, 2), PublishedRouting(2, 8, 3, 4, v_dim=5, null=True))
    Attention(SharedQK(16, 2), PublishedRouting(2, 8, 3, 4, null=True))
