"""Approximations of attention on trained queries, keys and values: the error of what is read, against its cost."""

import json
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import torch
from interleave import Contender, Middle, middle, race, ready, setup
from matplotlib.figure import Figure
from torch import Tensor, nn

from kinformer import Context
from kinformer.core.after_step import after_step
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.mechanism import Mechanism
from kinformer.core.model import Model
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.lab.claims.support.claim_models import HeadInputs, heads
from kinformer.lab.cost.cost import counting
from kinformer.lab.data.spec import read_spec
from kinformer.lab.train.fit import fit
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.clustered_improved import ImprovedClustered
from kinformer.nn.mechanisms.delayed import Delayed
from kinformer.nn.mechanisms.hamming_kmeans import HammingKMeans
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.mechanisms.low_rank_band import LowRankBand
from kinformer.nn.mechanisms.lsh import LSH
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.nystrom import Nystrom, NystromIdentity
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.shorteners.conv_shortener import ConvShortener
from kinformer.nn.shorteners.linformer import Linformer
from kinformer.nn.shorteners.mean_pooled import MeanPooled

LENGTHS, TRAINED = (1_024, 4_096), 1_024
WIDTH, HEADS, DEPTH = 64, 2, 2  # of a head, in a layer, layers: all heads of all layers are read side by side
ALL = HEADS * DEPTH
STEPS, FITTED = 300, 20  # of a model's training, and of an approximation's own parameters
TEXT = "text=stdlib"
RESULTS = Path(__file__).parent / "results"
Make = Callable[[int, int], Mechanism]  # of a budget and a length


class Approximation(NamedTuple):
    """What is measured: a mechanism by its budget, and whether it reads earlier tokens alone.

    `rate` is that at which parameters, where it has any, are trained on another row to read as softmax does: on a short
    one, or with `whole` on one as long as what is measured.
    """

    name: str
    budgets: tuple[int, ...]
    make: Make
    causal: bool = False
    rate: float = 0.0
    whole: bool = False


class Point(NamedTuple):
    """Of a budget: the error of the output over its size, multiplications and time over those of dense attention."""

    budget: int
    error: float
    flops: float
    seconds: Middle


def near_and_far(window: int, features: int) -> Mechanism:
    """A window exactly, FAVOR+ behind it."""
    near = Softmax(Causal() & Band(window - 1))
    return Merged(near, Delayed(LinearAttention(FAVOR(WIDTH, features)), window))


