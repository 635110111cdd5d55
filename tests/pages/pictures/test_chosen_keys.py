"""Pictures of pairs that are chosen by content: best keys, queries that read, retrieved keys."""

import pytest
import torch

from kinformer.core.pattern_parser import parse
from kinformer.members.informer import TINY, informer
from kinformer.members.topk_transformer import topk_transformer
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.pages.pictures.chosen_keys import best_keys, reading_queries, retrieved_keys
from kinformer.pages.pictures.who_reads import pictures as patterns


@pytest.mark.parametrize("ties", ["all", "latest"])
def test_each_query_reads_its_best(ties: str) -> None:
    (picture,) = best_keys(topk_transformer(d=16, depth=2, heads=2, k=3, ties=ties, length=12, vocab=5), 12)
    kind = picture.panels[0].kind
    assert torch.equal(kind > 0, torch.ones(12, 12).tril().bool())
    read = (kind == 1).sum(1)
    assert (read >= (torch.arange(12) + 1).clamp_max(3)).all() and not list(best_keys(torch.nn.Linear(2, 2), None))
    assert ties == "all" or torch.equal(read, (torch.arange(12) + 1).clamp_max(3))


def test_what_is_found_among_far_keys_is_what_has_weight() -> None:
    torch.manual_seed(0)
    (picture,) = retrieved_keys(Retrieval(2, 3, 6, 2, cache=1, apart=True), 15)
    kind = picture.panels[0].kind
    near, may = (parse(text).matrix(15) for text in ("Causal() & Segment(3, 1)", "Causal() & Segment(3, 7)"))
    assert torch.equal(kind == 1, near) and torch.equal(kind > 0, may)
    assert (kind == 2).sum(1).tolist() == (may & ~near).sum(1).clamp(max=2).tolist()


def test_few_queries_read_and_the_others_get_a_mean() -> None:
    (picture,) = reading_queries(ProbSparse(causal=True, factor=2), 12)
    kind = picture.panels[0].kind
    assert torch.equal(kind > 0, torch.ones(12, 12).tril().bool())
    assert int((kind[:, 0] == 1).sum()) == 6 and bool(((kind == 0) | (kind == kind[:, :1])).all())
    (picture,) = reading_queries(informer(**TINY, depth=1), 16)
    assert int((picture.panels[0].kind[:, 0] == 1).sum()) == 3
    assert not [x for x in patterns(informer(**TINY), 8) if "Full" in x.caption] and not list(reading_queries(3, 8))
