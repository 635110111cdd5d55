"""A Universal Transformer copies and reverses words of twice the training length better."""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.batches import Batches
from kinformer.lab.plot import Plot, seed_curves
from kinformer.lab.train.fit import fit
from kinformer.members.transformer import transformer
from kinformer.members.universal_transformer import universal_transformer
from kinformer.models.seq2seq import Seq2Seq

LETTERS, LEARNED, LONG = 8, 10, 20  # letters of the alphabet, longest word in training, length of the test
STEPS, MINUTES, ROWS, RATE, TESTED = 250, 1, 32, 3e-3, 256
LENGTHS = (5, 10, 12, 15, LONG)
Problem = Literal["copy", "reverse"]
PROBLEMS: tuple[Problem, Problem] = ("copy", "reverse")
SAYS = (
    "trained on words of up to 10 letters, a Universal Transformer copies and reverses words of 20 letters better than "
    "a Transformer"
)
SOURCE = "Dehghani et al., 2018, arXiv:1807.03819, section 3.4 and its table of algorithmic tasks (decimal symbols)"
UNIVERSAL, PLAIN = "Universal Transformer", "Transformer"
MODELS: dict[str, Callable[[], Seq2Seq]] = {  # equal steps and layers, about 65,000 weights each
    UNIVERSAL: lambda: cast(
        Seq2Seq, universal_transformer(d=48, depth=3, heads=4, form="encoder_decoder", halting="fixed", vocab=LETTERS)
    ),
    PLAIN: lambda: transformer(d=32, depth=3, heads=4, hidden=72, vocab=LETTERS, dropout=0.0, smoothing=0.0),
}
PAPER_SIZES = (
    "trained on 40 letters, tested on 400, shares of correct letters and words: copy .91 and .35 (Universal) against "
    ".53 and .03, reverse .96 and .46 against .13 and .06"
)


class LengthShares(NamedTuple):
    """Shares of correct answers of one trained model for words of each length in `LENGTHS`.

    letters: share of correct letters, each given the correct letters before it.
    words: share of words without a wrong letter.
    """

    letters: list[float]
    words: list[float]


def pairs(problem: Problem, rows: int, lengths: tuple[int, int], seed: int) -> tuple[Int[Tensor, "B S"], Tensor]:
    """Return random words with their answers: the same word, or the word backwards; -1 is padding.

    problem: "copy" or "reverse".
    rows: number of words.
    lengths: smallest and largest number of letters.
    seed: seed of the words.
    """
    generator = torch.Generator().manual_seed(seed)
    least, most = lengths
    size = torch.randint(least, most + 1, (rows, 1), generator=generator)
    place = torch.arange(most)
    word = torch.randint(LETTERS, (rows, most), generator=generator).masked_fill(place >= size, -1)
    backwards = word.gather(1, (size - 1 - place).clamp_min(0)).masked_fill(place >= size, -1)
    return word, word if problem == "copy" else backwards


def train_model(name: str, problem: Problem, seed: int, steps: int) -> Seq2Seq:
    """Train a model on words of up to 10 letters.

    name: key of `MODELS`.
    problem: "copy" or "reverse".
    seed: seed of the weights and of the words.
    steps: number of training steps.
    """
    with seeded(seed):
        model = MODELS[name]()
        data = Batches(
            lambda step: pairs(problem, ROWS, (1, LEARNED), 10_000 * (seed + 1) + step),
            [pairs(problem, ROWS, (1, LEARNED), 9_998)],
        )
        fit(model, data, steps=steps, lr=RATE, seed=seed, measures=1, schedule="cosine", warmup=0.1)
    return model.eval()


@torch.no_grad()
def measure_shares(model: Seq2Seq, problem: Problem) -> LengthShares:
    """Return the shares of correct letters and words of a model for each length.

    model: trained model.
    problem: "copy" or "reverse".
    """
    letters, words = [], []
    for length in LENGTHS:
        source, answer = pairs(problem, TESTED, (length, length), 9_999)
        inputs = torch.cat([torch.full((TESTED, 1), model.begin), answer[:, :-1]], 1)
        right = model.logits(inputs, source=source).y.argmax(-1) == answer
        letters.append(float(right.double().mean()))
        words.append(float(right.all(1).double().mean()))
    return LengthShares(letters, words)


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train two models on short words, and test both on words of twice the length.

    The models are a Universal Transformer without halting and a Transformer. Both are encoder-decoders with three steps
    or layers and about 65,000 weights, and see equal words. Words have 1 to 10 letters in training and 20 in the test.
    Measured here: the share of correct letters, each given the correct letters before it. The claim holds if the
    Universal Transformer has more correct letters than the Transformer, for copies and for reversed words. The shares
    of whole words are reported for comparison.

    The paper trains on 40 letters and tests on 400. In its training positions begin at a random offset, so that large
    positions are not new in the test. The models here have no such offset.

    seeds: seeds of the weights and of the words.
    steps: number of training steps.
    """
    runs = {
        (name, problem): [measure_shares(train_model(name, problem, seed, steps), problem) for seed in seeds]
        for problem in PROBLEMS
        for name in MODELS
    }
    measures = tuple(
        Measure(
            f"share of correct letters of {LONG}, {problem}: Universal Transformer minus Transformer",
            [
                universal.letters[-1] - plain.letters[-1]
                for universal, plain in zip(runs[UNIVERSAL, problem], runs[PLAIN, problem], strict=True)
            ],
            "least",
            0,
        )
        for problem in PROBLEMS
    )
    facts = {
        f"{problem}, {name}": ", ".join(
            f"{mean(run.letters[n] for run in results):.3f} of letters and "
            f"{mean(run.words[n] for run in results):.3f} of words at length {LENGTHS[n]}"
            for n in (LENGTHS.index(LEARNED), -1)
        )
        for (name, problem), results in runs.items()
    }
    facts["guessing"] = f"{1 / LETTERS:g} of letters"
    facts["weights"] = ", ".join(
        f"{name} {sum(weight.numel() for weight in make().parameters()):,}" for name, make in MODELS.items()
    )
    facts["steps of training"] = f"{steps} of {ROWS} words"
    facts["the paper's scale"] = PAPER_SIZES
    plots = [
        Plot(
            f"{problem}, trained on up to {LEARNED} letters",
            "letters of a word",
            "share of correct letters",
            seed_curves(LENGTHS, {name: [run.letters for run in runs[name, problem]] for name in MODELS}),
            levels=((1 / LETTERS, "guessing"),),
            marks=(LEARNED,),
            ylim=(0, 1.05),
        )
        for problem in PROBLEMS
    ]
    return Claim(SAYS, SOURCE, measures, facts, plots)
