"""The picture of top-k attention: k keys a query, of those that the pattern allows."""

import pytest
import torch

from kinformer.members.topk_transformer import topk_transformer
from kinformer.pages.pictures.best import pictures


@pytest.mark.parametrize("ties", ["all", "latest"])
def test_each_query_reads_its_best(ties: str) -> None:
    (picture,) = pictures(topk_transformer(d=16, depth=2, heads=2, k=3, ties=ties, length=12, vocab=5), 12)
    kind = picture.panels[0].kind
    assert torch.equal(kind > 0, torch.ones(12, 12).tril().bool())
    read = (kind == 1).sum(1)
    assert (read >= (torch.arange(12) + 1).clamp_max(3)).all() and not list(pictures(torch.nn.Linear(2, 2), None))
    assert ties == "all" or torch.equal(read, (torch.arange(12) + 1).clamp_max(3))
