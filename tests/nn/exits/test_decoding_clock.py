"""A threshold that falls counts the tokens of an output: against equation 5, whatever stands before the output."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import Context
from kinformer.core.patterns.document import Document
from kinformer.decoding.consistency import write_texts
from kinformer.decoding.generate import generate
from kinformer.decoding.layers_used import record_layers_used
from kinformer.decoding.prefill import prefill
from kinformer.decoding.prompts import Prompts
from kinformer.members.calm import calm
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.nn.exits.confidence import Confidence, Head, States
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.decaying_threshold import DecayingThreshold

VOCAB, DEPTH, SCALE, STEPS = 7, 2, 0.8, 5
SLIDES = "ignore:.*positions that this model has learned"
PROMPTS = torch.tensor([[-1, -1, -1, -1, 4], [1, 2, 3, 4, 5], [-1, -1, 6, 0, 2]])


def threshold(t: int, longest: int, scale: float = SCALE) -> float:
    """Equation 5 of the paper, with a temperature of 4."""
    return 0.9 * scale + 0.1 * math.exp(-4 * t / longest)


class Constant(Confidence):
    """Every token is as sure as a number says, after every layer."""

    def __init__(self, sure: float):
        super().__init__()
        self.number = sure

    def forward(self, states: States, head: Head | None = None) -> Tensor:
        return torch.full_like(states[-1][..., 0], self.number, dtype=torch.float64)


def build(length: int = 32, **keywords: Any) -> Any:
    torch.manual_seed(0)
    return calm(d=8, depth=DEPTH, heads=2, length=length, vocab=VOCAB, **keywords).eval()


def constant(model: Any, sure: float) -> Any:
    """The model with tokens that leave after their first layer once the threshold has fallen to a number."""
    model.exits.rule = ConfidenceThreshold(Constant(sure), DecayingThreshold(SCALE, model.longest))
    return model


def between(longest: int) -> list[tuple[float, list[int]]]:
    """Numbers between the thresholds of neighbouring steps, each with the layers of all steps that follow from it."""
    ends = [threshold(t, longest) for t in range(longest)]
    sure = [(ends[t - 1] + ends[t]) / 2 for t in range(1, longest)]
    return [(number, [1 if end <= number else DEPTH for end in ends]) for number in [*sure, 1.0]]


def layers(model: Any, *arguments: Any, **keywords: Any) -> list[int]:
    """How many layers each step took, the same for all rows of a batch."""
    with record_layers_used(model) as took:
        generate(model, *arguments, **keywords)
    assert all(len(step.unique()) == 1 for step in took)
    return [int(step[0]) for step in took]


@pytest.mark.parametrize(
    "keywords",
    [{"temperature": 0}, {"temperature": 1.0, "seed": 0}, {"beam": 2}, {"temperature": 0, "recompute": True}],
    ids=["greedy", "drawn", "beams", "recomputed"],
)
@pytest.mark.parametrize("length", [4, 64])
@pytest.mark.filterwarnings(SLIDES)
def test_written_tokens_are_held_against_equation_5(length: int, keywords: dict[str, Any]) -> None:
    """Prompts of 1, 5 and 3 tokens in one batch, and one of 5 without padding; a table that slides, and a long one."""
    model = build(length)
    for sure, expected in between(STEPS):
        for prompts in (PROMPTS, PROMPTS[1:2]):
            assert layers(constant(model, sure), prompts, STEPS, **keywords) == expected


@pytest.mark.filterwarnings(SLIDES)
def test_a_prompt_is_held_against_the_first_threshold_whoever_reads_it() -> None:
    model, prompt = build(64), PROMPTS[1:2]
    model.trained_length = STEPS
    took: list[float] = []
    model.exits.register_forward_hook(lambda _, __, out: took.extend(out.aux["exit"][0].tolist()))
    for sure, expected in between(STEPS):
        constant(model, sure)
        for reads in (lambda: generate(model, prompt[:, :4], 1), lambda: prefill(model, prompt.split(2, 1), 5)):
            took.clear()
            reads()
            assert took == expected[:1] * 4


@pytest.mark.filterwarnings(SLIDES)
def test_the_clock_starts_behind_a_text_that_was_read_before() -> None:
    for model in (build(4), build(64)):
        for sure, expected in between(STEPS):
            reading = prefill(constant(model, sure), [PROMPTS[1:2, :2], PROMPTS[1:2, 2:]], 5)
            assert layers(model, reading.last, STEPS, temperature=0, state=reading.times(1)) == expected


def test_the_clock_starts_behind_what_a_target_begins_with() -> None:
    model, source = build(form="encoder_decoder"), torch.tensor([[1, 2, 3], [4, -1, -1]])
    with torch.no_grad():
        model.embedding.weight[model.end] = 0.0  # some other token is likelier, so no row ends
    begun = torch.tensor([[-1, model.begin], [model.begin, 3]])
    for sure, expected in between(STEPS):
        for prompt in (None, begun):
            assert layers(constant(model, sure), prompt, STEPS, temperature=0, source=source) == expected


def test_calibration_decodes_by_the_clock_of_its_own_texts() -> None:
    model, prompts = build(), Prompts([[1, 2, 3], [4]], [[0] * STEPS] * 2, STEPS)
    for sure, expected in between(STEPS):
        assert write_texts(constant(model, sure), prompts).mean_layers_by_place == expected


def test_a_text_that_is_read_is_an_output_as_long_as_a_row_of_the_training() -> None:
    """The first token read has step 0, as the first of a target in the authors' code; in a document of its own too."""
    model, tokens, ids = build(), torch.randint(0, VOCAB, (1, 9)), torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    for sure, expected in between(STEPS):
        constant(model, sure)
        for trained, longest in ((STEPS, STEPS), (None, 32)):
            model.trained_length = trained
            leaving = [DEPTH if threshold(t, longest) > sure else 1 for t in range(9)]
            assert leaving[:STEPS] == expected or trained is None
            took = model.logits(tokens).aux["exit"][0].tolist()
            ctx = Context(torch.arange(9)[None], run=True, only=Document(ids))
            packed = model.logits(tokens, ctx=ctx).aux["exit"][0].tolist()
            assert took == leaving and packed == leaving[:4] + leaving[:5]


