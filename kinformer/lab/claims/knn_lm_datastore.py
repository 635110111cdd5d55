"""kNN-LM: a trained model is better beside a datastore, more so beside a larger one, and leans on it out of domain."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.data.text import TextData
from kinformer.lab.datastore.datastore import Datastore
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt
from kinformer.models.lm import LM
from kinformer.models.support.sweeps import Choice, NearestSweep, Swept, swept
from kinformer.models.support.taps import Tap

SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": 2}
LENGTH, ROWS, STEPS, LR = 64, 16, 300, 3e-3
LEARNED, BYTES, SMALL, JUDGED = 200_000, 40_000, 10_000, 6_000  # bytes: of training, two datastores, valid and test
PIECE = 500  # bytes of a text that stand together, the pieces lying all over it
KS = (16, 256)
HERE, AWAY, MORE = "English of Python's manual", "Python source", "KINFORMER_TEXTS"
SAYS = (
    "a datastore lowers perplexity, a larger one and more neighbours lower it more; out of domain its share is larger"
)
SOURCE = "Khandelwal et al., 2020, arXiv:1911.00172, tables 1, 3 and 4 and figures 3 and 4"


class Found(NamedTuple):
    """What a sweep says of valid and of test."""

    valid: Swept
    test: Swept

    def tuned(self, k: int) -> float:
        """Bits of test with so many neighbours, all else the best of valid."""
        return self.test.choices[min(self.at(k), key=self.valid.choices.__getitem__)]

    def at(self, k: int) -> list[Choice]:
        """The choices of so many neighbours."""
        return [one for one in self.valid.choices if one.k == k]


def domains() -> dict[str, tuple[SplitTokens, SplitTokens, SplitTokens]]:
    """Of each domain train, valid and test: the one of the training first, then what it has not seen."""
    found = {HERE: _manual(), AWAY: _split("stdlib")}
    for path in filter(None, os.environ.get(MORE, "").split(os.pathsep)):
        found[Path(path).name] = _split(path)
    return found


def _split(where: str) -> tuple[SplitTokens, SplitTokens, SplitTokens]:
    text = read_spec(f"text={where}")
    assert isinstance(text, TextData)
    return SplitTokens(text.train[:LEARNED]), SplitTokens(text.valid), SplitTokens(text.test)


def _manual() -> tuple[SplitTokens, SplitTokens, SplitTokens]:
    """The help pages that Python brings, in an order of their hashes, the last ones for valid and test."""
    from pydoc_data.topics import topics

    order = sorted(topics, key=lambda name: hashlib.sha256(name.encode()).digest())
    pages = torch.frombuffer(bytearray("\n\n".join(topics[name] for name in order).encode()), dtype=torch.uint8)
    first, second = len(pages) * 8 // 10, len(pages) * 9 // 10
    return SplitTokens(pages[:first][:LEARNED]), SplitTokens(pages[first:second]), SplitTokens(pages[second:])


def sampled(part: SplitTokens, size: int) -> SplitTokens:
    """So many bytes from all over a text, each piece read by itself."""
    count = max(size // PIECE, 1)
    firsts = torch.linspace(0, max(len(part.tokens) - PIECE, 0), count).long()
    return SplitTokens(torch.cat([part.tokens[at : at + PIECE] for at in firsts.tolist()]), torch.arange(count) * PIECE)


def trained(seed: int, text: SplitTokens, steps: int) -> LM:
    """A byte model of some bytes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = gpt(**SIZES, length=LENGTH)
        none = torch.zeros(2, dtype=torch.uint8)
        fit(model, TextData("bytes", text.tokens, none, none), steps=steps, batch=ROWS, length=LENGTH, lr=LR, seed=seed)
    return model.eval()


