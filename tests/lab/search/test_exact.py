"""Exact search against a naive loop: ties, many equal vectors, few vectors, NaN, float16, blocks."""

import math
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.search import Found, Held, spread
from kinformer.lab.datastore.shards import Shards
from kinformer.nn.search import _kept as kept
from kinformer.nn.search import _pairs as pairs
from kinformer.nn.search import exact
from kinformer.nn.search._crew import Setting
from kinformer.nn.search._kept import Limits, Nearest, nearest, room_for
from kinformer.nn.search._pairs import Pairs
from kinformer.nn.search._sampled import Sampled, Squares
from kinformer.nn.search.exact import Exact


def naive(vectors: Float[Tensor, "S D"], queries: Float[Tensor, "N D"], k: int) -> tuple[list[list[float]], Tensor]:
    """Every distance, as a sum over coordinates in Python's float64, sorted by itself and then by place."""
    far, places = [], []
    for query in queries.tolist():
        every = sorted(
            (sum((a - b) ** 2 for a, b in zip(query, vector, strict=True)), n)
            for n, vector in enumerate(vectors.tolist())
            if all(math.isfinite(x) for x in vector)
        )[:k]
        far.append([one for one, _ in every])
        places.append([n for _, n in every])
    return far, torch.tensor(places)


def same(found: Found, vectors: Tensor, queries: Tensor, k: int) -> None:
    far, places = naive(vectors, queries, k)
    assert torch.equal(found.places, places)
    torch.testing.assert_close(found.distances, torch.tensor(far, dtype=torch.float64))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that everything is cut."""
    monkeypatch.setattr(exact, "QUERIES", 5)
    monkeypatch.setattr(pairs, "NUMBERS", 40)
    monkeypatch.setattr(kept, "SPARE", 2)
    monkeypatch.setattr(exact, "SHARED", 8)
    monkeypatch.setattr(exact, "FEW", 3)
    monkeypatch.setattr(exact, "MEASURED", 7)
    monkeypatch.setattr(exact, "SOME", 3)
    monkeypatch.setattr(exact, "PART", 1)
    monkeypatch.setattr(exact, "TOGETHER", 8)


@pytest.fixture(params=[0, 100], ids=["together", "gathered"])
def dense(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs that are measured by products of whole blocks, or are gathered one by one."""
    monkeypatch.setattr(exact, "DENSE", request.param)


@pytest.mark.usefixtures("dense")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_it_finds_what_a_loop_finds(k: int, dtype: torch.dtype) -> None:
    chance = torch.Generator().manual_seed(k)
    vectors = torch.randn(53, 6, generator=chance).to(dtype)
    queries = torch.randn(12, 6, generator=chance)
    same(Exact().index(Held(vectors)).search(queries, k), vectors, queries, k)


@pytest.mark.usefixtures("dense")
def test_whole_numbers_tie_often_and_the_first_come_first() -> None:
    chance = torch.Generator().manual_seed(0)
    vectors = torch.randint(-1, 2, (70, 3), generator=chance).float()
    queries = torch.randint(-1, 2, (9, 3), generator=chance).float()
    same(Exact().index(Held(vectors)).search(queries, 7), vectors, queries, 7)


@pytest.mark.usefixtures("dense")
def test_what_rounding_would_confuse_is_told_apart() -> None:
    """Far from the origin |k|^2 - 2 q.k loses what the vectors differ by."""
    chance = torch.Generator().manual_seed(1)
    vectors = 1000 + torch.randn(60, 4, generator=chance) / 100
    queries = 1000 + torch.randn(4, 4, generator=chance) / 100
    rough = (vectors.square().sum(1) / 2 - queries @ vectors.T).argsort(1)[:, :5]
    assert not torch.equal(rough, naive(vectors, queries, 5)[1])
    same(Exact().index(Held(vectors)).search(queries, 5), vectors, queries, 5)


def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many pairs the distances are computed, each time."""
    seen, measure = [], Pairs._measure

    def noted(self: Pairs, asked: Tensor, places: Tensor, out: Tensor) -> None:
        seen.append(len(places))
        measure(self, asked, places, out)

    monkeypatch.setattr(Pairs, "_measure", noted)
    return seen


@pytest.mark.parametrize("away", [0.0, 300.0, 3e4])
def test_most_is_left_out_by_products(away: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vectors close together and far from zero too, as states of a model lie."""
    monkeypatch.setattr(exact, "QUERIES", 64)
    monkeypatch.setattr(kept, "SPARE", 256)
    chance = torch.Generator().manual_seed(8)
    vectors, queries = (torch.randn(n, 8, generator=chance) + away for n in (400, 20))
    index, seen = Exact().index(Held(vectors)), measured(monkeypatch)
    for _ in range(2):
        seen.clear()
        same(index.search(queries, 9), vectors, queries, 9)
        assert sum(seen) < 20 * (9 + 4), seen  # of 400 vectors the nearest, and on average fewer than 4 in doubt