def shortened(shorten: Linformer | ConvShortener) -> Mechanism:
    """Softmax over few keys that are means of as many that follow one another, before they are fitted."""
    with torch.no_grad():
        for x in shorten.parameters():
            if isinstance(shorten, Linformer):  # [heads length k]
                x.copy_(torch.eye(x.shape[2]).repeat_interleave(x.shape[1] // x.shape[2], 0) * x.shape[2] / x.shape[1])
            else:  # [heads size K K] of weights, [heads K] of biases
                x.copy_(torch.eye(x.shape[-1]) / shorten.size if x.dim() > 2 else torch.zeros_like(x))
    return Shortened(Softmax(Full()), shorten)


def fourier(directions: int) -> RandomFourier:
    """Of queries and keys at length 1, of learned temperature, divided by no less than a tenth."""
    return RandomFourier(ALL, WIDTH, directions, floor=0.1)


def routing(clusters: int, pattern: Pattern) -> Mechanism:
    """Of keys as they are, with centroids that move fast."""
    return Routing(ALL, WIDTH, clusters, pattern=pattern, norm="none", decay=0.8)


ROWS = (
    Approximation("window", (32, 128, 512), lambda n, _: Softmax(Band(n // 2))),
    Approximation("FAVOR+", (32, 128, 512), lambda n, _: FullLinearAttention(FAVOR(WIDTH, n))),
    Approximation("RFA", (32, 128), lambda n, _: FullLinearAttention(fourier(n)), rate=1e-2),
    Approximation(
        "Linformer", (32, 128, 512), lambda n, size: shortened(Linformer(size, n, heads=ALL)), rate=1e-3, whole=True
    ),
    Approximation("pooled", (16, 4), lambda n, _: Shortened(Softmax(Full()), MeanPooled(n))),
    Approximation("convolved", (16, 4), lambda n, _: shortened(ConvShortener(n, WIDTH)), rate=1e-3),
    Approximation("clustered", (25, 100), lambda n, _: Clustered(HammingKMeans(WIDTH, n))),
    Approximation("clustered, improved", (25, 100), lambda n, _: ImprovedClustered(HammingKMeans(WIDTH, n))),
    Approximation("ProbSparse", (2, 5, 20), lambda n, _: ProbSparse(factor=n)),
    Approximation("Nystrom", (32, 128), lambda n, _: Nystrom(n)),
    Approximation("CSALR", (32, 8), lambda n, _: NystromIdentity(n)),
    Approximation("low rank and band", (8, 16), lambda n, _: LowRankBand(ALL, Band(16), Full(), n), rate=1e-2),
    Approximation("LSH", (64, 16), lambda n, length: LSH(ALL, WIDTH, length // n, pattern=Full())),
    Approximation("routing", (32, 8), lambda n, _: routing(n, Full()), rate=1e-2),
    Approximation("window", (32, 128, 512), lambda n, _: Softmax(Causal() & Band(n - 1)), causal=True),
    Approximation("FAVOR+", (32, 128, 512), lambda n, _: LinearAttention(FAVOR(WIDTH, n)), causal=True),
    Approximation("window and FAVOR+", (32, 128), lambda n, _: near_and_far(n, n), causal=True),
    Approximation("RFA", (32, 128), lambda n, _: LinearAttention(fourier(n)), causal=True, rate=1e-2),
    Approximation("pooled", (16, 4), lambda n, _: Shortened(Softmax(Causal()), MeanPooled(n)), causal=True),
    Approximation("ProbSparse", (2, 5, 20), lambda n, _: ProbSparse(factor=n, causal=True), causal=True),
    Approximation(
        "low rank and band",
        (8, 16),
        lambda n, _: LowRankBand(ALL, Causal() & Band(16), Causal(), n),
        causal=True,
        rate=1e-2,
    ),
    Approximation("LSH", (64, 16), lambda n, length: LSH(ALL, WIDTH, length // n), causal=True),
    Approximation("routing", (32, 8), lambda n, _: routing(n, Causal()), causal=True, rate=1e-2),
)


class Read(nn.Module):
    """A mechanism on given heads. The sides that it wants of a layer's input are learned from queries and keys here."""

    def __init__(self, mechanism: Mechanism):
        super().__init__()
        self.mechanism, sizes = mechanism, HeadSizes(ALL, ALL, ALL, WIDTH, WIDTH)
        first = torch.eye(WIDTH).expand(ALL, -1, -1)
        self.extras, self.key_extras = (
            nn.ParameterDict({name: first[..., : side.width].clone() for name, side in extras.items()})
            for extras in (mechanism.query_extras(sizes), mechanism.key_extras(sizes))
        )

    def forward(self, inputs: HeadInputs) -> Tensor:
        q, k, v = inputs
        ctx = Context.of_sequence(q[:, 0])
        queries = Queries(q, ctx.by_head, {name: q @ w for name, w in self.extras.items()})
        keys = Keys(k, v, ctx.by_head, {name: k @ w for name, w in self.key_extras.items()})
        out = self.mechanism(queries, keys, None, ctx)
        self.stats = out.stats
        return out.y.y


def trained(causal: bool) -> dict[int, tuple[HeadInputs, HeadInputs]]:
    """Heads of a small model that learned text, for each length: of a row to fit to, and of one to measure on."""
    of: dict[str, int] = {"d": WIDTH * HEADS, "depth": DEPTH, "heads": HEADS}
    model: Model = gpt(**of, position="rotary") if causal else bert(**of, position="rotary", norm="pre")
    run = fit(model, TEXT, steps=STEPS, batch=1, length=TRAINED, lr=2e-3)
    print(f"{'a decoder' if causal else 'an encoder'}: {run.points[-1].valid:.2f} bits per byte", flush=True)
    text = read_spec(TEXT).valid  # type: ignore[attr-defined]

    def row(n: int, length: int) -> HeadInputs:
        tokens = torch.as_tensor(text[n * length : (n + 1) * length]).long()[None]
        return HeadInputs(*(torch.cat(x, 1) for x in zip(*heads(model, tokens), strict=True)))

    return {length: (row(0, length), row(1, length)) for length in LENGTHS}


def dense(causal: bool) -> Read:
    return Read(Softmax(Causal() if causal else Full(), lse=False))


def fitted(read: Read, inputs: HeadInputs, expected: Tensor, rate: float) -> Read:
    """Its parameters trained to read as softmax does, and what moves with steps moved."""
    parameters = list(read.parameters())
    optimiser = torch.optim.Adam(parameters, rate) if parameters else None
    read.train()
    for step in range(FITTED):
        loss = (read(inputs) - expected).square().mean()
        if optimiser is not None:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        after_step(read.mechanism, step / FITTED, read.stats)
    return read.eval()


@torch.no_grad()
def error(read: Read, inputs: HeadInputs, expected: Tensor) -> float:
    """The root of squared differences over that of what softmax reads."""
    return float((read(inputs) - expected).norm() / expected.norm())


@torch.no_grad()
def multiplied(read: Read, inputs: HeadInputs) -> int:
    with counting() as tally:
        read(inputs)
    return tally.flops


def measured(
    rows: list[Approximation], inputs: dict[int, tuple[HeadInputs, HeadInputs]], length: int, rounds: int
) -> dict[str, list[Point]]:
    """Every approximation of a panel at every budget."""
    at, causal, reads = inputs[length][1], rows[0].causal, dict[tuple[str, int], Read]()
    with torch.no_grad():
        whole = dense(causal).eval()
        expected = {n: whole(first) for n, (first, _) in inputs.items()}
        target = whole(at)
    for row in rows:
        for budget in row.budgets:
            read, n = Read(row.make(budget, length)).eval(), length if row.whole else LENGTHS[0]
            reads[row.name, budget] = fitted(read, inputs[n][0], expected[n], row.rate) if row.rate else read
    seconds = race({"dense": timed(whole, at)} | {f"{key}": timed(read, at) for key, read in reads.items()}, rounds)
    flops, points_by_name = multiplied(whole, at), dict[str, list[Point]]()
    for (name, budget), read in reads.items():
        took = middle(mine / dense for mine, dense in zip(seconds[f"{(name, budget)}"], seconds["dense"], strict=True))
        point = Point(budget, error(read, at, target), multiplied(read, at) / flops, took)
        points_by_name.setdefault(name, []).append(point)
        kind = "causal" if causal else "both ways"
        print(
            f"{length:>6,}  {kind:<10}{name:<22}{budget:>5}  error {point.error:.3f}  multiplications {point.flops:.3f}"
            f"  time {took.median:.2f} [{took.low:.2f}, {took.high:.2f}]",
            flush=True,
        )
    return points_by_name


def timed(read: Read, inputs: HeadInputs) -> Contender:
    def call() -> object:
        with torch.no_grad():
            return read(inputs)

    return ready(call)


def equal_cost(inputs: HeadInputs, length: int) -> None:
    """A window and an estimate behind it, against either alone that multiplies as much."""
    with torch.no_grad():
        expected, whole = dense(True).eval()(inputs), multiplied(dense(True), inputs)
    alone: dict[str, Callable[[int], Mechanism]] = {
        "window": lambda n: Softmax(Causal() & Band(n - 1)),
        "FAVOR+": lambda n: LinearAttention(FAVOR(WIDTH, n)),
    }
    for n in (16, 32, 64, 128):
        combined = Read(near_and_far(n, n)).eval()
        budget = multiplied(combined, inputs)
        says = [f"window {n} and FAVOR+ of {n}: {error(combined, inputs, expected):.3f}"]
        for name, make in alone.items():
            most = largest(partial(within, make, inputs, budget), length)
            says.append(f"{name} {most}: {error(Read(make(most)).eval(), inputs, expected):.3f}")
        print(f"{length:>6,}  {budget / whole:.3f} of dense  " + "; ".join(says), flush=True)
    print()


def within(make: Callable[[int], Mechanism], inputs: HeadInputs, budget: int, size: int) -> bool:
    return multiplied(Read(make(size)), inputs) <= budget


def largest(good: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that is good, where smaller ones are."""
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low


def main() -> None:
    rounds = setup(f"{__doc__} float32, batch 1, {ALL} heads of {WIDTH}, forward.")
    results: dict[str, dict[str, list[Point]]] = {}
    for causal in (False, True):
        of = trained(causal)
        rows = [row for row in ROWS if row.causal == causal]
        for length in LENGTHS:
            kind = "only earlier keys" if causal else "all keys"
            results[f"{kind}, {length:,} tokens"] = measured(rows, of, length, rounds)
            print(flush=True)
            if causal:
                equal_cost(of[length][1], length)
    show(results)


def show(results: dict[str, dict[str, list[Point]]]) -> None:
    """bench/results/approximations.json and .png: by multiplications above, by time below."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "approximations.json").write_text(json.dumps(results, indent=1) + "\n")
    figure = Figure(figsize=(5 * len(results), 9.5), layout="constrained")
    names = list(dict.fromkeys(row.name for row in ROWS))
    styles = {
        name: (f"C{n % 10}", mark) for n, (name, mark) in enumerate(zip(names, cycle("os^DvPX*<>dh"), strict=False))
    }
    for down, cost in enumerate(("multiplications", "time")):
        for across, (title, by) in enumerate(results.items()):
            axes = figure.add_subplot(2, len(results), down * len(results) + across + 1)
            for name, points in by.items():
                colour, mark = styles[name]
                x = [point.seconds.median if down else point.flops for point in points]
                line = "-" if names.index(name) < 10 else "--"
                axes.plot(x, [point.error for point in points], color=colour, marker=mark, linestyle=line, label=name)
            axes.axvline(1, color="gray", linewidth=0.8)
            axes.set(xscale="log", yscale="log", xlabel=f"{cost} over dense attention's", title="" if down else title)
            axes.set_ylim(0.02, 2)  # what is further off is of no use
            axes.set_yticks(
                [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2], ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"], minor=False
            )
            axes.minorticks_off()
            if not across:
                axes.set_ylabel("error of the output over its size")
    lines = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=7, fontsize=9)
    figure.savefig(RESULTS / "approximations.png", dpi=110)


if __name__ == "__main__":
    main()
