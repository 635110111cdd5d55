"""SPALM predicts names in its datastore better than the Transformer-XL inside, by using its datastore."""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from kinformer.checkpoint.checkpoint import save
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.text import TextData
from kinformer.lab.datastore.datastore import Datastore
from kinformer.lab.plot import by_category
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.members.spalm import START, spalm
from kinformer.models.lm import LM
from kinformer.models.support.hidden_taps import Tap
from kinformer.models.support.mixing_sweeps import NearestNeighbourSweep, sweep_result

# the initial std of embeddings is the one for a `spalm` with a datastore, which starts from these weights
SIZES: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "segment": 32, "memory": 32, "std": START * 48**-0.5}
PEOPLE, TIMES, ROWS, LENGTH, STEPS, LR = 100, 4, 8, 64, 120, 3e-3
MINUTES = 2  # of a default run with three seeds
KS = (4, 64)
NAMES, SHARE = -0.5, 0.1  # largest difference at names in bits per byte, and least difference of the share looked up
SAYS = "SPALM predicts names in its datastore with fewer bits than its own Transformer-XL, and its gate opens for them"
# On WikiText-103, with long-trained embeddings, the paper also finds SPALM better than kNN-LM on the same base.
SOURCE = "Yogatama et al., 2021, arXiv:2102.02557, table 1 and section 5"
SCALE = (
    "WikiText-103 with 103 million words, which are also the datastore: SPALM reaches a test perplexity of 17.6. Its "
    "embeddings are trained long, so that a looked-up embedding raises its own token; here they start larger"
)
VERBS = ("is called", "goes by", "was named", "answers to")


M = TypeVar("M", bound=LM)


class Toy(NamedTuple):
    """A text that repeats the names of the same people, with marks at the names.

    text: train, validation and test text.
    names: True for each byte of the test text that belongs to a name.
    """

    text: TextData
    names: Bool[Tensor, " E"]


class SpalmResult(NamedTuple):
    """Results of SPALM and two other models for one seed.

    SPALM mixes its hidden states with token embeddings that it looks up in a datastore.

    bits: bits per byte of each model on the whole test text.
    names: bits per byte of each model at names.
    at_names: mean share of looked-up embeddings in the mixture of SPALM at names.
    elsewhere: the same share outside of names.
    own_logit: logit that a looked-up embedding gives to its own token, mean over tokens.
    """

    bits: dict[str, float]
    names: dict[str, float]
    at_names: float
    elsewhere: float
    own_logit: float


def toy(seed: int, people: int = PEOPLE, times: int = TIMES) -> Toy:
    """Return a text whose sentences each hold a person's code and name, both of random letters.

    The text goes through all persons again and again, each time in a new random order.

    seed: seed of the text.
    people: number of persons.
    times: number of sentences per person in train; valid and test have one.
    """
    rng = Random(seed)

    def random_word(size: int) -> str:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(size))

    pairs = [(random_word(4).upper(), random_word(6)) for _ in range(people)]

    def part(times: int) -> tuple[bytes, list[bool]]:
        text, marks = "", list[bool]()
        for _ in range(times):
            for sign, name in rng.sample(pairs, people):
                before = f"{sign} {rng.choice(VERBS)} "
                text += f"{before}{name}. "
                marks += [False] * len(before) + [True] * len(name) + [False] * 2
        return text.encode(), marks

    (train, _), (valid, _), (test, names) = part(times), part(1), part(1)
    learned, watched, judged = (torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in (train, valid, test))
    return Toy(TextData("names", learned, watched, judged), torch.tensor(names))


def train_further(model: M, seed: int, text: TextData, steps: int) -> M:
    """Train a model of any kind for some more steps and return it in eval mode.

    model: model to train.
    seed: seed of the training.
    text: text to learn from.
    steps: number of training steps.
    """
    with seeded(seed):
        fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=LR, seed=seed, valid_bytes=1000)
    return model.eval()


def measure_seed(seed: int, people: int, steps: int) -> SpalmResult:
    """Train a `spalm` without a datastore, train it further with and without one, and compare the results.

    Without a datastore a `spalm` is a Transformer-XL. Three models are compared after equally many further steps: the
    Transformer-XL, the Transformer-XL as a kNN-LM, and a `spalm` with a datastore. The `spalm` starts with the weights
    of the Transformer-XL, a datastore of its hidden states, and an untrained gate.

    seed: seed of the text and of the trainings.
    people: number of persons.
    steps: number of training steps of each of the two phases.
    """
    text, names = toy(seed, people)
    with tempfile.TemporaryDirectory() as folder, seeded(seed):
        base = train_further(spalm(**SIZES), seed, text, steps)
        home = Path(folder) / "base"
        save(base, home)
        store(Path(folder) / "store", base, text, str(home))
        joint_model = spalm(datastore=str(Path(folder) / "store"), **SIZES)
        joint_model.load_state_dict(base.state_dict(), strict=False)
        further = train_further(base, seed + 1, text, steps)
        joint_model = train_further(joint_model, seed + 1, text, steps)
        sweep = NearestNeighbourSweep(further, *store(Path(folder) / "further", further, text), k=max(KS))
        sweep.sweep(KS, sweep.spread(text.valid))
        valid, test = (sweep_result(evaluate(sweep, part, LENGTH)) for part in (text.valid, text.test))
        bits = {
            "Transformer-XL": test.own,
            "with kNN-LM": test.choices[valid.best],
            "SPALM": evaluate(joint_model, text.test, LENGTH).value,
        }
        inside = names[1:]  # position t predicts byte t + 1
        alone, joint = read(further, text.test), read(joint_model, text.test)
    at_names = {"Transformer-XL": float(alone.bits[inside].mean()), "SPALM": float(joint.bits[inside].mean())}
    assert joint.looked_up is not None
    share, elsewhere = (float(joint.looked_up[rows].mean()) for rows in (inside, ~inside))
    own_logit = joint_model.head.weight[text.test.unique().long()].square().sum(1).mean()
    return SpalmResult(bits, at_names, share, elsewhere, float(own_logit.detach()))


