"""ImprovedClustered: exact weights for the best keys of a cluster, by a loop; a merge without the share of these."""

import pytest
import torch

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.nn.mechanisms import clustered_improved
from kinformer.nn.mechanisms.hamming_kmeans import HammingKMeans
from tests.given_clusters import Given
from tests.nn.mechanisms.heads import POS, close, random_heads, real_tokens, run

pytestmark = pytest.mark.usefixtures("float64")

CLUSTERS = 3


def check(topk: int, groups: int = 2) -> None:
    """y_i = m_j sum over l in T_j of softmax_T(q_i.k_l / sqrt(K)) v_l + sum over l not in T_j of A^c_jl v_l, j = c(i).

    A^c_j = softmax of the scores of the mean query of cluster j, T_j its topk keys, m_j the weight that they have.
    """
    heads = random_heads(heads=2, groups=groups)
    cluster = torch.randint(CLUSTERS, (2, 2, POS.shape[1]))
    y = run(kf.ImprovedClustered(Given(cluster, CLUSTERS), topk), heads).y.y
    for b, h in ((b, h) for b in range(2) for h in range(2)):
        g, tokens = h * groups // 2, real_tokens(b)
        k, v = heads.k[b, g, tokens], heads.v[b, g, tokens]
        for i in tokens:
            members = [n for n in tokens if cluster[b, h, n] == cluster[b, h, i]]
            mean = torch.stack([heads.q[b, h, n] for n in members]).sum(0) / len(members)
            of_mean, scores = (k @ mean / 2).exp(), (k @ heads.q[b, h, i] / 2).exp()
            a = of_mean / of_mean.sum()
            best = sorted(range(len(tokens)), key=lambda n, a=a: -a[n])[:topk]
            share, total = sum(a[n] for n in best), sum(scores[n] for n in best)
            weights = [share * scores[n] / total if n in best else a[n] for n in range(len(tokens))]
            close(y[b, h, i], sum(weight * value for weight, value in zip(weights, v, strict=True)))


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_best_keys_of_a_cluster_are_weighed_by_each_query(topk: int, groups: int) -> None:
    check(topk, groups)


def test_a_merge_without_the_share_of_the_best_keys_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both reads count for one half."""
    monkeypatch.setattr(clustered_improved, "merge", lambda near, far: AttentionOutput((near.y + far.y) / 2, near.lse))
    with pytest.raises(AssertionError):
        check(3)


def test_with_all_keys_among_the_best_it_is_dense_attention() -> None:
    heads = random_heads()
    mechanism = kf.ImprovedClustered(HammingKMeans(4, 2, bits=5), POS.shape[1])
    real = (POS >= 0)[:, None, :, None].expand_as(heads.v)
    close(run(mechanism, heads).y.y[real], run(kf.Softmax(kf.Full()), heads).y.y[real])