def beside(model: LM, parts: tuple[SplitTokens, SplitTokens, SplitTokens], size: int, judged: int) -> Found:
    """Every choice beside a datastore of so many bytes."""
    train, *measured = parts
    with tempfile.TemporaryDirectory() as folder:
        store = Datastore.build(Path(folder) / "store", model, sampled(train, size), dtype="float32")
        one = NearestSweep(model, store, Tap(model, store.tap).place, k=max(KS))
        one.sweep(KS, one.spread(train.tokens))
        return Found(*(swept(evaluate(one, sampled(part, judged), LENGTH)) for part in measured))


def claim(
    seeds: Sequence[int], steps: int = STEPS, size: int = BYTES, small: int = SMALL, judged: int = JUDGED
) -> Claim:
    """What was trained on English, beside datastores of that and of texts it has not seen."""
    texts = domains()
    found: dict[str, list[Found]] = {name: [] for name in texts}
    less: list[Found] = []
    for seed in seeds:
        model = trained(seed, texts[HERE][0], steps)
        less.append(beside(model, texts[HERE], small, judged))
        for name, parts in texts.items():
            found[name].append(beside(model, parts, size, judged))
    few, many, here = min(KS), max(KS), found[HERE]
    share = {name: [one.valid.best.weight for one in of] for name, of in found.items()}
    alone, fewer, smaller = ([x.test.own for x in here], [x.tuned(few) for x in here], [x.tuned(many) for x in less])
    measures = (
        Measure("bits per byte with neighbours less without", _less(here, many, alone), "most", 0),
        Measure(f"with {size:,} entries less with {small:,}", _less(here, many, smaller), "most", 0),
        Measure(f"with {many} neighbours less with {few}", _less(here, many, fewer), "most", 0),
        Measure(
            "bits at the ends of the sweep of lambda less at the best", [_bend(one.valid) for one in here], "least", 0
        ),
        Measure(
            f"best lambda with {size:,} entries less with {small:,}",
            [near - one.valid.best.weight for near, one in zip(share[HERE], less, strict=True)],
            "least",
            0,
        ),
        *(
            Measure(
                f"best lambda out of domain, {name}, less that in domain",
                [away - near for away, near in zip(share[name], share[HERE], strict=True)],
                "least",
                0,
            )
            for name in list(texts)[1:]
        ),
    )
    told = {
        f"bits per byte of test, {name}": f"{mean(x.test.own for x in of):.3f} alone, "
        f"{mean(x.tuned(many) for x in of):.3f} beside a datastore of it, best lambda {mean(share[name]):.2f}"
        for name, of in found.items()
    }
    told["ran on"] = f"{', '.join(texts)}; {MORE}=FILE{os.pathsep}FILE names more texts, such as novels and WikiText-2"
    return Claim(SAYS, SOURCE, measures, told, {f"valid, {many} neighbours, {size:,} entries": partial(_draw, found)})


def _bend(one: Swept) -> float:
    """How much worse than the best share both the smallest and the largest are, all else as of the best."""
    line = {choice.weight: bits for choice, bits in one.choices.items() if choice[:2] == one.best[:2]}
    return min(line[min(line)], line[max(line)]) - line[one.best.weight]


def _less(found: list[Found], k: int, other: list[float]) -> list[float]:
    return [one.tuned(k) - bits for one, bits in zip(found, other, strict=True)]


def _draw(found: dict[str, list[Found]], axes: Any) -> None:
    for name, of in found.items():
        swept = of[0].valid
        best = min(of[0].at(max(KS)), key=swept.choices.__getitem__)
        curve = {one.weight: bits for one, bits in swept.choices.items() if one[:2] == best[:2]}
        (line,) = axes.plot(list(curve), list(curve.values()), marker=".", label=name)
        axes.plot([best.weight], [swept.choices[best]], "o", color=line.get_color())
        axes.axhline(swept.own, linestyle="--", color=line.get_color(), alpha=0.5)
    axes.set(xlabel="lambda", ylabel="bits per byte")
    axes.legend(fontsize=8, title="dashed: the model alone", title_fontsize=8)
