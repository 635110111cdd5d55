"""Exact search against a naive loop: ties, equal vectors, few vectors, NaN, float16, blocks."""

import math
from typing import Any

import numpy
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.search import SearchResult, TensorVectors, evenly_spaced
from kinformer.lab.datastore.shards import Shards
from kinformer.nn.search import exact
from kinformer.nn.search.exact import ExactSearch, rank_candidates


def naive(vectors: Float[Tensor, "S D"], queries: Float[Tensor, "N D"], k: int) -> tuple[list[list[float]], Tensor]:
    """Every distance, as a sum over coordinates in Python's float64, sorted by distance and then by place."""
    distances, places = [], []
    for query in queries.tolist():
        nearest = sorted(
            (sum((a - b) ** 2 for a, b in zip(query, vector, strict=True)), n)
            for n, vector in enumerate(vectors.tolist())
            if all(math.isfinite(x) for x in vector)
        )[:k]
        distances.append([distance for distance, _ in nearest])
        places.append([n for _, n in nearest])
    return distances, torch.tensor(places)


def check(result: SearchResult, vectors: Tensor, queries: Tensor, k: int) -> None:
    distances, places = naive(vectors, queries, k)
    assert torch.equal(result.places, places)
    torch.testing.assert_close(result.distances, torch.tensor(distances, dtype=torch.float64))


def search(vectors: Tensor, queries: Tensor, k: int) -> SearchResult:
    return ExactSearch().index(TensorVectors(vectors)).search(queries, k)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut queries, vectors and candidates into several blocks."""
    monkeypatch.setattr(exact, "QUERIES", 5)
    monkeypatch.setattr(exact, "VECTORS", 8)
    monkeypatch.setattr(exact, "NUMBERS", 40)
    monkeypatch.setattr(exact, "SPARE", 2)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of queries that are compared with all vectors by sums of squares."""
    counts: list[int] = []
    measure = exact.ExactIndex._measure

    def count(index: exact.ExactIndex, queries: Tensor, k: int) -> SearchResult:
        counts.append(len(queries))
        return measure(index, queries, k)

    monkeypatch.setattr(exact.ExactIndex, "_measure", count)
    return counts


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 3, 20, 53])
def test_the_result_is_that_of_a_loop(k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(k)
    vectors = torch.randn(53, 40, generator=generator).to(dtype)
    queries = torch.randn(12, 40, generator=generator) * torch.tensor([1.0, 0.01]).repeat(6)[:, None]
    check(search(vectors, queries, k), vectors, queries, k)


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes_with_ties_match_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small whole numbers, halves, repeated rows and rows with NaN, in shards of random sizes."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    monkeypatch.setattr(exact, "QUERIES", draw(1, 9))
    monkeypatch.setattr(exact, "VECTORS", draw(1, 30))
    count, width, number = draw(1, 90), draw(1, 9), draw(1, 12)
    vectors = torch.randint(-2, 3, (count, width), generator=generator) / draw(1, 3)
    vectors = vectors[torch.randint(count, (count,), generator=generator)]
    vectors[draw(0, count)] = torch.nan
    queries = torch.randint(-2, 3, (number, width), generator=generator).float()
    queries[0] = queries[0] + 1e-3 * torch.randn(width, generator=generator)
    numbers = int(vectors.isfinite().all(1).sum())
    maps = [part.numpy() for part in vectors.split(draw(1, count + 1))]
    for k in (1, draw(1, count + 1), count):
        for index in (ExactSearch().index(TensorVectors(vectors)), ExactSearch().index(Shards(maps, width))):
            result, real = index.search(queries, k), min(k, numbers)
            if real:
                check(SearchResult(result.distances[:, :real], result.places[:, :real]), vectors, queries, k)
            assert result.places.shape == (number, k) and (result.places[:, real:] == -1).all()
            assert (result.distances[:, real:] == math.inf).all()


def test_vectors_far_from_0_are_distinguished(measured: list[int]) -> None:
    """In float32, |v|^2 - 2 q.v rounds away the differences between these vectors."""
    generator = torch.Generator().manual_seed(1)
    vectors = 1000 + torch.randn(60, 4, generator=generator) / 100
    queries = 1000 + torch.randn(4, 4, generator=generator) / 100
    rounded = (vectors.square().sum(1) / 2 - queries @ vectors.T).argsort(1)[:, :5]
    assert not torch.equal(rounded, naive(vectors, queries, 5)[1])
    check(search(vectors, queries, 5), vectors, queries, 5)
    assert not measured


def test_vectors_that_float64_products_confuse_are_measured(measured: list[int]) -> None:
    generator = torch.Generator().manual_seed(2)
    vectors, queries = (1e7 + 1e-2 * torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (60, 4))
    rounded = (vectors.square().sum(1) - 2 * queries @ vectors.T).argsort(1)[:, :5]
    assert not torch.equal(rounded, naive(vectors, queries, 5)[1])
    check(search(vectors, queries, 5), vectors, queries, 5)
    assert measured == [4]


def test_products_that_round_by_about_the_gaps_between_distances_leave_out_no_neighbour() -> None:
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        vectors, queries = (1e5 + 1e-2 * torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (60, 20))
        check(search(vectors, queries, 5), vectors, queries, 5)


@pytest.mark.parametrize("offset", [0.0, 300.0, 3e4])
def test_products_leave_no_query_in_doubt(offset: float, measured: list[int]) -> None:
    generator = torch.Generator().manual_seed(8)
    vectors, queries = (torch.randn(n, 8, generator=generator) + offset for n in (400, 20))
    check(search(vectors, queries, 9), vectors, queries, 9)
    assert not measured


def test_only_queries_with_many_equal_candidates_are_measured(measured: list[int]) -> None:
    vectors = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    vectors[::2] = 5.0
    queries = torch.tensor([[5.0, 5.0, 5.0], [-9.0, 0.0, 0.0], [5.5, 5.0, 5.0]])
    check(search(vectors, queries, 4), vectors, queries, 4)
    assert measured == [2]


@pytest.mark.parametrize("descending", [False, True])
def test_the_order_of_the_vectors_does_not_matter(descending: bool) -> None:
    vectors = torch.arange(60.0).flip(0)[:, None].repeat(1, 2) if descending else torch.arange(60.0)[:, None]
    queries = torch.zeros(1, vectors.shape[1])
    check(search(vectors, queries, 4), vectors, queries, 4)


def test_many_neighbours_are_searched_for_few_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "RESULTS", 40)
    sizes: list[int] = []
    search_part = exact.ExactIndex._search

    def record(index: exact.ExactIndex, queries: Tensor, k: int) -> SearchResult:
        sizes.append(len(queries))
        return search_part(index, queries, k)

    monkeypatch.setattr(exact.ExactIndex, "_search", record)
    vectors, queries = torch.randn(60, 3), torch.randn(7, 3)
    for k, expected in ((3, [5, 2]), (20, [2, 2, 2, 1]), (50, [1] * 7)):
        sizes.clear()
        check(search(vectors, queries, k), vectors, queries, k)
        assert sizes == expected


