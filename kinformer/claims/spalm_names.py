"""SPALM: beside the same datastore it is better than its Transformer-XL as a kNN-LM, and looks things up for names."""

import copy
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from kinformer.claims.support.verdict import Claim, Draw, Measure
from kinformer.data.text import Text
from kinformer.members.transformer_xl import transformer_xl
from kinformer.memories.datastore import Datastore
from kinformer.models.lm import LM
from kinformer.models.spalm import SPALM
from kinformer.models.support.sweeps import NearestSweep, swept
from kinformer.models.support.taps import Tap
from kinformer.train.evaluate import evaluate
from kinformer.train.fit import fit

SIZES: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "segment": 32, "memory": 32}
PEOPLE, TIMES, ROWS, LENGTH, STEPS, LR = 100, 4, 8, 64, 120, 3e-3
KS = (4, 64)
SAYS = (
    "on one base SPALM has a lower perplexity than Transformer-XL with kNN-LM, and its gate opens for names that repeat"
)
SOURCE = "Yogatama et al., 2021, arXiv:2102.02557, table 1 and section 5"
VERBS = ("is called", "goes by", "was named", "answers to")


M = TypeVar("M", bound=LM)


class Toy(NamedTuple):
    """People who are named again and again: a text, and which of the bytes of its test are names'."""

    text: Text
    names: Bool[Tensor, " E"]


class Found(NamedTuple):
    """Bits per byte of test of each way; how much of what is said is looked up, at names and elsewhere; and the logit
    that an embedding that is looked up gives to its own token."""

    bits: dict[str, float]
    at_names: float
    elsewhere: float
    own_logit: float


def toy(seed: int, people: int = PEOPLE, times: int = TIMES) -> Toy:
    """Each person has a sign and a name of random letters; sentences say both, in another order in each part."""
    chance = Random(seed)

    def word(size: int) -> str:
        return "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(size))

    known = [(word(4).upper(), word(6)) for _ in range(people)]

    def part(times: int) -> tuple[bytes, list[bool]]:
        said, marks = "", list[bool]()
        for _ in range(times):
            for sign, name in chance.sample(known, people):
                before = f"{sign} {chance.choice(VERBS)} "
                said += f"{before}{name}. "
                marks += [False] * len(before) + [True] * len(name) + [False] * 2
        return said.encode(), marks

    (train, _), (valid, _), (test, names) = part(times), part(1), part(1)
    learned, watched, judged = (torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in (train, valid, test))
    return Toy(Text("names", learned, watched, judged), torch.tensor(names))


def trained(model: M, seed: int, text: Text, steps: int) -> M:
    """A model, trained for so many steps more."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=LR, seed=seed, valid_bytes=1000)
    return model.eval()


def found(seed: int, people: int, steps: int) -> Found:
    """A Transformer-XL, and after as many steps again: it, it with kNN-LM, and SPALM that began with its weights."""
    text, names = toy(seed, people)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        base = transformer_xl(**SIZES)
    trained(base, seed, text, steps)
    further = trained(copy.deepcopy(base), seed + 1, text, steps)
    with tempfile.TemporaryDirectory() as folder:
        sweep = NearestSweep(further, *kept(further, text, Path(folder) / "further"), k=max(KS))
        sweep.sweep(KS, sweep.spread(text.valid))
        valid, test = (swept(evaluate(sweep, part, LENGTH)) for part in (text.valid, text.test))
        spalm = trained(beside(base, *kept(base, text, Path(folder) / "base")), seed + 1, text, steps)
        looks, own_logit = looked_up(spalm, text.test), spalm.head.weight[text.test.unique().long()].square().sum(1)
        bits = {
            "Transformer-XL": test.own,
            "with kNN-LM": test.choices[valid.best],
            "SPALM": evaluate(spalm, text.test, LENGTH).value,
        }
    inside = names[1:]  # of each byte what is said before it comes
    return Found(bits, float(looks[inside].mean()), float(looks[~inside].mean()), float(own_logit.mean().detach()))


def kept(model: LM, text: Text, folder: Path) -> tuple[Datastore, str]:
    """A datastore of a model's last hidden states, and where these are."""
    store = Datastore.build(folder, model, text.train, tap=str(SIZES["depth"] - 1), dtype="float32")
    return store, Tap(model, store.tap).place


def beside(base: LM, store: Datastore, tap: str) -> SPALM:
    """SPALM with the weights of a Transformer-XL, and a gate that knows nothing yet."""
    d, body = SIZES["d"], copy.deepcopy(base.body)
    found = SPALM(256, d, body, frozen=base, store=store, tap=tap, scale=d**0.5, std=0.02, lanes=True)
    found.load_state_dict(base.state_dict(), strict=False)
    return found


@torch.no_grad()
def looked_up(model: SPALM, tokens: Shaped[Tensor, " E"]) -> Float[Tensor, " _"]:
    """1 - g: the share of what is looked up in what is said of each byte but the first."""
    row = tokens[None, :-1].long()
    return 1 - model.logits(row, model.start(*row.shape)).aux["gate"][0]


def claim(seeds: Sequence[int], people: int = PEOPLE, steps: int = STEPS) -> Claim:
    """Bits per byte on sentences whose names all stand in the datastore, and where the gate opens."""
    every = [found(seed, people, steps) for seed in seeds]
    less = [one.bits["SPALM"] - one.bits["with kNN-LM"] for one in every]
    more = [one.at_names - one.elsewhere for one in every]
    measures = (
        Measure("bits per byte of SPALM less those of kNN-LM", less, "most", 0),
        Measure("share looked up at names less elsewhere", more, "least", 0),
    )
    told = {f"bits per byte of test, {name}": f"{mean(x.bits[name] for x in every):.3f}" for name in every[0].bits}
    told["share looked up"] = (
        f"{mean(x.at_names for x in every):.3f} at names, {mean(x.elsewhere for x in every):.3f} elsewhere"
    )
    told["logit that a looked-up embedding gives to its own token"] = f"{mean(x.own_logit for x in every):.2f}"
    drawn: dict[str, Draw] = {
        "people in the datastore": partial(_draw, every),
        "share looked up": partial(_draw_shares, every),
    }
    return Claim(SAYS, SOURCE, measures, told, drawn)


def _draw(every: list[Found], axes: Any) -> None:
    _bars([one.bits for one in every], axes)
    axes.set(ylabel="bits per byte of test")


def _draw_shares(every: list[Found], axes: Any) -> None:
    _bars([{"at names": one.at_names, "elsewhere": one.elsewhere} for one in every], axes)
    axes.set(ylabel="1 - g")


def _bars(every: list[dict[str, float]], axes: Any) -> None:
    ways = list(every[0])
    axes.bar(range(len(ways)), [mean(one[name] for one in every) for name in ways], color="tab:blue", alpha=0.5)
    for one in every:
        axes.plot(range(len(ways)), list(one.values()), "o", color="tab:blue")
    axes.set_xticks(range(len(ways)), ways)
