"""Request.piece cuts everything together, so what reads a piece gets the numbers of the whole."""

import pytest
import torch
from torch import Tensor

from kinformer.attend import read
from kinformer.core.attention_output import received_attention, weights
from kinformer.core.bias import Bias, ScoreFn
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.layer import PerPair, PerToken
from kinformer.core.memo import Memo
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask, scores
from kinformer.core.scores.product import Product
from kinformer.nn.patterns.band import Band

B, H, G, K = 2, 4, 2, 6


class Everything(Bias):
    """Adds what each thing that travels with a query or key, or came from below, says of the pair."""

    def bind(self, piece: Request) -> ScoreFn:
        queries, keys, below = piece.queries, piece.keys, piece.below
        asks, key_labels = queries.labels["segment"], keys.labels["segment"]
        gate, side = queries.extras["gate"][..., 0], keys.extras["side"][..., 0].repeat_interleave(H // G, 1)
        bucket = keys.tags["bucket"][..., 0].repeat_interleave(H // G, 1)
        own = queries.tags["bucket"][..., 0]
        sent, level = below["scores"].scores, below["level"].value

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            same = (asks[b, i] == key_labels[b, j]) * 0.7 + (own[b, h, i] == bucket[b, h, j]) * 0.4
            return s + same + gate[b, h, i] * side[b, h, j] + sent[b, h, i, j] + level[b, i]

        return score

    def query_extras(self, sizes: HeadSizes) -> dict:
        return {}


def request(length: int, pattern=None, dtype=torch.float64) -> Request:
    g = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    def whole(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=g)

    pos = torch.arange(length).expand(B, -1).clone()
    pos[0, :2] = -1
    pos = pos[:, None]
    labels = {"segment": whole(3, B, length)}
    queries = Queries(
        normal(B, H, length, K),
        pos,
        {"gate": normal(B, H, length, 1)},
        labels,
        0,
        {"bucket": whole(3, B, H, length, 1)},
    )
    tags = {"bucket": whole(3, B, G, length, 1)}
    keys = Keys(normal(B, G, length, K), normal(B, G, length, 3), pos, {"side": normal(B, G, length, 1)}, labels, tags)
    below = {"scores": PerPair(normal(B, H, length, length), pos, pos), "level": PerToken(normal(B, length))}
    return Request(queries, keys, pattern or Causal() & ~Band(0), Product(), Everything(), K**-0.5, below=below)


def pieces(length: int) -> list:
    shuffled = torch.stack([torch.randperm(length), torch.randperm(length)])
    return [slice(1, 4), slice(0, length), None, shuffled[:, :5], torch.zeros(B, 0).long()]


@pytest.mark.parametrize("rows", range(5))
@pytest.mark.parametrize("columns", range(5))
def test_scores_and_masks_of_a_piece_are_those_of_the_whole(rows: int, columns: int) -> None:
    whole = request(9)
    at, to = pieces(9)[rows], pieces(9)[columns]
    piece = whole.piece(at, to)
    for full, of_piece in ((scores(whole), scores(piece)), (full_mask(whole), full_mask(piece))):
        expected = torch.stack([full[b][:, _index(at, b)][:, :, _index(to, b)] for b in range(B)])
        assert torch.allclose(of_piece.double(), expected.double(), atol=1e-12)


def _index(at: object, b: int) -> object:
    return slice(None) if at is None else at if isinstance(at, slice) else at[b]


def test_a_piece_promises_no_run_and_keeps_the_rest() -> None:
    whole = request(9).replace(run=True, full=True, scale=0.3, dropout=0.1, lse=False)
    piece = whole.piece(slice(0, 4), None)
    assert not piece.run and piece.full
    for name in ("pattern", "score", "bias", "scale", "dropout", "lse", "rows"):
        assert getattr(piece, name) is getattr(whole, name)


def test_scores_from_below_that_are_of_the_same_positions_are_so_in_every_piece() -> None:
    """By the object: nobody must look at numbers to see it."""
    piece = request(9).piece(slice(1, 5), slice(2, 9))
    sent = piece.below["scores"]
    assert sent.q_pos is piece.queries.pos and sent.k_pos is piece.keys.pos


@pytest.mark.parametrize("length", [9, 300])
def test_weights_and_mass_are_the_dense_softmax_where_a_bias_reads_labels_and_pairs_from_below(length: int) -> None:
    """Any rows, also beyond the block of queries that received_attention takes at a time."""
    whole = request(length)
    actual = read(whole, "reference")
    logits = scores(whole).masked_fill(~full_mask(whole), -torch.inf)
    dense = torch.where(full_mask(whole).any(-1, keepdim=True), logits.softmax(-1), 0.0).nan_to_num()
    torch.testing.assert_close(actual.y, dense @ whole.keys.v.repeat_interleave(H // G, 1))
    for at in (torch.arange(length).expand(B, -1), torch.stack([torch.randperm(length)[:5] for _ in range(B)])):
        rows = weights(whole, actual.lse, at)
        torch.testing.assert_close(rows, torch.stack([dense[b][:, at[b]] for b in range(B)]))
        sums = rows.sum(-1)
        torch.testing.assert_close(sums, (sums > 0).to(sums))
    torch.testing.assert_close(received_attention(whole, actual.lse), dense.sum(2))


def test_mass_leaves_nothing_of_its_pieces_behind() -> None:
    """A mask of every block would be quadratic memory that lives as long as the forward."""
    whole = request(600).replace(bias=None)
    lse = read(whole, "reference").lse
    before = len(whole.memo._found)
    received_attention(whole, lse)
    assert len(whole.memo._found) == before


class Centre(Bias):
    """Wants to know of the whole row what no piece could tell: its mean query."""

    def prepare(self, request: Request) -> dict[str, Tensor]:
        mean = request.queries.q.mean((2, 3), keepdim=True)
        return {"centre": mean.expand(-1, -1, request.queries.q.shape[2], 1)}

    def bind(self, piece: Request) -> ScoreFn:
        centre = piece.queries.extras["centre"][..., 0]
        return lambda s, b, h, i, j: s + centre[b, h, i]


def test_what_a_bias_prepares_of_the_whole_is_cut_with_the_rest() -> None:
    whole = request(9).replace(bias=Centre()).prepare_bias()
    assert set(whole.queries.extras) == {"gate", "centre"}
    piece = whole.piece(slice(2, 5), slice(0, 6))
    assert torch.allclose(scores(piece), scores(whole)[:, :, 2:5, :6], atol=1e-14)
    plain = request(9).replace(bias=None)
    assert plain.prepare_bias() is plain


def test_is_causal_is_said_only_of_one_object_of_positions() -> None:
    pos = torch.arange(5).expand(B, 1, -1)
    x = torch.randn(B, H, 5, K)
    request = Request(Queries(x, pos), Keys(x, x, pos), Causal(), Product(), run=True, full=True)
    assert request.is_causal and request.pairs == B * H * 25
    for changes in ({"run": False}, {"full": False}, {"rows": torch.arange(B)}):
        assert not request.replace(**changes).is_causal
    assert not request.replace(keys=request.keys._replace(pos=pos.clone())).is_causal
    assert not request.piece(slice(0, 5), slice(0, 5)).is_causal


@pytest.mark.parametrize("pattern", [Causal(), Full(), Causal() & Band(2)], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_what_needs_no_mask_reads_as_with_one(pattern, groups: int, float64: None) -> None:
    """Positions that promise a run without padding spare the mask; the same positions without a promise do not."""
    pos = torch.arange(7).expand(B, 1, -1)
    q, k, v = torch.randn(B, H, 7, K), torch.randn(B, groups, 7, K), torch.randn(B, groups, 7, K)
    fast = Request(Queries(q, pos), Keys(k, v, pos), pattern, Product(), None, 0.4, False, run=True, full=True)
    slow = fast.replace(run=False, full=False, memo=Memo())
    for impl in ("sdpa", "reference"):
        assert torch.allclose(read(fast, impl).y, read(slow, "reference").y, atol=1e-12)
    alone = fast.replace(memo=Memo())
    read(alone, "sdpa")
    assert bool(alone.memo._found) == (not isinstance(pattern, Causal | Full))


@pytest.mark.parametrize("rows", [slice(2, 5), torch.tensor([[4, 1], [0, 3]])], ids=["run", "chosen"])
def test_pairs_that_are_fewer_than_the_pattern_s_are_cut_with_the_rest(rows: slice | Tensor) -> None:
    pos = torch.arange(6).expand(B, 1, -1)
    queries, keys = Queries(torch.randn(B, H, 6, K), pos), Keys(*torch.randn(2, B, G, 6, K), pos)
    request = Request(queries, keys, Causal(), Product(), where=torch.rand(B, 1, 6, 6) < 0.5)
    piece, whole = read(request.piece(rows, None)), read(request)
    rows_read = [y[:, at] for y, at in zip(whole.y, rows if isinstance(rows, Tensor) else [rows] * B, strict=True)]
    assert torch.allclose(piece.y, torch.stack(rows_read), atol=1e-6)