def test_fewer_vectors_than_k() -> None:
    vectors, queries = torch.randn(3, 4), torch.randn(2, 4)
    result = search(vectors, queries, 10)
    assert result.places.shape == (2, 3)
    check(result, vectors, queries, 3)


def test_a_single_vector_no_vectors_and_no_queries() -> None:
    result = search(torch.ones(1, 2), torch.zeros(1, 2), 1)
    assert result.places.tolist() == [[0]] and result.distances.tolist() == [[2.0]]
    for vectors, queries, shape in (((0, 2), (3, 2), (3, 0)), ((9, 2), (0, 2), (0, 4)), ((0, 2), (0, 2), (0, 0))):
        result = search(torch.ones(vectors), torch.zeros(queries), 4)
        assert result.places.shape == result.distances.shape == shape
        assert (result.places.dtype, result.distances.dtype) == (torch.long, torch.float64)


@pytest.mark.parametrize("maps", [[], [numpy.zeros((0, 4), numpy.float16)]])
def test_shards_without_vectors_give_empty_results(maps: list[Any]) -> None:
    assert ExactSearch().index(Shards(maps, 4)).search(torch.zeros(2, 4), 3).places.shape == (2, 0)


def test_vectors_with_nan_or_infinity_are_never_returned() -> None:
    vectors = torch.randn(20, 3, generator=torch.Generator().manual_seed(3))
    vectors[2], vectors[9, 1], vectors[17, 0] = torch.nan, torch.inf, -torch.inf
    queries = torch.randn(3, 3, generator=torch.Generator().manual_seed(4))
    for k in (1, 5, 20):
        result, real = search(vectors, queries, k), min(k, 17)
        check(SearchResult(result.distances[:, :real], result.places[:, :real]), vectors, queries, k)
        assert (result.places[:, real:] == -1).all() and (result.distances[:, real:] == math.inf).all()


def test_candidates_with_nan_are_not_ranked() -> None:
    vectors = TensorVectors(torch.tensor([[torch.nan], [3.0], [1.0]]))
    result = rank_candidates(vectors, torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[0, 2, -1, 1]]), 4)
    assert result.places.tolist() == [[2, 1, -1, -1]]
    assert result.distances.tolist() == [[1.0, 9.0, math.inf, math.inf]]


