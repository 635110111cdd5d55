"""Searches by FAISS: their distances are exact, and they find most of the nearest vectors."""

import sys
from operator import attrgetter
from typing import Any

import pytest
import torch

from kinformer.core.named_part import format_part
from kinformer.core.search import Search, TensorVectors, search_named
from kinformer.lab.search.hnsw import HNSW
from kinformer.lab.search.ivf import IVF
from kinformer.lab.search.support.faiss import FaissIndex, FaissSearch
from kinformer.nn.search.exact import ExactSearch

NAMES = ("flat", "hnsw", "ivf:lists=4,probes=4", "ivf_pq:codes=4,probes=4,lists=4")


def draw() -> tuple[TensorVectors, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return TensorVectors(torch.randn(700, 8, generator=generator)), torch.randn(20, 8, generator=generator)


def search_by_name(name: str, k: int) -> Any:
    vectors, queries = draw()
    return search_named(name).index(vectors).search(queries, k)


@pytest.mark.parametrize("name", NAMES)
def test_distances_are_exact_and_in_order_and_most_is_found(name: str) -> None:
    vectors, queries = draw()
    ours, right = search_by_name(name, 5), ExactSearch().index(vectors).search(queries, 5)
    distances = (vectors.rows[ours.places] - queries[:, None]).double().square().sum(-1)
    torch.testing.assert_close(ours.distances, distances)
    assert (ours.distances.diff(dim=1) >= 0).all() and (ours.distances >= right.distances - 1e-9).all()
    share = float((ours.places[:, :, None] == right.places[:, None]).any(2).double().mean())
    assert share == 1 if name == "flat" else share > 0.7


@pytest.mark.parametrize("name", NAMES)
def test_an_index_comes_back_from_a_file(name: str) -> None:
    vectors, queries = draw()
    search = search_named(name)
    assert isinstance(search, FaissSearch) and search_named(format_part(search)) == search
    index = search.index(vectors)
    restored = FaissIndex.from_bytes(search, vectors, index.to_bytes())
    assert torch.equal(index.search(queries, 4).places, restored.search(queries, 4).places)
    with pytest.raises(ValueError, match="FAISS cannot read the index"):
        FaissIndex.from_bytes(search, vectors, index.to_bytes()[:40])
    with pytest.raises(ValueError, match="unlike the datastore"):
        FaissIndex.from_bytes(search, TensorVectors(vectors.rows[:-1]), index.to_bytes())


def test_where_it_looks_into_too_few_lists_the_rest_is_missing() -> None:
    vectors = TensorVectors(torch.cat([torch.zeros(60, 2), torch.ones(60, 2)]) + torch.randn(120, 2) / 100)
    result = IVF(lists=2, probes=1).index(vectors).search(torch.zeros(1, 2), 100)
    assert int((result.places >= 0).sum()) == 60 and result.distances[0, 60:].isinf().all()


@pytest.mark.parametrize("name", NAMES)
def test_keys_that_come_one_after_the_other_are_found(name: str) -> None:
    vectors, queries = draw()
    growing = search_named(name).product_index(8)
    assert growing is not None
    for keys in vectors.rows.split(90):
        growing.add(keys)
    best = (queries @ vectors.rows.T).topk(5).indices
    share = float((growing.find(queries, 20)[:, :, None] == best[:, None]).any(1).double().mean())
    assert share == 1 if name == "flat" else share > 0.7


@pytest.mark.parametrize(("name", "effort"), [("hnsw:effort=4", "hnsw.efSearch"), ("ivf:probes=3", "nprobe")])
def test_a_search_says_how_thoroughly_it_looks_and_leaves_the_index_as_it_is(name: str, effort: str) -> None:
    vectors = TensorVectors(torch.randn(700, 8))
    index = search_named(name).index(vectors)
    before = attrgetter(effort)(index.faiss)  # type: ignore[attr-defined]
    result = index.search(vectors.rows, 40)
    assert attrgetter(effort)(index.faiss) == before, "searches in other threads want other k"  # type: ignore[attr-defined]
    assert (result.places >= 0).float().mean() > 0.9, "as many are looked at as are wanted"


@pytest.mark.parametrize("k", [1, 9])
def test_few_vectors(k: int) -> None:
    vectors = TensorVectors(torch.randn(3, 8))
    assert HNSW().index(vectors).search(vectors.rows, k).places[:, 0].tolist() == [0, 1, 2]
    assert HNSW().index(vectors).search(vectors.rows[:0], k).places.shape == (0, min(k, 3))


@pytest.mark.parametrize("name", NAMES)
def test_an_index_of_nothing_finds_nothing(name: str) -> None:
    nothing = search_named(name).index(TensorVectors(torch.zeros(0, 8)))
    assert nothing.search(torch.zeros(2, 8), 3).places.shape == (2, 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [torch.nan, -torch.inf, 1e30])
def test_what_ends_a_process_in_the_threads_of_faiss_is_refused(name: str, number: float) -> None:
    rows = torch.randn(640, 8)
    rows[7, 3] = number
    with pytest.raises(ValueError, match="NaN or infinity, or that is longer than"):
        search_named(name).index(TensorVectors(rows))
    growing = search_named(name).product_index(8)
    assert growing is not None
    with pytest.raises(ValueError, match="NaN or infinity, or that is longer than"):
        growing.add(rows)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hnws", "there is no search 'hnws'; the nearest is 'hnsw'; choose exact, flat, hnsw, ivf, ivf_pq"),
        ("hnsw:links=1", "links=1: give a whole number from 2 to 512"),
        ("ivf:probes=0", "probes=0: give a whole number of at least 1"),
        ("hnsw:x=1", "the search 'HNSW' has no keyword 'x'"),
        ("ivf_pq:codes=3", "codes=3 does not divide vectors of width 8"),
    ],
)
def test_a_search_that_there_is_not_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        search_by_name(name, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_without_the_package_one_line_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match=r"needs a package that is not installed .*: run `pip install '.\[faiss\]'`"):
        search_by_name(name, 1)


def test_the_plain_search_has_a_name_too() -> None:
    exact: Search = search_named("exact")
    assert exact == ExactSearch() and format_part(exact) == "exact" and exact.product_index(8) is None
