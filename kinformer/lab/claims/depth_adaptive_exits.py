"""Depth-Adaptive Transformer: tokens leave after less than half of the layers, easy ones first, as right as ever."""

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.lab.claims.support.verdict import Claim, Draw, Measure
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.models.multi_exit_seq2seq import MultiExitSeq2Seq
from kinformer.nn.exits.thresholds import MeasuredThresholds, score_exits, search

KINDS, ASKED, DEPTH = 8, 8, 6  # values there are, questions of a row, layers
STEPS, MORE = 200, 80  # of the layers, and of these with a classifier
ROWS, RATE = 32, 5e-3
JUDGED, DRAWS = 512, 2000
PRICE = 0.1  # a layer's, for each token
LEARNT = 0.95  # of the answers, by all layers: a model that learned nothing loses nothing by leaving early
CLASSIFIERS, ORACLES = ("sequence", "multinomial", "geometric"), ("likelihood", "correctness")
SAYS = "tokens leave after less than half of the layers, hard ones later than easy ones, and are as often right"
SOURCE = "Elbayad et al., 2019, arXiv:1910.10073, abstract and section 4"


class Batch(NamedTuple):
    """Rows of questions and answers; which are hard, and what a row's source says: that some are."""

    source: Int[Tensor, "B 1"]
    target: TokenBatch
    hard: Bool[Tensor, "B Q"]


class Taken(NamedTuple):
    """Layers that answers take, also by whether they are hard, and the share that is right, also of the full model."""

    easy: float
    hard: float
    layers: float
    right: float
    full: float


def rows(count: int, chance: torch.Generator) -> Batch:
    """Half of the answers are easy, the value asked with; half are hard, that of the question before.

    A third of the rows asks easy questions alone. A layer reads the token before and no further (`Band(1)`): an easy
    answer wants one layer, a hard one two, unless the answer before it was easy and so says it.
    """
    mixed = torch.rand(count, 1, generator=chance) < 2 / 3
    hard = mixed & (torch.rand(count, ASKED, generator=chance) < 6 / 7)
    hard[:, 0] = False
    value = torch.randint(KINDS, (count, ASKED), generator=chance)
    asked, answer = value + KINDS * (1 + hard.long()), torch.where(hard, value.roll(1, 1), value)
    scored = torch.tensor([[False, True]]).repeat(count, ASKED)
    return Batch(mixed.long(), TokenBatch(torch.stack([asked, answer], -1).flatten(1), scored), hard)


def built(**of: Any) -> MultiExitSeq2Seq:
    """A small model, not trained."""
    model = depth_adaptive(
        d=32,
        depth=DEPTH,
        heads=2,
        form="encoder_decoder",
        pattern="Band(1)",
        length=2 * ASKED + 1,
        vocab=3 * KINDS,
        **of,
    )
    assert isinstance(model, MultiExitSeq2Seq)
    return model


def train(model: MultiExitSeq2Seq, steps: int, seed: int) -> MultiExitSeq2Seq:
    """The model after so many steps, the rate warmed up and then falling to 0."""
    optimiser, chance = torch.optim.Adam(model.parameters(), RATE), torch.Generator().manual_seed(seed)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 30) * (1 - step / steps)
        batch = rows(ROWS, chance)
        optimiser.zero_grad()
        model((batch.source, batch.target)).total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


def begun(model: MultiExitSeq2Seq, seed: int, **of: Any) -> MultiExitSeq2Seq:
    """A model with a classifier of its own over the same layers."""
    torch.manual_seed(seed)
    other = built(**of)
    other.load_state_dict({**other.state_dict(), **model.state_dict()})
    return other


@torch.no_grad()
def taken(model: MultiExitSeq2Seq, batch: Batch) -> Taken:
    """What answers take where tokens leave, as they are read one after the other."""
    read, wanted = model.taught((batch.source, batch.target))
    out, answers = model.logits(read, source=batch.source), slice(1, -1, 2)
    layers = out.aux["exit"][:, answers]
    right = (out.y.argmax(-1) == wanted)[:, answers]
    easy, hard = (float(layers[some].mean()) for some in (~batch.hard, batch.hard))
    return Taken(easy, hard, float(layers.mean()), float(right.double().mean()), alike(model, batch)[-1])


@torch.no_grad()
def alike(model: MultiExitSeq2Seq, batch: Batch) -> list[float]:
    """The share of right answers if all leave at the first exit, at the second, and so on."""
    _, logits, wanted, _ = model.every_exit((batch.source, batch.target))
    return [float((one.argmax(-1) == wanted)[:, 1:-1:2].double().mean()) for one in logits]


