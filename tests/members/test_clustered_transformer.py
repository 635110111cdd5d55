"""The Clustered Transformer's keywords reach its parts, bert's weights fit it, and what it cannot do is refused."""

from typing import Any

import pytest
import torch

from kinformer.core.mechanism import NoState
from kinformer.lab.train.training_stages import carry_weights
from kinformer.members.bert import bert
from kinformer.members.clustered_transformer import clustered_transformer
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.clustered_improved import ImprovedClustered
from kinformer.nn.mechanisms.hamming_kmeans import HammingKMeans

SMALL: dict[str, Any] = {"d": 8, "heads": 2, "depth": 2, "vocab": 11, "length": 12}


def clustered(model: torch.nn.Module) -> list[Clustered]:
    return [part for part in model.modules() if isinstance(part, Clustered)]


def test_keywords_reach_the_parts() -> None:
    keywords = {"clusters": 3, "bits": 7, "iterations": 4, "hash_bias": True, "redraw": 5, "head_dim": 6}
    first, second = clustered(clustered_transformer(topk=2, dropout=0.1, **SMALL, **keywords))
    assert isinstance(first, ImprovedClustered) and (first.topk, first.dropout) == (2, 0.1)
    grouping, other = first.grouping, second.grouping
    assert isinstance(grouping, HammingKMeans) and isinstance(other, HammingKMeans) and grouping.seed != other.seed
    assert (grouping.k_dim, grouping.clusters, grouping.bits, grouping.iterations, grouping.bias, grouping.redraw) == (
        6,
        3,
        7,
        4,
        True,
        5,
    )
    assert all(type(mechanism) is Clustered for mechanism in clustered(clustered_transformer(form="plain", **SMALL)))


@pytest.mark.parametrize("form", ["plain", "improved"])
def test_with_a_trained_berts_weights_and_enough_clusters_it_is_bert(form: Any, float64: None) -> None:
    """Hashes of many bits tell all queries of a short row apart."""
    trained = bert(**SMALL, init="library").eval()  # it draws all weights again
    for weight in trained.parameters():
        torch.nn.init.normal_(weight)
    model = clustered_transformer(form=form, clusters=12, bits=500, **SMALL).eval()
    carry_weights(trained, model)
    tokens = torch.randperm(11)[None]
    torch.testing.assert_close(model.logits(tokens).y, trained.logits(tokens).y)
    few = clustered_transformer(form=form, clusters=2, **({"topk": 1} if form == "improved" else {}), **SMALL).eval()
    carry_weights(trained, few)
    assert not torch.allclose(few.logits(tokens).y, trained.logits(tokens).y)


def test_refusals() -> None:
    with pytest.raises(NoState, match="use "):
        clustered_transformer(**SMALL).start(1, 4)
    with pytest.raises(ValueError, match="topk=3 has no effect with form=plain"):
        clustered_transformer(form="plain", topk=3, **SMALL)
    for wrong in ({"form": "both"}, {"position": "rotary"}):
        with pytest.raises(TypeError, match="got '(both|rotary)'"):
            clustered_transformer(**SMALL, **wrong)
