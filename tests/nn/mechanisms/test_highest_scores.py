"""The search for the best keys in blocks: its results, memory and gradients; candidates of FAISS."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask, scores
from kinformer.core.scores.product import Product
from kinformer.core.search import Search
from kinformer.core.ties import top_indices
from kinformer.lab.search.flat import Flat
from kinformer.lab.search.hnsw import HNSW
from kinformer.lab.search.ivf import IVF
from kinformer.lab.search.ivf_pq import IVFPQ
from kinformer.members.memorizing_transformer import memorizing_transformer
from kinformer.members.topk_transformer import topk_transformer
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms import highest_scores as search
from kinformer.nn.mechanisms import index_search as by_index
from kinformer.nn.mechanisms.highest_scores import find_by_scores
from kinformer.nn.mechanisms.index_search import find_by_index
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.mechanisms.topk import TopK
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.search.exact import ExactSearch

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K = 2, 4, 37, 3
FAR = Causal() & Segment(6, 11) & ~Segment(6, 0)
DOCUMENTS = Document(torch.arange(T).ge(20).long().expand(B, -1))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 queries and 5 keys."""
    monkeypatch.setattr(search, "KEYS", 5)
    monkeypatch.setattr(search, "PAIRS", 1)


def request(pattern: Pattern, groups: int, whole: bool, by_head: bool = False) -> Request:
    """Whole numbers: many scores are equal. Keys stand in any order, and some are padding."""
    q, k = (torch.randint(-1, 2, (B, heads, T, K)).double() for heads in (H, groups))
    order = torch.stack([torch.randperm(T) for _ in range(B * (H if by_head else 1))]).view(B, -1, T)
    pos = torch.arange(T).expand(B, 1, -1)
    k_pos = pos if whole else torch.where(order < 4, -1, order)
    return Request(Queries(q, pos), Keys(k, k, k_pos), pattern, Product())


def expected(piece: Request, most: int) -> list[list[int]]:
    """For each query its best allowed columns, ascending, from a sort of all keys by score and then by position."""
    score, may = scores(piece), full_mask(piece)
    k_pos = piece.keys.pos.expand(-1, H, -1)
    result = []
    for b, h, t in ((b, h, t) for b in range(B) for h in range(H) for t in range(T)):
        columns = may[b, h, t].nonzero().flatten().tolist()
        best = sorted(columns, key=lambda n: (-float(score[b, h, t, n]), -int(k_pos[b, h, n])))  # noqa: B023
        result.append(sorted(best[:most]))
    return result


def allowed_columns(piece: Request, columns: torch.Tensor) -> list[list[int]]:
    """The columns of each query that it may read, ascending."""
    may = full_mask(piece).take_along_dim(columns.clamp_min(0), -1) & (columns >= 0)
    return [sorted(at[ok].tolist()) for at, ok in zip(columns.flatten(0, 2), may.flatten(0, 2), strict=True)]


@pytest.mark.parametrize("most", [2, 60])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("pattern", [FAR, FAR & DOCUMENTS, Full()], ids=str)
def test_blocks_find_what_a_sort_of_all_keys_finds(
    pattern: Pattern, whole: bool, groups: int, most: int, small: None
) -> None:
    piece = request(pattern, groups, whole)
    assert len(search.block_sizes(piece)) > 2
    assert allowed_columns(piece, find_by_scores(piece, most)) == expected(piece, most)


def test_heads_may_have_positions_of_their_own(small: None) -> None:
    piece = request(FAR, 2, False, by_head=True)
    assert allowed_columns(piece, find_by_scores(piece, 4)) == expected(piece, 4)


@pytest.mark.parametrize("keys", [0, 50])
def test_no_queries_find_nothing(keys: int, small: None) -> None:
    queries = Queries(torch.randn(2, 2, 0, 4), torch.zeros(2, 1, 0, dtype=torch.long))
    k = torch.randn(2, 2, keys, 4)
    piece = Request(queries, Keys(k, k, torch.arange(keys).expand(2, 1, -1)), Full(), Product())
    assert find_by_scores(piece, 3).shape == (2, 2, 0, min(3, keys))


