"""Nearest keys of a datastore against a bare matrix product, and top-k attention by an index against every score."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import torch
from interleave import asked, middle, race, ready
from torch import Tensor

from kinformer import Context
from kinformer.core.heads import Keys, Queries
from kinformer.core.patterns.causal import Causal
from kinformer.core.search import Search, SearchResult, TensorVectors, VectorIndex
from kinformer.lab.datastore.shards import Shards
from kinformer.lab.search.flat import Flat
from kinformer.lab.search.hnsw import HNSW
from kinformer.lab.search.ivf import IVF
from kinformer.lab.search.ivf_pq import IVFPQ
from kinformer.nn.mechanisms.indexed import best
from kinformer.nn.mechanisms.topk import TopK
from kinformer.nn.search.exact import ExactSearch

WIDTH, STORES, ASKED, NEAREST = 128, (100_000, 1_000_000), (1, 64, 1024), (8, 1024)
LENGTHS, HEAD, BEST = (2_048, 8_192, 32_768), 32, 16
HIDDEN = 8  # numbers that keys are made of: states of models lie near few dimensions, and indices live by that
INDICES: dict[str, Search] = {"flat": Flat(), "hnsw": HNSW(), "ivf": IVF(), "ivf_pq": IVFPQ()}


def keys(count: int, width: int) -> Tensor:
    """Vectors near a plane of few dimensions."""
    plane = torch.randn(HIDDEN, width)
    return torch.randn(count, HIDDEN) @ plane + torch.randn(count, width) / 4


def recall(found: Tensor, right: Tensor) -> float:
    """The share of the right places that were found."""
    return float((found[:, :, None] == right[:, None]).any(1).double().mean())


def stores(rounds: int) -> None:
    """The exact search over float32 in memory and float16 on a disk, against a product of all queries and keys."""
    print("| keys | queries | k | product, ms | exact in float32 in memory over it | in float16 on a disk over it |")
    print("|---|---|---|---|---|---|")
    for count in STORES:
        held = keys(count, WIDTH)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "keys"
            held.half().numpy().tofile(path)
            lies = Shards([numpy.memmap(path, numpy.float16, "r", 0, (count, WIDTH))], WIDTH)
            for asked in ASKED:
                for k in NEAREST:
                    against(held, lies, asked, k, rounds)
    print()


def against(held: Tensor, lies: Shards, asked: int, k: int, rounds: int) -> None:
    """A line of the table."""
    queries = keys(asked, WIDTH)
    out = torch.empty(asked, len(held))
    calls: dict[str, Callable[[], object]] = {
        "product": partial(torch.mm, queries, held.T, out=out),
        "memory": partial(ExactSearch().index(TensorVectors(held)).search, queries, k),
        "disk": partial(ExactSearch().index(lies).search, queries, k),
    }
    seconds = race({name: ready(call) for name, call in calls.items()}, rounds)
    own = middle(1e3 * one for one in seconds["product"])
    ratios = [
        middle(ours / bare for ours, bare in zip(seconds[name], seconds["product"], strict=True))
        for name in ("memory", "disk")
    ]
    told = " | ".join(f"{one.median:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in ratios)
    print(f"| {len(held):,} | {asked:,} | {k:,} | {own.median:,.1f} | {told} |", flush=True)


def indices(rounds: int) -> None:
    """Each index over the smaller store: how long it takes to make, to ask, and what it finds."""
    held, queries = TensorVectors(keys(STORES[0], WIDTH)), keys(64, WIDTH)
    made: dict[str, VectorIndex] = {"exact": ExactSearch().index(held)}
    right: SearchResult = made["exact"].search(queries, BEST)
    took = {"exact": 0.0}
    for name, search in INDICES.items():
        begin = time.perf_counter()
        made[name] = search.index(held)
        took[name] = time.perf_counter() - begin
    seconds = race({name: ready(partial(one.search, queries, BEST)) for name, one in made.items()}, rounds)
    print(f"{STORES[0]:,} keys, 64 queries, k={BEST}\n\n| search | made in, s | ms | recall |\n|---|---|---|---|")
    for name, one in made.items():
        share = recall(one.search(queries, BEST).places, right.places)
        print(f"| {name} | {took[name]:.1f} | {middle(1e3 * x for x in seconds[name]).median:,.1f} | {share:.3f} |")
    print(flush=True)


def attention(rounds: int) -> None:
    """A causal read of a row by TopK: every pair scored, or the best of an index that grows along it."""
    rounds = min(rounds, 3)
    print(f"top-{BEST} attention, causal, one head of {HEAD}\n\n| tokens | search | ms | recall |\n|---|---|---|---|")
    for length in LENGTHS:
        q, k, v = (keys(length, HEAD)[None, None] for _ in range(3))
        ctx = Context.of(v[0])
        given = Queries(q, ctx.by_head), Keys(k, v, ctx.by_head)
        ways: dict[str, Search] = {"exact": ExactSearch(), "hnsw": HNSW(16), "ivf": IVF()}
        layers = {name: TopK(Causal(), BEST, search=search) for name, search in ways.items()}
        seconds = race({name: ready(partial(read, layer, given, ctx)) for name, layer in layers.items()}, rounds)
        right = chosen(layers["exact"], given, ctx)
        for name, layer in layers.items():
            took, share = middle(1e3 * x for x in seconds[name]), recall(chosen(layer, given, ctx), right)
            print(f"| {length:,} | {name} | {took.median:,.0f} | {share:.3f} |", flush=True)
    print()


def read(layer: TopK, given: tuple[Queries, Keys], ctx: Context) -> Tensor:
    """What the layer reads."""
    with torch.no_grad():
        return layer(*given, None, ctx).y


def chosen(layer: TopK, given: tuple[Queries, Keys], ctx: Context) -> Tensor:
    """The keys that each query reads, of those that have as many."""
    request, _ = layer.request(*given, None, ctx)
    return best(request, BEST, layer.search)[0, 0, BEST:]


TABLES: dict[str, Callable[[int], None]] = {"stores": stores, "indices": indices, "attention": attention}


def main() -> None:
    """Print the tables, or those that are named."""
    rounds, named = asked("Search: nearest keys, and top-k attention", f"tables ({', '.join(TABLES)}; default all)")
    for name in named or TABLES:
        TABLES[name](rounds)


if __name__ == "__main__":
    main()