def searched(model: MultiExitSeq2Seq, found: Batch, batch: Batch) -> list[MeasuredThresholds]:
    """Thresholds by the random search on some rows, each with what it is worth on others, where tokens leave by it."""
    kept = search(score_exits(model, [(found.source, found.target)], right=True).measure, DEPTH, draws=DRAWS)
    judged = []
    for one in kept:
        model.exits.rule.leave_at(one.threshold)
        its = taken(model, batch)
        judged.append(MeasuredThresholds(one.threshold, its.right, its.layers))
    return judged


def claim(seeds: Sequence[int], steps: int = STEPS, more: int = MORE) -> Claim:
    """All layers are trained once for each seed, then on with each of three classifiers by two oracles.

    Beside them thresholds on the largest probability, which nothing learns.
    """
    found: dict[str, list[Taken]] = {}
    curves, levels = [], []
    for seed in seeds:
        chance = torch.Generator().manual_seed(10_000 + seed)
        first, second = rows(JUDGED, chance), rows(JUDGED, chance)
        torch.manual_seed(seed)
        plain = train(built(classifier="probability"), steps, seed)
        levels.append(alike(plain, second))
        for classifier in CLASSIFIERS:
            price = PRICE * (2 * ASKED if classifier == "sequence" else 1)  # merits of a row are summed
            for oracle in ORACLES:
                model = begun(plain, seed, classifier=classifier, oracle=oracle, price=price)
                its = taken(train(model, more, 20_000 + seed), second)
                found.setdefault(f"{classifier}, {oracle}", []).append(its)
        curves.append(searched(plain, first, second))
    measures = [one for name in CLASSIFIERS for one in _measures(name, found[f"{name}, likelihood"])]
    drawn: dict[str, Draw] = {
        "right answers by layers": partial(_draw, found, curves, levels),
        "layers by question": partial(_bars, found),
    }
    told = {name: _told(its) for name, its in found.items()}
    told["right if all leave at exit 1, 2, .."] = ", ".join(f"{mean(one):.3f}" for one in zip(*levels, strict=True))
    return Claim(SAYS, SOURCE, tuple(measures), told, drawn)


def _measures(name: str, found: list[Taken]) -> list[Measure]:
    share = [one.layers / DEPTH for one in found]
    lost = [one.full - one.right for one in found]
    measures = [
        Measure(f"{name}: share of the layers", share, "most", 0.5),
        Measure(f"{name}: right answers lost to the full model", lost, "most", 0.01),
        Measure(f"{name}: right answers of the full model", [run.full for run in found], "least", LEARNT, 1 / KINDS),
    ]
    if name == "sequence":  # of one row all leave alike
        return measures
    later = [one.hard - one.easy for one in found]
    return [*measures, Measure(f"{name}: layers that hard answers take more", later, "least", 0.0)]


def _told(found: list[Taken]) -> str:
    easy, hard, layers, right, full = (mean(values) for values in zip(*found, strict=True))
    return (
        f"{layers:.2f} of {DEPTH} layers, easy {easy:.2f}, hard {hard:.2f}; right {right:.3f}, by all layers {full:.3f}"
    )


def _draw(
    found: dict[str, list[Taken]], curves: list[list[MeasuredThresholds]], levels: list[list[float]], axes: Any
) -> None:
    for n, (level, curve) in enumerate(zip(levels, curves, strict=True)):
        named = (None, None) if n else ("all at one exit", "probability, thresholds searched")
        axes.plot(range(1, DEPTH + 1), level, ".--", color="tab:gray", label=named[0])
        layers, right = [one.layers for one in curve], [one.quality for one in curve]
        axes.plot(layers, right, ".-", color="tab:red", label=named[1])
    for place, (name, its) in enumerate(found.items()):
        style = {"marker": "o^"[place % 2], "color": f"C{place // 2}", "linestyle": "", "alpha": 0.7}
        axes.plot([one.layers for one in its], [one.right for one in its], label=name, **style)
    axes.set(xlabel=f"layers a token takes, of {DEPTH}", ylabel="share of answers that are right")
    axes.set(xlim=(0.9, DEPTH + 0.1), ylim=(None, 1.02))
    axes.legend(fontsize=7, loc="lower right")


def _bars(found: dict[str, list[Taken]], axes: Any) -> None:
    for place, its in enumerate(found.values()):
        for shift, name, colour in ((-0.18, "easy", "tab:green"), (0.18, "hard", "tab:red")):
            layers = [getattr(one, name) for one in its]
            axes.bar(place + shift, mean(layers), 0.34, color=colour, label=None if place else name)
            axes.plot([place + shift] * len(layers), layers, ".", color="black", markersize=4)
    axes.set(ylabel="layers", xticks=range(len(found)), ylim=(0, DEPTH))
    axes.set_xticklabels([name.replace(", ", "\n") for name in found], fontsize=6)
    axes.legend()