def test_vectors_that_come_ever_nearer_are_found() -> None:
    vectors = torch.arange(60.0, 0, -1)[:, None].repeat(1, 2)
    same(Exact().index(Held(vectors)).search(torch.zeros(1, 2), 4), vectors, torch.zeros(1, 2), 4)


def test_more_than_there_are() -> None:
    vectors, queries = torch.randn(3, 4), torch.randn(2, 4)
    found = Exact().index(Held(vectors)).search(queries, 10)
    assert found.places.shape == (2, 3)
    same(found, vectors, queries, 3)


def test_one_vector_no_vector_and_no_query() -> None:
    one = Exact().index(Held(torch.ones(1, 2))).search(torch.zeros(1, 2), 1)
    assert one.places.tolist() == [[0]] and one.distances.tolist() == [[2.0]]
    assert Exact().index(Held(torch.ones(0, 2))).search(torch.zeros(3, 2), 4).places.shape == (3, 0)
    assert Exact().index(Held(torch.ones(9, 2))).search(torch.zeros(0, 2), 4).places.shape == (0, 4)


def test_vectors_that_are_no_numbers_are_never_found() -> None:
    vectors = torch.randn(20, 3, generator=torch.Generator().manual_seed(3))
    vectors[2], vectors[9, 1], vectors[17, 0] = torch.nan, torch.inf, torch.nan
    queries = torch.zeros(1, 3)
    found = Exact().index(Held(vectors)).search(queries, 20)
    same(Found(found.distances[:, :17], found.places[:, :17]), vectors, queries, 17)
    assert found.places[0, 17:].tolist() == [-1] * 3 and found.distances[0, 17:].tolist() == [math.inf] * 3


@pytest.mark.usefixtures("dense")
def test_where_hardly_any_are_numbers_only_those_are_found() -> None:
    vectors = torch.randn(100, 3, generator=torch.Generator().manual_seed(3))
    vectors[torch.arange(100) % 20 != 7] = torch.nan
    queries = torch.randn(6, 3, generator=torch.Generator().manual_seed(4))
    found = Exact().index(Held(vectors)).search(queries, 10)
    same(Found(found.distances[:, :5], found.places[:, :5]), vectors, queries, 10)
    assert (found.places[:, 5:] == -1).all() and (found.distances[:, 5:] == math.inf).all()


def test_autocast_changes_nothing() -> None:
    chance = torch.Generator().manual_seed(5)
    vectors, queries = 10 + torch.randn(60, 4, generator=chance), 10 + torch.randn(9, 4, generator=chance)
    with torch.autocast("cpu", torch.bfloat16):
        found = Exact().index(Held(vectors)).search(queries, 4)
    same(found, vectors, queries, 4)


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (5, 9), (9, 5), ((1 << 25) + 4, 1 << 14)])
def test_numbers_evenly_apart_are_all_there(count: int, size: int) -> None:
    at = spread(count, size)
    assert len(at) == len(at.unique()) == min(count, size)
    assert not count or [int(at.min()), int(at.max())] == [0, count - 1]


