"""Clustered attention, plain and improved: loops from the equations, the k-means by hand, the theorem, what is held."""

import math
from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.attend import attend
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.choice import Choices
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.document import Document
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.clustered_improved import ImprovedClustered
from kinformer.nn.mechanisms.hamming_kmeans import Grouping, HammingKMeans
from kinformer.nn.mechanisms.query_clusters import QueryClusters
from kinformer.nn.projections.qkv import QKV
from tests.given_clusters import Given

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K, V = 3, 2, 11, 4, 5
PADDED = torch.tensor([[-1, -1, 0, 1, 2, 3, 4, 5, 6, -1, -1], list(range(T)), [-1] * T])
FORMS: dict[str, Callable[[Grouping], Clustered]] = {"plain": Clustered, "improved": lambda g: ImprovedClustered(g, 3)}
SMALL_TILES = {"one key": lambda g: ImprovedClustered(g, 1)}


def bundles(groups: int = H, length: int = T, pos: Tensor = PADDED) -> tuple[Queries, Keys, Context]:
    """Keys of the same row, or of a source whose last row is padding."""
    ctx = Context(pos, run=True)
    k_pos = ctx.by_head if length == T else torch.where(torch.arange(B)[:, None, None] < 2, torch.arange(length), -1)
    keys = Keys(torch.randn(B, groups, length, K), torch.randn(B, groups, length, V), k_pos, own=length == T)
    return Queries(torch.randn(B, H, T, K), ctx.by_head), keys, ctx


