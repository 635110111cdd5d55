"""A datastore improves a trained model (kNN-LM), and its share is larger out of domain."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.data.text import TextData
from kinformer.lab.data.text import read as read_text
from kinformer.lab.datastore.datastore import Datastore
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt
from kinformer.models.lm import LM
from kinformer.models.support.hidden_taps import Tap
from kinformer.models.support.mixing_sweeps import NearestNeighbourSweep, SweepChoice, SweepResult, sweep_result

SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": 2}
LENGTH, ROWS, STEPS, LR = 64, 16, 300, 3e-3
MINUTES = 3  # of a default run with three seeds
# bytes: for training, for two datastores, for valid and for test
LEARNED, BYTES, SMALL, JUDGED = 200_000, 40_000, 10_000, 6_000
PIECE = 500  # bytes of a contiguous piece; pieces are spread over the text
KS = (16, 256)
IN_DOMAIN, OUT_OF_DOMAIN, MORE = "English of Python's manual", "Python source", "KINFORMER_TEXTS"
SAYS = (
    "a datastore lowers perplexity, a larger one and more neighbours lower it more, "
    "and its interpolation weight (lambda) is larger out of domain"
)
SOURCE = "Khandelwal et al., 2019, arXiv:1911.00172, tables 1, 3 and 4 and figures 2, 4 and 5"


class DatastoreSweep(NamedTuple):
    """Bits per byte of a kNN-LM with every choice of its settings: neighbours k, lambda and temperature.

    Lambda is the share of the datastore in the mixture of predictions.

    valid: bits per byte of each choice on validation data.
    test: bits per byte of each choice on test data.
    """

    valid: SweepResult
    test: SweepResult

    def tuned_bits(self, k: int) -> float:
        """Return test bits per byte with k neighbours; the other settings have the fewest validation bits."""
        return self.test.choices[min(self.choices_with(k), key=self.valid.choices.__getitem__)]

    def choices_with(self, k: int) -> list[SweepChoice]:
        """Return all choices of settings that have k neighbours."""
        return [choice for choice in self.valid.choices if choice.k == k]


def domains() -> dict[str, tuple[SplitTokens, SplitTokens, SplitTokens]]:
    """Return train, validation and test text of each domain by name.

    The first domain is the one that the model is trained on, English. The others, such as program code, are unseen.
    """
    texts = {IN_DOMAIN: _manual(), OUT_OF_DOMAIN: _split("stdlib")}
    for path in filter(None, os.environ.get(MORE, "").split(os.pathsep)):
        texts[Path(path).name] = _split(path)
    return texts


def _split(where: str) -> tuple[SplitTokens, SplitTokens, SplitTokens]:
    text = read_text(where)
    return SplitTokens(text.train[:LEARNED]), SplitTokens(text.valid), SplitTokens(text.test)


def _manual() -> tuple[SplitTokens, SplitTokens, SplitTokens]:
    """Return the help pages of Python, shuffled by their hashes; the last ones are valid and test."""
    from pydoc_data.topics import topics

    order = sorted(topics, key=lambda name: hashlib.sha256(name.encode()).digest())
    pages = torch.frombuffer(bytearray("\n\n".join(topics[name] for name in order).encode()), dtype=torch.uint8)
    first, second = len(pages) * 8 // 10, len(pages) * 9 // 10
    return SplitTokens(pages[:first][:LEARNED]), SplitTokens(pages[first:second]), SplitTokens(pages[second:])


def sample_pieces(part: SplitTokens, size: int) -> SplitTokens:
    """Return evenly spaced pieces of a text as one text; a model reads each piece separately.

    part: text to take the pieces from.
    size: approximate number of bytes of all pieces together.
    """
    count = max(size // PIECE, 1)
    firsts = torch.linspace(0, max(len(part.tokens) - PIECE, 0), count).long()
    return SplitTokens(torch.cat([part.tokens[at : at + PIECE] for at in firsts.tolist()]), torch.arange(count) * PIECE)


def train_byte_model(seed: int, text: SplitTokens, steps: int) -> LM:
    """Train a small `gpt` on bytes.

    seed: seed of the weights and of the training.
    text: text to learn from.
    steps: number of training steps.
    """
    with seeded(seed):
        model = gpt(**SIZES, length=LENGTH)
        empty = torch.zeros(2, dtype=torch.uint8)
        fit(
            model,
            TextData("bytes", text.tokens, empty, empty),
            steps=steps,
            batch=ROWS,
            length=LENGTH,
            lr=LR,
            seed=seed,
        )
    return model.eval()


def sweep_datastore(
    model: LM, parts: tuple[SplitTokens, SplitTokens, SplitTokens], size: int, judged: int
) -> DatastoreSweep:
    """Evaluate a kNN-LM with a datastore of one domain, for every choice of its settings.

    model: trained model, whose predictions are mixed with the datastore's.
    parts: train, validation and test text of the domain. The datastore holds bytes of the train text.
    size: number of entries of the datastore, one for each byte.
    judged: number of bytes of validation text, and of test text, to evaluate.
    """
    train, *measured = parts
    with tempfile.TemporaryDirectory() as folder:
        store = Datastore.build(Path(folder) / "store", model, sample_pieces(train, size), dtype="float32")
        sweep = NearestNeighbourSweep(model, store, Tap(model, store.tap).place, k=max(KS))
        sweep.sweep(KS, sweep.spread(train.tokens))
        return DatastoreSweep(
            *(sweep_result(evaluate(sweep, sample_pieces(part, judged), LENGTH)) for part in measured)
        )


def claim(
    seeds: Sequence[int], steps: int = STEPS, size: int = BYTES, small: int = SMALL, judged: int = JUDGED
) -> Claim:
    """Train a model on English, and measure it as a kNN-LM with datastores of English and unseen domains.

    A kNN-LM mixes the predictions of a model with the tokens after the nearest neighbours in a datastore. Lambda is the
    share of the datastore in this mixture. The claim holds if all of these conditions are met, in bits per byte of test
    text unless stated otherwise. The model with a datastore and 256 neighbours needs fewer bits than without one.
    40,000 entries need fewer bits than 10,000. 256 neighbours need fewer bits than 16. On validation text, the smallest
    and the largest lambda need more bits than the best lambda. The best lambda is larger with more entries. The best
    lambda is larger out of domain than in domain.

    seeds: seeds of the trainings.
    steps: number of training steps.
    size: number of entries of the large datastore, one for each byte.
    small: number of entries of the small datastore.
    judged: number of bytes of validation text, and of test text, to evaluate.
    """
    texts = domains()
    runs: dict[str, list[DatastoreSweep]] = {name: [] for name in texts}
    less: list[DatastoreSweep] = []
    for seed in seeds:
        model = train_byte_model(seed, texts[IN_DOMAIN][0], steps)
        less.append(sweep_datastore(model, texts[IN_DOMAIN], small, judged))
        for name, parts in texts.items():
            runs[name].append(sweep_datastore(model, parts, size, judged))
    few, many, in_domain = min(KS), max(KS), runs[IN_DOMAIN]
    share = {name: [run.valid.best.weight for run in of] for name, of in runs.items()}
    alone, fewer, smaller = (
        [x.test.own for x in in_domain],
        [x.tuned_bits(few) for x in in_domain],
        [x.tuned_bits(many) for x in less],
    )
    measures = (
        Measure("bits per byte with neighbours minus without", _bits_difference(in_domain, many, alone), "most", 0),
        Measure(
            f"bits per byte with {size:,} entries minus with {small:,}",
            _bits_difference(in_domain, many, smaller),
            "most",
            0,
        ),
        Measure(
            f"bits per byte with {many} neighbours minus with {few}",
            _bits_difference(in_domain, many, fewer),
            "most",
            0,
        ),
        Measure(
            "bits per byte at the better end of the lambda sweep minus at the best lambda",
            [_bend(run.valid) for run in in_domain],
            "least",
            0,
        ),
        Measure(
            f"best lambda with {size:,} entries minus with {small:,}",
            [near - run.valid.best.weight for near, run in zip(share[IN_DOMAIN], less, strict=True)],
            "least",
            0,
        ),
        *(
            Measure(
                f"best lambda out of domain, {name}, minus in domain",
                [away - near for away, near in zip(share[name], share[IN_DOMAIN], strict=True)],
                "least",
                0,
            )
            for name in list(texts)[1:]
        ),
    )
    facts = {
        f"bits per byte of test, {name}": f"{mean(x.test.own for x in of):.3f} without a datastore, "
        f"{mean(x.tuned_bits(many) for x in of):.3f} with a datastore of its domain, "
        f"best lambda {mean(share[name]):.2f}"
        for name, of in runs.items()
    }
    facts["domains"] = f"{', '.join(texts)}; {MORE}=FILE{os.pathsep}FILE adds texts, such as novels and WikiText-2"
    return Claim(SAYS, SOURCE, measures, facts, (_plot(f"valid, {many} neighbours, {size:,} entries", runs),))


def _bend(swept: SweepResult) -> float:
    """Return by how much the better of the smallest and the largest lambda is worse than the best one.

    The other numbers of the three choices are equal.
    """
    line = {choice.weight: bits for choice, bits in swept.choices.items() if choice[:2] == swept.best[:2]}
    return min(line[min(line)], line[max(line)]) - line[swept.best.weight]


def _bits_difference(runs: list[DatastoreSweep], k: int, other: list[float]) -> list[float]:
    return [run.tuned_bits(k) - bits for run, bits in zip(runs, other, strict=True)]


def _plot(title: str, runs_by_text: dict[str, list[DatastoreSweep]]) -> Plot:
    """Plot bits by lambda; a dot marks the best lambda, a dashed line the model without a datastore."""
    lines = []
    for name, runs in runs_by_text.items():
        swept = runs[0].valid
        best = min(runs[0].choices_with(max(KS)), key=swept.choices.__getitem__)
        curve = {choice.weight: bits for choice, bits in swept.choices.items() if choice[:2] == best[:2]}
        lines.append(PlotLine(list(curve), list(curve.values()), name, ".-"))
        lines.append(PlotLine([best.weight], [swept.choices[best]], name, "o"))
        lines.append(PlotLine([0, 1], [swept.own] * 2, name, "--", alpha=0.5))
    return Plot(title, "lambda", "bits per byte; dashed: no datastore", lines)
