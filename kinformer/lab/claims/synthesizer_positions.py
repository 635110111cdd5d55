"""A random synthesizer learns to read by position, and fails to recall by content."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.layer import Layer
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot
from kinformer.members.synthesizer import Kind, synthesizer
from kinformer.nn.scores.random_synthesizer import RandomSynthesizer

PAIRS, KEYS, VALUES = 8, 16, 8
STEPS, ROWS, RATE, TRIED = 200, 48, 1e-2, 256
MINUTES = 1.5  # of a default run with three seeds
LEARNT, FAILED = 0.95, 0.5  # guessing gives 1/8; always giving a row's most frequent value gives less than 1/2
SAYS = "a random synthesizer learns to answer by position and fails to recall by content, which dot products learn"
SOURCE = "Tay et al., 2020, arXiv:2005.00743, abstract and section 4: what random synthesizers learn, and what products"
Question = Literal["place", "content"]
QUESTIONS: tuple[Question, Question] = ("place", "content")
FORMS: dict[str, tuple[Kind, ...]] = {
    "random": ("random",),
    "dense": ("dense",),
    "random + product": ("random", "product"),
    "product": ("product",),
}
DECIDE: tuple[tuple[str, Question], ...] = (("random", "place"), ("random", "content"), ("product", "content"))


class RecallBatch(NamedTuple):
    """Rows of key-value pairs, followed by asking keys: the model must answer each with a value.

    keys: keys of the pairs, then the asking keys.
    values: values of the pairs, counted from 1, then 0 for the asking keys.
    answers: correct value for each asking key, counted from 0.
    """

    keys: Int[Tensor, "B T"]
    values: Int[Tensor, "B T"]
    answers: Int[Tensor, "B N"]


def batch(question: Question, rows: int, generator: torch.Generator) -> RecallBatch:
    """Return random rows of key-value pairs, followed by asking keys, with the correct answers.

    For a question by place, the answer to the n-th asking key is the value of the n-th pair from the end. For a
    question by content, it is the value of the pair with the same key.

    question: kind of question: "place" or "content".
    rows: number of rows.
    generator: source of randomness.
    """
    keys = torch.rand(rows, KEYS, generator=generator).argsort(1)[:, :PAIRS]  # all keys of a row differ
    values = torch.randint(VALUES, (rows, PAIRS), generator=generator)
    order = torch.rand(rows, PAIRS, generator=generator).argsort(1)
    asking = keys.take_along_dim(order, 1)
    answers = values.flip(1) if question == "place" else values.take_along_dim(order, 1)
    return RecallBatch(torch.cat([keys, asking], 1), F.pad(values + 1, (0, PAIRS)), answers)


class RecallReader(nn.Module):
    """Model that answers asking keys: two encoder blocks of a synthesizer.

    The input of a token is the sum of the embeddings of its key, value and position.

    kinds: kinds of attention scores of the synthesizer, such as "random" (learned for each pair of positions).
    d: width.
    heads: number of heads.
    """

    def __init__(self, kinds: tuple[Kind, ...], d: int = 32, heads: int = 4):
        super().__init__()
        length = 2 * PAIRS
        self.body: Layer = synthesizer(d, 2, heads, scores=kinds, length=length, form="encoder").body
        self.keys, self.values, self.places = (nn.Embedding(n, d) for n in (KEYS, VALUES + 1, length))
        self.head = nn.Linear(d, VALUES)

    def forward(self, batch: RecallBatch) -> Float[Tensor, "B N V"]:
        x = self.keys(batch.keys) + self.values(batch.values) + self.places.weight
        return self.head(self.body(x).y[:, PAIRS:])


def train_reader(kinds: tuple[Kind, ...], question: Question, seed: int, steps: int) -> tuple[RecallReader, float]:
    """Train a `RecallReader`, and return it with the share of correct answers on unseen rows.

    kinds: kinds of attention scores of the synthesizer.
    question: kind of question: "place" or "content".
    seed: seed of the weights and of the rows.
    steps: number of training steps.
    """
    generator = torch.Generator().manual_seed(seed)
    with seeded(seed):
        model = RecallReader(kinds)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    for _ in range(steps):
        rows = batch(question, ROWS, generator)
        optimiser.zero_grad()
        F.cross_entropy(model(rows).flatten(0, 1), rows.answers.flatten()).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        rows = batch(question, TRIED, generator)
        return model, float((model(rows).argmax(-1) == rows.answers).double().mean())


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train models with each kind of attention scores to answer questions by place and by content.

    A row has key-value pairs, then asking keys. A question by place asks for the value at a fixed position, a question
    by content for the value of the pair with the same key. All models have equal rows, steps and sizes. Three shares of
    correct answers decide the verdict; guessing gives 1/8. The claim holds if a random synthesizer reaches at least
    0.95 by place and at most 0.5 by content, and dot products reach at least 0.95 by content.

    seeds: seeds of the trainings.
    steps: number of training steps.
    """
    shares_by_form: dict[tuple[str, Question], list[float]] = {}
    read = torch.zeros(1, 1)
    for form, kinds in FORMS.items():
        for question in QUESTIONS:
            ends = [train_reader(kinds, question, seed, steps) for seed in seeds]
            shares_by_form[form, question] = [share for _, share in ends]
            if (form, question) == ("random", "place"):
                read = largest_weights(ends[0][0])
    # no effect: guessing, and a perfect product
    learnt, failed = ("least", LEARNT, 1 / VALUES), ("most", FAILED, 1.0)
    bounds: dict[tuple[str, Question], Any] = dict(zip(DECIDE, (learnt, failed, learnt), strict=True))
    measures = tuple(
        Measure(
            f"share of correct answers, {form}, asked by {question}",
            shares_by_form[form, question],
            *bounds[form, question],
        )
        for form, question in DECIDE
    )
    facts = {
        f"share of correct answers, {form}": ", ".join(
            f"{mean(shares_by_form[form, question]):.2f} asked by {question}" for question in QUESTIONS
        )
        for form in FORMS
    }
    shares = Plot(
        "correct answers",
        "",
        "share of correct answers",
        samples={f"asked by {question}": [shares_by_form[form, question] for form in FORMS] for question in QUESTIONS},
        categories=list(FORMS),
        levels=((1 / VALUES, ""),),
        ylim=(0, 1.05),
    )
    reads = Plot(
        "largest weights of a random synthesizer, asked by place",
        "token (the first half has values)",
        "query (the second half asks)",
        image=read.tolist(),
    )
    return Claim(SAYS, SOURCE, measures, facts, (shares, reads))


@torch.no_grad()
def largest_weights(model: RecallReader) -> Float[Tensor, "T T"]:
    """Return the largest attention weight of each query and key over all layers and heads.

    The weights of a random synthesizer do not depend on the tokens.

    model: trained model with random scores.
    """
    tables = [score.table for score in model.modules() if isinstance(score, RandomSynthesizer)]
    return torch.cat([table.softmax(-1) for table in tables]).amax(0)