def lloyd(kmeans: HammingKMeans, q: Float[Tensor, "n K"]) -> list[int]:
    """The clusters of the real queries of a row and head, in order of their positions."""
    normals, offsets = kmeans.planes[:, :-1].tolist(), kmeans.planes[:, -1].tolist()
    bits = [
        [
            int(sum(float(a) * b for a, b in zip(x, normal, strict=True)) + offset > 0)
            for normal, offset in zip(normals, offsets, strict=True)
        ]
        for x in q
    ]
    centres = [bits[j * len(bits) // kmeans.clusters] for j in range(kmeans.clusters)]
    for turn in range(kmeans.iterations):
        cluster = []
        for bits_row in bits:
            apart = [sum(a != b for a, b in zip(bits_row, centre, strict=True)) for centre in centres]
            cluster.append(apart.index(min(apart)))
        if turn == kmeans.iterations - 1:
            break
        for j in range(kmeans.clusters):
            mine = [bits_row for bits_row, c in zip(bits, cluster, strict=True) if c == j]
            if mine:
                centres[j] = [int(2 * sum(votes) > len(mine)) for votes in zip(*mine, strict=True)]
    return cluster


def by_hand(q: Tensor, k: Tensor, v: Tensor, cluster: list[int], topk: int | None, scale: float) -> list[Tensor]:
    """What the queries of one row and head read, those of padding left out before."""
    outputs = []
    for i, j in enumerate(cluster):
        mine = [n for n, c in enumerate(cluster) if c == j]
        centre = sum(q[n] for n in mine) / len(mine)
        a = torch.stack([centre @ key * scale for key in k]).softmax(0)
        if topk is None:
            outputs.append(sum(a[n] * v[n] for n in range(len(k))))
            continue
        best = a.argsort(descending=True)[:topk].tolist()
        m = sum(a[n] for n in best)
        total = sum(math.exp(q[i] @ k[n] * scale) for n in best)
        exact = {n: m * math.exp(q[i] @ k[n] * scale) / total for n in best}
        outputs.append(sum(exact.get(n, a[n]) * v[n] for n in range(len(k))))
    return outputs


@pytest.mark.parametrize("clusters", [2, 9])
@pytest.mark.parametrize("length", [T, 6])
@pytest.mark.parametrize("groups", [H, 1])
@pytest.mark.parametrize("form", [*FORMS, *SMALL_TILES])
@torch.no_grad()
def test_every_query_reads_with_the_mean_of_its_cluster(form: str, groups: int, length: int, clusters: int) -> None:
    """Nine clusters of seven real queries: some are empty. Two clusters and one key: a cluster is cut into tiles."""
    kmeans = HammingKMeans(K, clusters, bits=5, iterations=3, bias=True)
    mechanism = {**FORMS, **SMALL_TILES}[form](kmeans)
    queries, keys, ctx = bundles(groups, length)
    output = mechanism(queries, keys, None, ctx).y
    chosen = kmeans(queries.q, queries.pos)
    for b, h in ((b, h) for b in range(B) for h in range(H)):
        at, is_real_key, g = PADDED[b] >= 0, keys.pos[b, 0] >= 0, h * groups // H
        q, k, v = queries.q[b, h, at], keys.k[b, g, is_real_key], keys.v[b, g, is_real_key]
        if len(q):
            cluster = lloyd(kmeans, q)
            assert chosen[b, h, at].tolist() == cluster
            want = by_hand(q, k, v, cluster, getattr(mechanism, "topk", None), K**-0.5)
            torch.testing.assert_close(output.y[b, h, at], torch.stack(want))
        assert not output.y[b, h, ~at].any() and bool((output.lse[b, h, ~at] == -torch.inf).all())


def test_like_queries_share_a_cluster_and_unlike_ones_do_not() -> None:
    kinds = 4 * torch.randn(4, 16)
    kind = torch.randint(4, (1, 1, 60))
    kind[..., :4] = torch.arange(4)
    # evenly over the row each kind is among the first centroids
    kind[..., ::15] = torch.arange(4)
    q = kinds[kind] + 0.05 * torch.randn(1, 1, 60, 16)
    clusters = HammingKMeans(16, 4)(q, torch.arange(60)[None, None])
    assert torch.equal(clusters, kind)


def test_projections_are_drawn_by_seed_and_anew_where_asked() -> None:
    kmeans, other = HammingKMeans(K, redraw=2), HammingKMeans(K, seed=1)
    assert torch.equal(kmeans.planes, HammingKMeans(K).planes) and not torch.equal(kmeans.planes, other.planes)
    assert not kmeans.planes[:, -1].any() and bool(HammingKMeans(K, bias=True).planes[:, -1].all())
    before = kmeans.planes.clone()
    kmeans.after_step(0.0, {})
    assert torch.equal(kmeans.planes, before)
    kmeans.after_step(0.0, {})
    assert not torch.equal(kmeans.planes, before)
    with pytest.raises(ValueError, match=r"width 4, but got 8\. Create it with k_dim=8"):
        Attention(QKV(16, 2), Clustered(kmeans))


def rows(mechanism: Clustered, q: Tensor, k: Tensor) -> Float[Tensor, "B H T S"]:
    """The attention matrix: every value is a vector of its own."""
    pos = torch.arange(q.shape[2]).expand(len(q), -1)
    eye = torch.eye(k.shape[2]).expand(*k.shape[:2], -1, -1)
    ctx = Context(pos, run=True, full=True)
    return mechanism(Queries(q, ctx.by_head), Keys(k, eye, ctx.by_head), None, ctx).y.y


@pytest.mark.parametrize("topk", [1, 4, 13])
@pytest.mark.parametrize("sharp", [1.0, 6.0])
def test_no_row_of_the_improved_form_is_further_from_dense_attention(topk: int, sharp: float) -> None:
    """The paper's theorem, of whichever clusters."""
    q, k, cluster = sharp * torch.randn(2, 2, 13, K), torch.randn(2, 2, 13, K), torch.randint(4, (2, 2, 13))
    exact = (q @ k.mT / K**0.5).softmax(-1)
    grouping = Given(cluster, 4)
    plain, improved = rows(Clustered(grouping), q, k), rows(ImprovedClustered(grouping, topk), q, k)
    torch.testing.assert_close(improved.sum(-1), torch.ones(2, 2, 13))
    far, near = ((output - exact).abs().sum(-1) for output in (plain, improved))
    assert bool((near <= far + 1e-12).all()) and bool((near < far).any())
    if topk == 13:
        torch.testing.assert_close(improved, exact)


def test_with_a_cluster_for_each_query_it_is_dense_attention() -> None:
    q, k = torch.randn(2, 2, 9, K), torch.randn(2, 2, 9, K)
    alone = Given(torch.arange(9).flip(0).expand(2, 2, -1), 9)
    for mechanism in (Clustered(alone), ImprovedClustered(alone, 2)):
        torch.testing.assert_close(rows(mechanism, q, k), (q @ k.mT / K**0.5).softmax(-1))


@pytest.mark.parametrize("parts", [1, 3])
def test_tiles_hold_every_query_once_however_uneven_clusters_are(parts: int) -> None:
    for cluster in (torch.zeros(1, 1, 10).long(), torch.tensor([[[0, 4, 4, 4, 1, 4, 4, 4, 4, 2]]])):
        of = QueryClusters.from_clusters(cluster, torch.arange(10)[None, None] < 9, 5)
        tiles = of.tiles(parts)
        count, size = 5 * (parts + 1), -(-10 // (5 * parts))
        assert tiles.column.shape == (1, 1, count, size)
        real_columns = tiles.column[tiles.column >= 0]
        assert sorted(real_columns.tolist()) == list(range(9))
        for n, columns in enumerate(tiles.column[0, 0].tolist()):
            assert {int(cluster[0, 0, c]) for c in columns if c >= 0} <= {int(tiles.cluster[0, 0, n])}
        values = torch.randn(1, 1, 10, 1)
        index = tiles.column.clamp_min(0).flatten(2)[..., None]
        spread = tiles.spread(values.take_along_dim(index, 2).unflatten(2, (count, size)))
        assert torch.equal(spread[:, :, :9], values[:, :, :9]) and not spread[:, :, 9].any()


@pytest.mark.parametrize("form", FORMS)
def test_nothing_as_large_as_all_pairs_is_made_or_kept(form: str) -> None:
    """Twice the length, twice the largest tensor, forward and backward."""

    def largest(length: int) -> int:
        mechanism = FORMS[form](HammingKMeans(K, 4, bits=6, iterations=2))
        q, k, v = (torch.randn(1, 1, length, K, requires_grad=True) for _ in range(3))
        ctx = Context(torch.arange(length)[None], run=True)
        with torch.profiler.profile(record_shapes=True) as profile:
            mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y.sum().backward()
        shapes = (shape for event in profile.events() for shape in event.input_shapes if shape)
        return max(math.prod(shape) for shape in shapes if all(isinstance(n, int) for n in shape))

    assert largest(256) <= 2 * largest(128) < 128**2


@pytest.mark.parametrize("form", FORMS)
def test_choices_are_those_of_the_forward_where_it_is_computed_again(form: str) -> None:
    mechanism = FORMS[form](HammingKMeans(K, 3, bits=9))
    queries, keys, ctx = bundles()
    choices = Choices()
    with choices.record():
        want = mechanism(queries, keys, None, ctx).y
    mechanism.grouping.planes.neg_()
    mechanism.grouping.planes[::2] = 1.0
    other = mechanism(queries, keys, None, ctx).y
    with choices.replay():
        recomputed = mechanism(queries, keys, None, ctx).y
    assert not torch.allclose(other.y, want.y) and torch.equal(recomputed.y, want.y)


def test_improved_drops_weights_of_both_reads() -> None:
    """Near keys, far ones, and both: a weight is 0 or doubled."""
    for topk in (1, T):
        mechanism = ImprovedClustered(HammingKMeans(K, 2), topk, dropout=0.5)
        queries, keys, ctx = bundles()
        eye = torch.eye(T).expand(B, H, -1, -1)
        dropped = mechanism(queries, keys._replace(v=eye), None, ctx).y.y[1]
        still = mechanism.eval()(queries, keys._replace(v=eye), None, ctx).y.y[1]
        assert bool((still > 0).all()) and 0 < float((dropped == 0).double().mean()) < 1
        is_kept = dropped != 0
        torch.testing.assert_close(dropped[is_kept], 2 * still[is_kept])


def test_refusals() -> None:
    layer = Attention(QKV(8, 2), Clustered(HammingKMeans(4, 2)))
    pos = torch.arange(4)[None]
    with pytest.raises(ValueError, match=r"ctx\.only"):
        layer(torch.randn(1, 4, 8), None, Context(pos, run=True, only=Document(pos)))
    with pytest.raises(NoState, match="Use "):
        layer.start(1, 4)
    across = Attention(QKV(8, 2), ImprovedClustered(HammingKMeans(4, 2)), cross=True)
    with pytest.raises(ValueError, match="does not cache a source"):
        across(torch.randn(1, 4, 8), None, Context(pos, run=True))
    with pytest.raises(ValueError, match="topk=0"):
        ImprovedClustered(HammingKMeans(4), 0)
    with pytest.raises(ValueError, match="iterations=0"):
        HammingKMeans(4, iterations=0)


def test_dense_where_all_queries_are_one() -> None:
    """One cluster reads with the mean of all queries, whatever they are."""
    queries, keys, ctx = bundles(pos=torch.arange(T).expand(B, -1))
    output: AttentionOutput = Clustered(HammingKMeans(K, 1))(queries, keys, None, ctx).y
    want = attend(queries.q.mean(2, keepdim=True), keys.k, keys.v)
    torch.testing.assert_close(output.y, want.y.expand_as(output.y))
    assert output.lse is not None and want.lse is not None
    torch.testing.assert_close(output.lse, want.lse.expand_as(output.lse))