def store(folder: Path, model: LM, text: TextData, home: str = "") -> tuple[Datastore, str]:
    """Build a datastore of a model's last hidden states over the train text.

    The result is the datastore, and the name of the layer in the model whose output it holds.

    folder: folder for the datastore.
    model: model that computes the hidden states.
    text: text, whose train part is stored.
    home: folder of the model's checkpoint, if any.
    """
    datastore = Datastore.build(folder, model, text.train, tap=str(SIZES["depth"] - 1), dtype="float32", home=home)
    return datastore, Tap(model, datastore.tap).place


class SpalmReading(NamedTuple):
    """Predictions of a model for each byte of a text.

    bits: bits of each byte except the first: minus the base-2 logarithm of its probability.
    looked_up: share 1 - g of looked-up embeddings in the mixture for each byte, with the gate g of SPALM; None for a
        model without a datastore.
    """

    bits: Float[Tensor, " _"]
    looked_up: Float[Tensor, " _"] | None


@torch.no_grad()
def read(model: LM, tokens: Shaped[Tensor, " E"]) -> SpalmReading:
    """Return the predictions of a model for each byte of a text, given all earlier bytes.

    model: model to evaluate.
    tokens: bytes of the text.
    """
    row = tokens[None].long()
    out = model.logits(row[:, :-1], model.start(1, row.shape[1] - 1))
    bits = -out.y.log_softmax(-1).gather(-1, row[:, 1:, None])[0, :, 0] / math.log(2)
    return SpalmReading(bits, 1 - out.aux["gate"][0] if "gate" in out.aux else None)


def claim(seeds: Sequence[int], people: int = PEOPLE, steps: int = STEPS) -> Claim:
    """Compare SPALM with a Transformer-XL at names in its datastore, and its gate at names and elsewhere.

    SPALM mixes hidden states of a Transformer-XL with token embeddings that it looks up in a datastore. Its gate g
    gives the share 1 - g to the embeddings. The claim holds if two conditions are met. At names, SPALM needs at least
    0.5 bits per byte less than a Transformer-XL after equally many training steps. The share 1 - g is at least 0.1
    larger at names than elsewhere. A Transformer-XL as a kNN-LM is reported for comparison.

    Measured with three seeds, the first condition is not resolved: the difference is -0.50 with twice its standard
    error of 0.63. Some trainings learn to use the datastore within these steps, and some do not.

    seeds: seeds of the texts and of the trainings.
    people: number of persons.
    steps: number of training steps of each of the two phases.
    """
    every = [measure_seed(seed, people, steps) for seed in seeds]
    less = [run.names["SPALM"] - run.names["Transformer-XL"] for run in every]
    differences = [run.at_names - run.elsewhere for run in every]
    measures = (
        Measure("bits per byte at names, SPALM minus its Transformer-XL", less, "most", NAMES, no_effect=0),
        Measure("share looked up, at names minus elsewhere", differences, "least", SHARE, no_effect=0),
    )
    facts = {f"bits per byte on test, {name}": f"{mean(x.bits[name] for x in every):.3f}" for name in every[0].bits}
    facts |= {f"bits per byte at names, {name}": f"{mean(x.names[name] for x in every):.3f}" for name in every[0].names}
    facts["share looked up"] = (
        f"{mean(x.at_names for x in every):.3f} at names, {mean(x.elsewhere for x in every):.3f} elsewhere"
    )
    facts["logit that a looked-up embedding gives to its own token"] = f"{mean(x.own_logit for x in every):.2f}"
    facts["the paper's scale"] = SCALE
    plots = [
        by_category(title, unit, {name: [numbers[name] for numbers in runs] for name in runs[0]}, bars=True)
        for title, unit, runs in (
            ("people in the datastore", "bits per byte on test", [run.bits for run in every]),
            ("names", "bits per byte at names", [run.names for run in every]),
            ("share looked up", "1 - g", [{"at names": x.at_names, "elsewhere": x.elsewhere} for x in every]),
        )
    ]
    return Claim(SAYS, SOURCE, measures, facts, plots)
