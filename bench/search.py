"""Nearest keys of a datastore against a bare matrix product, and top-k attention by an index against every score."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import torch
from interleave import middle, race, ready, setup_with_words
from torch import Tensor

from kinformer import Context
from kinformer.core.heads import Keys, Queries
from kinformer.core.patterns.causal import Causal
from kinformer.core.search import Search, TensorVectors, VectorIndex
from kinformer.lab.datastore.shards import Shards
from kinformer.lab.search.flat import Flat
from kinformer.lab.search.hnsw import HNSW
from kinformer.lab.search.ivf import IVF
from kinformer.lab.search.ivf_pq import IVFPQ
from kinformer.nn.mechanisms.index_search import find_best_keys
from kinformer.nn.mechanisms.topk import TopK
from kinformer.nn.search.exact import ExactSearch

STORE, WIDTH = 100_000, 64
SIZES = ((1, 8), (256, 32), (64, 1024), (1024, 1024))  # queries, and neighbours of each
LENGTHS, HEAD, BEST = (2_048, 8_192, 32_768), 32, 16
HIDDEN = 8  # keys lie near a plane of 8 dimensions, as states of models do; indices depend on that
INDICES: dict[str, Search] = {"flat": Flat(), "hnsw": HNSW(), "ivf": IVF(), "ivf_pq": IVFPQ()}


def draw_keys(count: int, width: int) -> Tensor:
    """Vectors near a plane of few dimensions."""
    plane = torch.randn(HIDDEN, width)
    return torch.randn(count, HIDDEN) @ plane + torch.randn(count, width) / 4


def recall(places: Tensor, right: Tensor) -> float:
    """The share of the right places among the places of a result."""
    return float((places[:, :, None] == right[:, None]).any(1).double().mean())


def compare_stores(rounds: int) -> None:
    """The exact search of float32 in memory and float16 on a disk, against a product of all queries and keys."""
    print("| keys | queries | k | product, ms | memory, ms | float32 in memory over it | float16 on a disk over it |")
    print("|---|---|---|---|---|---|---|")
    keys = draw_keys(STORE, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        keys.half().numpy().tofile(path)
        disk = Shards([numpy.memmap(path, numpy.float16, "r", 0, (STORE, WIDTH))], WIDTH)
        for queries, k in SIZES:
            compare_sizes(keys, disk, queries, k, rounds)
    print()


def compare_sizes(keys: Tensor, disk: Shards, count: int, k: int, rounds: int) -> None:
    """Print a line of the table."""
    queries = draw_keys(count, WIDTH)
    out = torch.empty(count, len(keys))
    calls: dict[str, Callable[[], object]] = {
        "product": partial(torch.mm, queries, keys.T, out=out),
        "memory": partial(ExactSearch().index(TensorVectors(keys)).search, queries, k),
        "disk": partial(ExactSearch().index(disk).search, queries, k),
    }
    seconds = race({name: ready(call) for name, call in calls.items()}, rounds)
    bare, memory = (middle(1e3 * x for x in seconds[name]).median for name in ("product", "memory"))
    ratios = [
        middle(ours / product for ours, product in zip(seconds[name], seconds["product"], strict=True))
        for name in ("memory", "disk")
    ]
    intervals = " | ".join(f"{ratio.median:.1f} [{ratio.low:.1f}, {ratio.high:.1f}]" for ratio in ratios)
    print(f"| {len(keys):,} | {count:,} | {k:,} | {bare:,.1f} | {memory:,.1f} | {intervals} |", flush=True)


def compare_indices(rounds: int) -> None:
    """Each index of the store: the time to build and to search it, and its recall."""
    vectors, queries = TensorVectors(draw_keys(STORE, WIDTH)), draw_keys(64, WIDTH)
    indices: dict[str, VectorIndex] = {"exact": ExactSearch().index(vectors)}
    right = indices["exact"].search(queries, BEST)
    build_seconds = {"exact": 0.0}
    for name, search in INDICES.items():
        begin = time.perf_counter()
        indices[name] = search.index(vectors)
        build_seconds[name] = time.perf_counter() - begin
    seconds = race({name: ready(partial(index.search, queries, BEST)) for name, index in indices.items()}, rounds)
    print(f"{STORE:,} keys, 64 queries, k={BEST}\n\n| search | built in, s | ms | recall |\n|---|---|---|---|")
    for name, index in indices.items():
        share = recall(index.search(queries, BEST).places, right.places)
        milliseconds = middle(1e3 * x for x in seconds[name]).median
        print(f"| {name} | {build_seconds[name]:.1f} | {milliseconds:,.1f} | {share:.3f} |")
    print(flush=True)


def compare_attention(rounds: int) -> None:
    """Causal attention of a row by TopK: every pair scored, or the best keys of an index that grows along the row."""
    rounds = min(rounds, 3)
    print(f"top-{BEST} attention, causal, one head of {HEAD}\n\n| tokens | search | ms | recall |\n|---|---|---|---|")
    for length in LENGTHS:
        q, k, v = (draw_keys(length, HEAD)[None, None] for _ in range(3))
        ctx = Context.of_sequence(v[0])
        bundle = Queries(q, ctx.by_head), Keys(k, v, ctx.by_head)
        searches: dict[str, Search] = {"exact": ExactSearch(), "hnsw": HNSW(16), "ivf": IVF()}
        layers = {name: TopK(Causal(), BEST, search=search) for name, search in searches.items()}
        seconds = race({name: ready(partial(read, layer, bundle, ctx)) for name, layer in layers.items()}, rounds)
        right = best_columns(layers["exact"], bundle, ctx)
        for name, layer in layers.items():
            milliseconds, share = (
                middle(1e3 * x for x in seconds[name]),
                recall(best_columns(layer, bundle, ctx), right),
            )
            print(f"| {length:,} | {name} | {milliseconds.median:,.0f} | {share:.3f} |", flush=True)
    print()


def read(layer: TopK, bundle: tuple[Queries, Keys], ctx: Context) -> Tensor:
    """The output of the layer."""
    with torch.no_grad():
        return layer(*bundle, None, ctx).y


def best_columns(layer: TopK, bundle: tuple[Queries, Keys], ctx: Context) -> Tensor:
    """The keys that each query reads, for queries that may read enough keys."""
    request, _ = layer.request(*bundle, None, ctx)
    return find_best_keys(request, BEST, layer.search)[0, 0, BEST:]


TABLES: dict[str, Callable[[int], None]] = {
    "stores": compare_stores,
    "indices": compare_indices,
    "attention": compare_attention,
}


def main() -> None:
    """Print all tables, or the tables named on the command line."""
    rounds, names = setup_with_words(
        "Search: nearest keys, and top-k attention", f"tables ({', '.join(TABLES)}; default all)"
    )
    for name in names or TABLES:
        TABLES[name](rounds)


if __name__ == "__main__":
    main()