@pytest.mark.parametrize("form", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize(
    "build",
    [
        lambda form: calm(d=8, depth=3, heads=2, vocab=VOCAB, length=16, threshold=0.3, form=form),
        lambda form: depth_adaptive(d=8, depth=3, heads=2, vocab=VOCAB, length=16, form=form),
    ],
    ids=["calm", "depth_adaptive"],
)
@torch.no_grad()
def test_documents_that_share_a_row_leave_as_each_does_alone(build: Any, form: str, float64: None) -> None:
    torch.manual_seed(1)
    model, ids = build(form), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1, 1]])
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(std=0.5)
    model.trained_length = 9
    tokens, source = torch.randint(0, VOCAB, (2, 9)), torch.randint(0, VOCAB, (2, 4))
    ctx = Context(torch.arange(9).expand(2, 9), run=True, full=True, only=Document(ids))
    with evaluating(model):
        packed = model.logits(tokens, ctx=ctx, **({} if form == "decoder" else {"source": source}))
        assert len(packed.aux["exit"].unique()) > 1
        for row in range(2):
            for document in ids[row].unique():
                at = ids[row] == document
                arguments = {} if form == "decoder" else {"source": source[row : row + 1]}
                alone = model.logits(tokens[row : row + 1, at], **arguments)
                assert torch.equal(packed.aux["exit"][row, at], alone.aux["exit"][0])
                assert torch.allclose(packed.y[row, at], alone.y[0], atol=1e-12)
