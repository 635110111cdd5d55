"""cut: some places of one dimension, all that travels together with it."""

import pytest
import torch

from kinformer.core.heads import Keys, LazyProjection, Queries, cut, number_of_groups

B, H, G, N = 2, 4, 2, 7


def queries() -> Queries:
    pos = torch.randint(0, 50, (B, 1, N))
    extras, tags = {"gate": torch.randn(B, H, N, 3)}, {"bucket": torch.randint(0, 9, (B, H, N, 2))}
    labels, unmade = {"segment": torch.randint(0, 3, (B, N))}, {"wide": not_made(H)}
    return Queries(torch.randn(B, H, N, 5), pos, extras, labels, 4, tags, unmade)


def keys(pos_heads: int = 1, own: bool = True) -> Keys:
    extras, tags = {"gate": torch.randn(B, G, N, 3)}, {"bucket": torch.randint(0, 9, (B, G, N, 2))}
    labels, pos = {"segment": torch.randint(0, 3, (B, N))}, torch.randint(0, 50, (B, pos_heads, N))
    return Keys(torch.randn(B, G, N, 5), torch.randn(B, 1, N, 6), pos, extras, labels, tags, own, {"wide": not_made(G)})


def not_made(heads: int) -> LazyProjection:
    return LazyProjection(torch.randn(B, N, 8), torch.randn(heads, 3, 8), torch.randn(heads, 3))


PLACES = {"slice": slice(2, 5), "chosen": torch.tensor([[6, 0, 0], [3, 2, 5]]), "none": torch.zeros(B, 0).long()}


def at_of(place: slice | torch.Tensor) -> list[list[int]]:
    return [list(range(2, 5))] * B if isinstance(place, slice) else place.tolist()


@pytest.mark.parametrize("place", PLACES)
def test_cut_takes_each_rows_places(place: str) -> None:
    x = torch.randn(B, 3, N, 4)
    pieces = cut(x, PLACES[place], 2)
    assert torch.equal(pieces, torch.stack([x[b][:, rows] for b, rows in enumerate(at_of(PLACES[place]))]))
    assert cut(x, None, 2) is x


@pytest.mark.parametrize("place", PLACES)
def test_queries_are_cut_with_all_that_goes_with_them(place: str) -> None:
    whole = queries()
    piece, at = whole.cut(PLACES[place]), at_of(PLACES[place])
    assert piece.head == whole.head
    for b in range(B):
        assert torch.equal(piece.q[b], whole.q[b][:, at[b]]) and torch.equal(piece.pos[b], whole.pos[b][:, at[b]])
        assert torch.equal(piece.extras["gate"][b], whole.extras["gate"][b][:, at[b]])
        assert torch.equal(piece.tags["bucket"][b], whole.tags["bucket"][b][:, at[b]])
        assert torch.equal(piece.labels["segment"][b], whole.labels["segment"][b][at[b]])
        products, few = whole.lazy["wide"].materialize(), piece.lazy["wide"].materialize()
        torch.testing.assert_close(few[b], products[b][:, at[b]])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("pos_heads", [1, H])
def test_keys_are_cut_with_all_that_goes_with_them(place: str, pos_heads: int) -> None:
    whole = keys(pos_heads, own=False)
    piece, at = whole.cut(PLACES[place]), at_of(PLACES[place])
    assert piece.own is False
    for b in range(B):
        for name in ("k", "v", "pos"):
            assert torch.equal(getattr(piece, name)[b], getattr(whole, name)[b][:, at[b]])
        assert torch.equal(piece.extras["gate"][b], whole.extras["gate"][b][:, at[b]])
        assert torch.equal(piece.tags["bucket"][b], whole.tags["bucket"][b][:, at[b]])
        assert torch.equal(piece.labels["segment"][b], whole.labels["segment"][b][at[b]])
        assert torch.equal(piece.lazy["wide"].x[b], whole.lazy["wide"].x[b][at[b]])


def test_products_with_numbers_that_are_not_made() -> None:
    """q.(W x + b) by x itself, and the mean of numbers by that of what they are made of."""
    unmade, q = not_made(G), torch.randn(B, H, 2, 3)
    scaled, constant = unmade.absorb_queries(q)
    products = unmade.materialize().repeat_interleave(H // G, 1)
    weights = torch.rand(B, H, 2, N).softmax(-1)
    torch.testing.assert_close(scaled @ unmade.x[:, None].mT + constant[..., None], q @ products.mT)
    torch.testing.assert_close(unmade.project_mean(weights @ unmade.x[:, None]), weights @ products)


def test_no_field_is_forgotten() -> None:
    """A field that is added must be cut too."""
    assert set(Queries._fields) == {"q", "pos", "extras", "labels", "head", "tags", "lazy"}
    assert set(Keys._fields) == {"k", "v", "pos", "extras", "labels", "tags", "own", "lazy"}


def test_detached_keys_learn_nothing() -> None:
    whole = keys()._replace(
        k=torch.randn(B, G, N, 5, requires_grad=True), v=torch.randn(B, 1, N, 6, requires_grad=True)
    )
    whole = whole._replace(extras={"gate": torch.randn(B, G, N, 3, requires_grad=True)})
    detached = whole.detach()
    assert not (detached.k.requires_grad or detached.v.requires_grad or detached.extras["gate"].requires_grad)
    assert torch.equal(detached.k, whole.k)


def test_heads_share_evenly_or_not_at_all() -> None:
    assert number_of_groups(8, 2) == 4
    for groups in (3, 0):
        with pytest.raises(ValueError, match=f"8 query heads cannot share {groups} value heads evenly"):
            number_of_groups(8, groups, "value heads")
