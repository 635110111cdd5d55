"""Synthesizer: weights that compare no tokens serve where positions say what to read, and not where content does."""

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
LEARNT, FAILED = 0.95, 0.5  # guessing is right once in eight, the likeliest value of a row less than half the time
SAYS = "a random synthesizer learns what positions alone decide, and fails to recall by content, which a product learns"
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
    """Rows of pairs of a key and a value, then of keys that ask; 0 is no value. What each asking key is answered."""

    keys: Int[Tensor, "B T"]
    values: Int[Tensor, "B T"]
    answers: Int[Tensor, "B N"]


def batch(question: Question, rows: int, generator: torch.Generator) -> RecallBatch:
    """Asked by place, key i of the second half wants the value i before the last of the first; by content, its own."""
    keys = torch.rand(rows, KEYS, generator=generator).argsort(1)[:, :PAIRS]  # no key twice
    values = torch.randint(VALUES, (rows, PAIRS), generator=generator)
    order = torch.rand(rows, PAIRS, generator=generator).argsort(1)
    asking = keys.take_along_dim(order, 1)
    answers = values.flip(1) if question == "place" else values.take_along_dim(order, 1)
    return RecallBatch(torch.cat([keys, asking], 1), F.pad(values + 1, (0, PAIRS)), answers)


class RecallReader(nn.Module):
    """Two blocks of an encoder over the sum of a key's, a value's and a place's vector."""

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
    """A reader after so many steps, and the share of right answers in rows that it has not seen."""
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
    """Both questions to every form, in equal rows, steps and sizes; three of the shares decide."""
    shares_by_form: dict[tuple[str, Question], list[float]] = {}
    read = torch.zeros(1, 1)
    for form, kinds in FORMS.items():
        for question in QUESTIONS:
            ends = [train_reader(kinds, question, seed, steps) for seed in seeds]
            shares_by_form[form, question] = [share for _, share in ends]
            if (form, question) == ("random", "place"):
                read = largest_weights(ends[0][0])
    learnt, failed = ("least", LEARNT, 1 / VALUES), ("most", FAILED, 1.0)  # beside guessing, and beside a product
    bounds: dict[tuple[str, Question], Any] = dict(zip(DECIDE, (learnt, failed, learnt), strict=True))
    measures = tuple(
        Measure(
            f"answers that are right, {form}, asked by {question}",
            shares_by_form[form, question],
            *bounds[form, question],
        )
        for form, question in DECIDE
    )
    facts = {
        f"right, {form}": ", ".join(
            f"{mean(shares_by_form[form, question]):.2f} asked by {question}" for question in QUESTIONS
        )
        for form in FORMS
    }
    shares = Plot(
        "answers that are right",
        "",
        "right",
        samples={f"asked by {question}": [shares_by_form[form, question] for form in FORMS] for question in QUESTIONS},
        categories=list(FORMS),
        levels=((1 / VALUES, ""),),
        ylim=(0, 1.05),
    )
    reads = Plot(
        "what a random synthesizer reads, asked by place",
        "token (the first half has values)",
        "query (the second half asks)",
        image=read.tolist(),
    )
    return Claim(SAYS, SOURCE, measures, facts, (shares, reads))


@torch.no_grad()
def largest_weights(model: RecallReader) -> Float[Tensor, "T T"]:
    """The most that any head of a random synthesizer takes of each token, whatever the text."""
    tables = [score.table for score in model.modules() if isinstance(score, RandomSynthesizer)]
    return torch.cat([table.softmax(-1) for table in tables]).amax(0)
