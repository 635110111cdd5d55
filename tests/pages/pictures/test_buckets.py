"""The picture of buckets and clusters of keys, in order of position and sorted."""

import pytest
import torch

from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.lsh import LSH
from kinformer.nn.mechanisms.lsh_published import PublishedLSH
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.routing_published import PublishedRouting
from kinformer.nn.projections.shared_qk import SharedQK
from kinformer.pages.pictures import buckets
from kinformer.pages.pictures.support.attention_calls import calls, clustered_tokens, read_weights
from kinformer.pages.pictures.support.picture_panels import CELLS


@pytest.mark.parametrize("make", [lambda: LSH(2, 8, 4, 2), lambda: Routing(2, 8, 3, seed=2)])
def test_buckets_are_those_that_the_keys_are_in_and_sorted_they_are_blocks(make) -> None:
    mechanism = make()
    torch.manual_seed(0)
    layer = Attention(SharedQK(16, 2), mechanism)
    (call,) = calls(layer, clustered_tokens(12, 16))
    number = next(iter(buckets.tags_of(call).values()))
    torch.manual_seed(0)
    first, *later = next(buckets.pictures(mechanism, 12)).panels
    same = (number[:, None] == number).any(-1)
    alone = torch.eye(12, dtype=torch.bool) if isinstance(mechanism, LSH) else torch.zeros(12, 12, dtype=torch.bool)
    expected = same.tril(-1) if isinstance(mechanism, LSH) else same.tril()
    read = first.kind > 0
    assert torch.equal(read & ~alone, expected & ~alone)
    for n, panel in enumerate(later):
        order = torch.tensor([int(name) for name in panel.rows])
        assert number[order, n].tolist() == sorted(number[:, n].tolist())
        assert torch.equal(panel.kind > 0, read[order][:, order])
        assert bool((panel.kind[panel.level == 1] == (number[order, n] + 1).expand(12, 12)[panel.level == 1]).all())


def test_what_else_is_kept_with_keys_is_no_group() -> None:
    """Published routing caches how much each centroid likes a token: drawn as groups they were 2**40 kinds."""
    for mechanism, name in ((PublishedRouting(2, 8, 3, 4), "cluster"), (PublishedLSH(2, 8, 4, 3), "bucket")):
        (call,) = calls(Attention(SharedQK(16, 2), mechanism), clustered_tokens(12, 16))
        assert list(buckets.tags_of(call)) == [name]


@pytest.mark.parametrize("make", [lambda: LSH(2, 8, 4, 2), lambda: Routing(2, 8, 3, seed=2)])
def test_buckets_of_many_positions_are_shares_of_cells(make) -> None:
    torch.manual_seed(0)
    x = next(buckets.pictures(make(), CELLS)).panels
    torch.manual_seed(0)
    picture = next(buckets.pictures(make(), 10 * CELLS))
    assert "a cell is 10 by 10" in picture.note and len(picture.panels) == len(x)
    torch.manual_seed(0)
    layer = Attention(SharedQK(16, 2), make())
    (call,) = calls(layer, clustered_tokens(10 * CELLS, 16))
    read, number = read_weights(call)[0].abs() > buckets.TINY, next(iter(buckets.tags_of(call).values()))
    for n, panel in enumerate(picture.panels[1:]):
        order = number[:, n].argsort(stable=True)
        own, same = read[order][:, order], number[order, n][:, None] == number[order, n]
        shares = torch.where(same, own, own / 3).view(CELLS, 10, CELLS, 10).mean((1, 3))
        torch.testing.assert_close(panel.level, shares)
        assert panel.rows == panel.columns == tuple(str(k) for k in order[::10].tolist())