def test_a_few_finite_vectors_among_nan_are_returned() -> None:
    vectors = torch.randn(100, 3, generator=torch.Generator().manual_seed(3))
    vectors[torch.arange(100) % 20 != 7] = torch.nan
    queries = torch.randn(6, 3, generator=torch.Generator().manual_seed(4))
    result = search(vectors, queries, 10)
    check(SearchResult(result.distances[:, :5], result.places[:, :5]), vectors, queries, 10)
    assert (result.places[:, 5:] == -1).all() and (result.distances[:, 5:] == math.inf).all()


def test_settings_of_a_program_change_nothing() -> None:
    """Autocast, the precision of products, the default dtype and device, inference mode."""
    generator = torch.Generator().manual_seed(5)
    vectors, queries = 10 + torch.randn(60, 4, generator=generator), 10 + torch.randn(9, 4, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        check(search(vectors, queries, 4), vectors, queries, 4)
    with torch.device("meta"):
        result, single = search(vectors, queries, 5), search(vectors, queries[:1], 5)
    check(result, vectors, queries, 5)
    check(single, vectors, queries[:1], 5)
    with torch.inference_mode():
        index = ExactSearch().index(TensorVectors(vectors))
        check(index.search(queries, 3), vectors, queries, 3)
    check(index.search(queries, 3), vectors, queries, 3)
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.bfloat16)
        result = search(vectors, queries, 5)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(precision)
    check(result, vectors, queries, 5)


def test_several_threads_give_the_same_result_without_gradients() -> None:
    generator = torch.Generator().manual_seed(6)
    vectors = torch.cat([torch.randint(-2, 3, (60, 3), generator=generator), torch.randn(30, 3, generator=generator)])
    queries, threads = torch.randn(7, 3, generator=generator), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        shared = search(vectors.requires_grad_(), queries.clone().requires_grad_(), 40)
        torch.set_num_threads(1)
        alone = search(vectors, queries, 40)
    finally:
        torch.set_num_threads(threads)
    check(shared, vectors, queries, 40)
    assert torch.equal(alone.distances, shared.distances) and not shared.distances.requires_grad


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (5, 9), (9, 5), ((1 << 25) + 4, 1 << 14)])
def test_spread_numbers_are_distinct_and_include_both_ends(count: int, size: int) -> None:
    numbers = evenly_spaced(count, size)
    assert len(numbers) == len(numbers.unique()) == min(count, size)
    assert not count or [int(numbers.min()), int(numbers.max())] == [0, count - 1]


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (torch.zeros(2, 4), 1, r"search failed: got queries of shape \[2, 4\], expected \[N, 3\]"),
        (torch.full((1, 3), torch.nan), 1, "search failed: got a query with NaN or infinity"),
        (torch.full((1, 3), 1e19), 1, r"search failed: got a query of length 2\^60 or more"),
        (torch.zeros(1, 3), 0, "k=0: give a whole number of at least 1"),
    ],
)
def test_invalid_queries_are_refused_in_one_line(queries: Tensor, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        search(torch.zeros(5, 3), queries, k)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", [1e19, 1e30])
def test_long_vectors_are_refused_and_shorter_vectors_are_searched(length: float) -> None:
    vectors = torch.ones(40, 3)
    vectors[20], vectors[33] = torch.inf, length
    with pytest.raises(ValueError, match=r"got vector 33 of length 2\^60 or more"):
        search(vectors, torch.zeros(1, 3), 2)
    vectors, queries = 2.0**58 * torch.rand(40, 3), 2.0**58 * torch.rand(5, 3)
    check(search(vectors, queries, 4), vectors, queries, 4)


def test_float64_vectors_keep_every_digit() -> None:
    vectors = 3 + 1e-6 * torch.randn(40, 3, dtype=torch.float64)
    check(search(vectors, vectors[:4].float(), 40), vectors, vectors[:4].float(), 40)
    vectors = 1e4 + 1e-3 * torch.randn(200, 8, dtype=torch.float64)
    queries = vectors[:20] + 1e-3 * torch.randn(20, 8, dtype=torch.float64)
    check(search(vectors, queries, 6), vectors, queries, 6)


@pytest.mark.parametrize("width", [1, 3, 17, 129])
def test_equal_vectors_have_equal_distances_and_keep_their_order(width: int) -> None:
    generator = torch.Generator().manual_seed(6)
    vectors = torch.randn(2, width, generator=generator).repeat(11, 1)
    queries = torch.randn(2, width, generator=generator)
    for k in (22, 5):
        result = search(vectors, queries, k)
        assert result.distances.unique(dim=1).shape[1] == (2 if k > 11 else 1)
        parts = (result.places[:, :11], result.places[:, 11:])
        assert all((part.diff() == 2).all() for part in parts)