def test_of_equals_the_first_are_taken_whatever_topk_takes() -> None:
    x = torch.randint(0, 3, (500, 40)).double()
    x[::7] = -torch.inf
    finite = (x > -torch.inf).all(-1)
    want = x.sort(dim=-1, stable=True, descending=True).indices[finite, :9].sort(-1).values
    assert torch.equal(top_indices(x, 9, 0.0)[finite], want)
    rounded = x + 1e-9 * torch.rand_like(x)  # equal but for rounding
    assert torch.equal(top_indices(rounded, 9, 1e-8)[finite], want)
    assert not torch.equal(top_indices(rounded, 9, 0.0)[finite], want)
    distinct = torch.randn(50, 40)
    assert torch.equal(
        top_indices(distinct, 9, 0.0), distinct.sort(dim=-1, descending=True).indices[:, :9].sort(-1).values
    )


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.size = max(self.size, x.untyped_storage().nbytes() // x.element_size())
        return out


def gradients(mechanism: Retrieval | TopK, qkv: list[torch.Tensor]) -> list[torch.Tensor]:
    ctx = Context(torch.arange(qkv[0].shape[2]).expand(len(qkv[0]), -1), run=True, full=True)
    q, k, v = qkv
    out = mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y
    return [out.y, *torch.autograd.grad(out.y.sin().sum(), [*qkv, *mechanism.parameters()])]


@pytest.mark.parametrize("choices", [{}, {"combine": "joint"}, {"near": Causal() & Band(3), "apart": True}], ids=str)
def test_blocks_change_neither_values_nor_gradients_and_hold_no_scores_of_the_whole(
    choices: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 300
    mechanism = Retrieval(2, 6, length, 2, **choices)
    qkv = [torch.randn(1, heads, length, 2, requires_grad=True) for heads in (2, 1, 1)]
    with Largest() as at_once:
        whole = gradients(mechanism, qkv)
    monkeypatch.setattr(search, "KEYS", 20)
    monkeypatch.setattr(search, "PAIRS", 1000)
    with Largest() as largest:
        pieces = gradients(mechanism, qkv)
    for ours, theirs in zip(pieces, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert at_once.size >= 2 * length**2 > 10 * largest.size


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 5 queries and 5 keys."""
    monkeypatch.setattr(by_index, "STEP", 5)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("segment", [6, None])
@pytest.mark.parametrize(
    "pattern", [FAR, FAR & DOCUMENTS, FAR & ~Band(3), Causal(), Causal() & Band(9), Full()], ids=str
)
def test_a_flat_index_finds_what_is_found_without_it(
    pattern: Pattern, segment: int | None, groups: int, whole: bool, steps: None
) -> None:
    piece = request(pattern, groups, whole)
    q, k = torch.randn(B, H, T, K), torch.randn(B, groups, T, K)
    piece = piece.replace(queries=piece.queries._replace(q=q), keys=piece.keys._replace(k=k, v=k))
    assert allowed_columns(piece, find_by_index(piece, 4, Flat(), segment)) == expected(piece, 4)


def test_keys_that_all_may_read_are_searched_and_only_those_near_by_scored(
    monkeypatch: pytest.MonkeyPatch, steps: None
) -> None:
    scored, searched = [], []
    may, find = by_index._allowed_pairs, by_index._SharedKeys.find
    monkeypatch.setattr(by_index, "_allowed_pairs", lambda *args: (scored.append(len(args[3])), may(*args))[1])
    monkeypatch.setattr(
        by_index._SharedKeys, "find", lambda self, *args: (searched.append(len(self.numbers)), find(self, *args))[1]
    )
    find_by_index(request(Causal(), H, True), 4, Flat())
    assert max(scored) == 5 and searched[:8] == [0, 5, 10, 15, 20, 25, 30, 35]


@pytest.mark.parametrize("choices", [{}, {"combine": "joint", "cache": 2}], ids=str)
def test_a_layer_with_a_flat_index_reads_and_learns_as_without(choices: dict) -> None:
    qkv = [torch.randn(2, 2, 40, 3, requires_grad=True) for _ in range(3)]
    for ours, theirs in zip(
        *(gradients(Retrieval(2, 6, 20, 3, **choices, search=method), qkv) for method in (Flat(), ExactSearch())),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_top_k_with_a_flat_index_reads_and_learns_as_without(steps: None) -> None:
    qkv = [torch.randn(2, heads, 40, 3, requires_grad=True) for heads in (4, 2, 2)]
    for ours, theirs in zip(
        *(gradients(TopK(Causal(), 3, scale=-0.7, search=method), qkv) for method in (Flat(), ExactSearch())),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [HNSW(8), IVF(3, 2)], ids=str)
def test_what_an_index_misses_is_not_read_twice_and_what_it_finds_is_scored_exactly(
    method: Search, steps: None
) -> None:
    qkv = [torch.randn(1, 2, 60, 8, requires_grad=True) for _ in range(3)]
    piece = request(FAR, 4, True)
    for at, right in zip(allowed_columns(piece, find_by_index(piece, 5, method, 6)), expected(piece, 60), strict=True):
        assert len(at) == len(set(at)) and set(at) <= set(right)
    assert all(torch.isfinite(x).all() for x in gradients(Retrieval(2, 6, 30, 4, search=method), qkv))
    assert all(torch.isfinite(x).all() for x in gradients(TopK(Causal(), 4, search=method), qkv))


@pytest.mark.parametrize("length", [6, 40])
@pytest.mark.parametrize("method", [HNSW(2, 1), IVF(3, 1)], ids=str)
def test_padding_in_front_changes_nothing_of_what_is_found(method: Search, length: int, steps: None) -> None:
    qkv = [torch.randn(1, 2, length, 8) for _ in range(3)]

    def read(padding: int) -> torch.Tensor:
        ctx = Context(torch.cat([torch.full((padding,), -1), torch.arange(length)])[None])
        q, k, v = (torch.cat([torch.randn(1, 2, padding, 8), x], 2) for x in qkv)
        out = TopK(Causal(), 4, search=method)(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx)
        return out.y.y[:, :, padding:]

    for padding in (1, 7, 12):
        torch.testing.assert_close(read(padding), read(0))


@pytest.mark.parametrize(
    "make", [lambda method: Retrieval(2, 6, 20, search=method), lambda method: TopK(Causal(), search=method)]
)
def test_an_index_that_cannot_be_is_refused_when_the_layer_is_built(make: Callable[[Search], Any]) -> None:
    with pytest.raises(ValueError, match="codes=16 does not divide vectors of width 9"):
        Attention(QKV(18, 2), make(IVFPQ()))


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(
        ValueError,
        match=r"search 'flat' needs a package .*: run `pip install '.\[faiss\]'` in kinformer's folder, or use",
    ):
        Attention(QKV(16, 2), Retrieval(2, 6, 20, search=Flat()))


def test_members_take_a_search_by_its_name() -> None:
    assert memorizing_transformer(d=8, depth=1, heads=2, search="hnsw:links=8").member.keywords["search"]
    assert topk_transformer(d=8, depth=1, heads=2, ties="latest", search="ivf").member.keywords["search"] == "ivf"
    with pytest.raises(ValueError, match="there is no search 'hsnw'; the nearest is 'hnsw'"):
        memorizing_transformer(search="hsnw")
    with pytest.raises(ValueError, match="search=hnsw has no effect with ties=all; leave it out, or give ties=latest"):
        topk_transformer(search="hnsw")