@pytest.mark.parametrize(
    ("queries", "k", "told"),
    [
        (torch.zeros(2, 4), 1, r"queries of shape \[2, 4\] came; give \[N, 3\]"),
        (torch.full((1, 3), torch.nan), 1, "a query holds NaN"),
        (torch.zeros(1, 3), 0, "k=0: give a whole number of at least 1"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(queries: Tensor, k: int, told: str) -> None:
    with pytest.raises(ValueError, match=told) as error:
        Exact().index(Held(torch.zeros(5, 3))).search(queries, k)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("guess", ["none", "near", "far"])
@pytest.mark.parametrize("order", ["any", "falling", "rising", "mixed", "equal"])
@pytest.mark.parametrize(("k", "shared"), [(1, 3), (7, 1), (29, 2), (29, 9), (200, 2)])
def test_the_nearest_are_kept_in_whatever_order_they_come(
    order: str, k: int, shared: int, guess: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of vectors on a line, by scores that are off by less than what is said."""
    chance = torch.Generator().manual_seed(k)
    monkeypatch.setattr(kept, "SPARE", 30)
    x, queries = torch.randn(600, 1, generator=chance).round(decimals=2), torch.randn(5, 1, generator=chance)
    if order in ("falling", "rising"):
        x = x.abs().sort(dim=0, descending=order == "falling").values
    if order == "mixed":  # some find many at once, others none
        x = torch.cat([x[::2].sort(dim=0).values, x[1::2].sort(dim=0, descending=True).values])
    if order == "equal":
        x = x.sign()
    x[17] = torch.inf
    far = (queries.double() - x.double().T).square()
    limits = far.sort(dim=1).values[:, {"none": 599, "near": k + 20, "far": 500}[guess]]
    error = torch.tensor([0.0, 1e-6, 1e-3, 0.1, 30.0], dtype=torch.float64)
    scores = (far / 2 - error[:, None] * torch.rand(far.shape, generator=chance)).float()
    own = Pairs(Held(x), queries)
    parts = [Nearest(own, k, Limits(limits, -error)) for _ in range(shared)]
    size = -(-600 // shared)
    for n, first in enumerate(range(0, 600, size)):
        for at in range(first, min(first + size, 600), 150):
            end = min(at + 150, first + size)
            parts[n].add(scores[:, at:end].numpy(), x[at:end], at)
            assert parts[n].scores.shape == (5, room_for(k))
    found = nearest(own, -error, parts, slice(None))
    same(found, x, queries, k)
    again = nearest(Pairs(Held(x), queries[1:3]), -error[1:3], parts, slice(1, 3))
    assert torch.equal(again.places, found.places[1:3])


@pytest.mark.usefixtures("dense")
def test_a_guess_that_is_too_small_is_told_and_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the sample lie at one place, where only queries of even number find enough."""
    monkeypatch.setattr(exact, "SAMPLE", 30)
    monkeypatch.setattr(exact, "SOME", 2)
    chance = torch.Generator().manual_seed(7)
    vectors, queries = torch.randn(300, 4, generator=chance), torch.randn(8, 4, generator=chance)
    vectors[spread(300, 30)] = queries[1] + 0.01 * torch.randn(30, 4, generator=chance)
    seen = []
    sought = exact.Blocks._nearest

    def counted(index: exact.Blocks, some: Any, limits: Tensor, *given: Any) -> None:
        seen.append((len(some.queries), bool(limits.isfinite().all())))
        sought(index, some, limits, *given)

    monkeypatch.setattr(exact.Blocks, "_nearest", counted)
    same(Exact().index(Held(vectors)).search(queries, 20), vectors, queries, 20)
    assert (seen[0][1], seen[1][1]) == (True, False) and seen[1][0] < seen[0][0]
    for one, wanted in ((0, [(1, True)]), (1, [(1, True), (1, False)])):  # a single query is guessed too
        seen.clear()
        same(Exact().index(Held(vectors)).search(queries[one : one + 1], 20), vectors, queries[one : one + 1], 20)
        assert seen == wanted


@pytest.mark.parametrize("count", [40, 400])
def test_guesses_of_many_queries_find_what_a_loop_finds(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "QUERIES", 64)
    monkeypatch.setattr(exact, "SAMPLE", 60)
    chance = torch.Generator().manual_seed(count)
    vectors = torch.randint(-2, 3, (count, 3), generator=chance).float()
    vectors[count // 2] = torch.nan
    queries = torch.randn(20, 3, generator=chance)
    same(Exact().index(Held(vectors)).search(queries, 9), vectors, queries, 9)


def test_what_float32_holds_no_squares_of_is_refused() -> None:
    vectors = torch.ones(40, 3)
    vectors[33] = 1e19
    with pytest.raises(ValueError, match="vector 33 is longer than 2\\^60"):
        Exact().index(Held(vectors)).search(torch.zeros(1, 3), 2)
    with pytest.raises(ValueError, match="a query is longer than 2\\^60"):
        Exact().index(Held(torch.ones(40, 3))).search(torch.full((1, 3), 1e19), 2)
    vectors, queries = 2.0**58 * torch.randn(40, 3), 2.0**58 * torch.randn(5, 3)
    same(Exact().index(Held(vectors)).search(queries, 4), vectors, queries, 4)


def test_lengths_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Exact().index(Held(torch.randn(30, 3)))
    first = index.search(torch.zeros(2, 3), 4)
    monkeypatch.setattr(torch.linalg, "vector_norm", None)
    assert torch.equal(index.search(torch.zeros(2, 3), 4).places, first.places)


@pytest.fixture
def threads() -> Iterator[int]:
    """PyTorch with several threads, among which a search is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


@pytest.mark.usefixtures("dense")
@pytest.mark.parametrize("k", [3, 40])
def test_threads_that_share_the_work_find_what_a_loop_finds(k: int, threads: int) -> None:
    chance = torch.Generator().manual_seed(k)
    vectors = torch.cat([torch.randint(-2, 3, (60, 3), generator=chance), torch.randn(30, 3, generator=chance)])
    vectors[71] = torch.nan
    queries = torch.randn(7, 3, generator=chance)
    index = Exact().index(Held(vectors.requires_grad_()))
    for _ in range(2):
        found = index.search(queries, k)
        same(found, vectors, queries, k)
        assert not found.distances.requires_grad and torch.get_num_threads() == threads
    torch.set_num_threads(1)
    alone = Exact().index(Held(vectors)).search(queries, k)
    assert torch.equal(alone.distances, found.distances) and torch.equal(alone.places, found.places)


def test_an_index_of_inference_is_searched_by_threads_and_outside_of_it(threads: int) -> None:
    vectors, queries = torch.randn(90, 3), torch.randn(4, 3)
    with torch.inference_mode():
        index = Exact().index(Held(vectors))
        same(index.search(queries, 3), vectors, queries, 3)
    same(index.search(queries, 3), vectors, queries, 3)


def test_an_index_lies_where_its_vectors_do_while_a_model_is_built_without_numbers() -> None:
    vectors, queries = torch.randn(9, 3), torch.randn(4, 3)
    with torch.device("meta"):
        index = Exact().index(Held(vectors))
    same(index.search(queries, 3), vectors, queries, 3)


@pytest.mark.usefixtures("dense")
def test_distances_of_vectors_in_float64_lose_no_digit() -> None:
    vectors = 3 + 1e-6 * torch.randn(40, 3, dtype=torch.float64)
    found = Exact().index(Held(vectors)).search(vectors[:4].float(), 40)
    same(found, vectors, vectors[:4].float(), 40)


@pytest.mark.usefixtures("dense")
def test_vectors_in_float64_far_from_0_are_told_apart() -> None:
    vectors = 1e5 + torch.randn(400, 8, dtype=torch.float64)
    queries = vectors[torch.arange(20) * 7].float()
    found = Exact().index(Held(vectors)).search(queries, 6)
    far = (queries.double()[:, None] - vectors).square().sum(-1).sort(1)
    assert found.places.equal(far.indices[:, :6])


def test_queries_in_float64_are_told_apart() -> None:
    vectors = 1e4 + 1e-3 * torch.randn(200, 8, dtype=torch.float64)
    queries = vectors[:20] + 1e-3 * torch.randn(20, 8, dtype=torch.float64)
    same(Exact().index(Held(vectors)).search(queries, 6), vectors, queries, 6)


@pytest.mark.usefixtures("dense")
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_a_program_may_have_another_usual_kind_of_number(kind: torch.dtype) -> None:
    vectors, queries = torch.randn(90, 4), torch.randn(20, 4)
    torch.set_default_dtype(kind)
    try:
        found = Exact().index(Held(vectors)).search(queries, 5)
    finally:
        torch.set_default_dtype(torch.float32)
    same(found, vectors, queries, 5)


@pytest.mark.usefixtures("dense")
def test_a_program_may_have_another_usual_device() -> None:
    vectors, queries = torch.randn(90, 4), torch.randn(20, 4)
    with torch.device("meta"):
        found = Exact().index(Held(vectors)).search(queries, 5)
        again = Exact().index(Held(vectors)).search(queries[:1], 5)
    same(found, vectors, queries, 5)
    same(again, vectors, queries[:1], 5)


@pytest.mark.parametrize("maps", [[], [numpy.zeros((0, 4), numpy.float16)]])
def test_in_no_vectors_nothing_is_found(maps: list[Any]) -> None:
    assert Exact().index(Shards(maps, 4)).search(torch.zeros(2, 4), 3).places.shape == (2, 0)


@pytest.mark.parametrize("width", [1, 7, 128])
@pytest.mark.parametrize("away", [0.0, 1e3])
@pytest.mark.parametrize("off", [False, True])
def test_products_lose_no_more_than_is_said_and_always_the_same(width: int, away: float, off: bool) -> None:
    chance = torch.Generator().manual_seed(width)
    vectors, queries = (torch.randn(n, width, generator=chance) + away for n in (40, 6))
    vectors[5] = queries[2]
    own = Pairs(Held(vectors), queries)
    by = Sampled(own, Squares(vectors.mean(0) if off else None, 40))
    wanted = torch.rand(6, 40, generator=chance) < 0.3
    wanted[4] = False
    rows, places = wanted.nonzero().T
    ends = numpy.append(0, wanted.sum(1).cumsum(0))
    found = by.far(ends, places.numpy(), vectors, 0)
    for row, place, far in zip(rows.tolist(), places.tolist(), found, strict=True):
        ends = numpy.array([0] * (row + 1) + [1] * (6 - row))
        assert by.far(ends, numpy.zeros(1, int), vectors[place : place + 1], place) == far
    lost = by.lost(numpy.array([found[rows == n].max(initial=0) for n in range(6)]))
    right = own.of(rows, places).numpy()
    assert (abs(found - right) <= lost[rows]).all()
    size = (queries - vectors.mean(0) * off).double().square().sum(1).numpy()
    assert (lost <= 1e-12 * (width + 16) * (size + found.max())).all()


def test_a_setting_that_could_not_be_read_is_not_taken_for_set() -> None:
    put: list[str] = []
    told = iter([RuntimeError("no"), "before"])

    def get() -> str:
        if isinstance(one := next(told), Exception):
            raise one
        return one

    setting = Setting(get, put.append, "wanted")
    with pytest.raises(RuntimeError, match="no"), setting.held():
        pass
    with setting.held():
        assert put == ["wanted"]
    assert put == ["wanted", "before"]


def test_a_setting_is_put_back_by_the_last_who_wants_it() -> None:
    kept = ["before"]
    one = Setting(lambda: kept[0], lambda value: kept.__setitem__(0, value), "wanted")
    first, second = one.held(), one.held()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert kept == ["wanted"]
    second.__exit__(None, None, None)
    assert kept == ["before"]


def test_threads_are_given_back_where_one_fails(threads: int) -> None:
    vectors = torch.ones(90, 3)
    vectors[80] = 1e19
    with pytest.raises(ValueError, match="vector 80 is longer than 2\\^60"):
        Exact().index(Held(vectors)).search(torch.zeros(1, 3), 2)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("apart", "changed"), [(1.0, True), (100.0, False)])
def test_vectors_are_taken_as_they_lie_where_that_loses_little(
    apart: float, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lengths are known behind the first search; what products then lose is looked up off the centre."""
    chance = torch.Generator().manual_seed(2)
    vectors, queries = (1000 + apart * torch.randn(n, 4, generator=chance) for n in (60, 5))
    halves, seen = exact._halves, []

    def noted(away: Tensor, some: Tensor, *more: Tensor) -> Tensor:
        if len(more) > 1:  # of all vectors, not of a sample
            seen.append(float(some.mean()) > 500)
        return halves(away, some, *more)

    index = Exact().index(Held(vectors))
    monkeypatch.setattr(exact, "_halves", noted)
    for again in (False, True):
        seen.clear()
        same(index.search(queries, 5), vectors, queries, 5)
        assert set(seen) == {again and not changed}


@pytest.mark.parametrize("threads", [1, 2, 64])
@pytest.mark.parametrize("k", [1, 100, 10_000, 10**6])
def test_what_is_held_for_many_threads_and_neighbours_stays_within_bounds(threads: int, k: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together, shared = exact._shared(512, 10**6, k)
    finally:
        torch.set_num_threads(before)
    assert together * max(shared, 1) * room_for(k) <= exact.HELD or (together, shared) == (1, 0)
    assert together == exact.QUERIES or k > 1


@pytest.mark.usefixtures("dense")
def test_equal_vectors_have_equal_distances_wherever_they_lie() -> None:
    """Or the first of them would not come first."""
    chance = torch.Generator().manual_seed(6)
    for width in (1, 3, 17, 129):
        vectors = torch.randn(2, width, generator=chance).repeat(11, 1)
        found = Exact().index(Held(vectors)).search(torch.randn(2, width, generator=chance), 22)
        assert (found.distances.unique(dim=1).shape[1]) == 2, width
        assert (found.places.view(2, 2, 11).diff() == 2).all(), width


def test_products_are_in_float32_where_a_program_allows_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    halves, found = exact._halves, []

    def noted(*given: Any) -> Tensor:
        found.append(torch.backends.mkldnn.matmul.fp32_precision)
        return halves(*given)

    monkeypatch.setattr(exact, "_halves", noted)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        Exact().index(Held(torch.randn(9, 4))).search(torch.randn(2, 4), 3)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(found) == {"ieee"}
