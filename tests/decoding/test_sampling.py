"""Sampling options: against the definitions, and against the processors of logits of transformers."""

import pytest
import torch
from transformers.generation.logits_process import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

from kinformer.core.model import Writer
from kinformer.decoding.generate import generate
from kinformer.decoding.repetition_penalty import penalize_repetition
from kinformer.decoding.sampling import keep_min_p
from tests.decoding.writers import VOCAB, writer

# min-p ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.05, 0.3, 0.9, 1.0])
def test_min_p_keeps_what_transformers_keeps(float64: None, p: float) -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(50, 30)
    assert torch.equal(keep_min_p(logits, p), MinPLogitsWarper(p)(torch.empty(50, 0, dtype=torch.long), logits))


def test_min_p_keeps_tokens_by_their_fraction_of_the_largest_probability(float64: None) -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.25, 0.25]]).log()
    assert keep_min_p(logits, 0.29).isfinite().tolist() == [[True, True, True, False], [True] * 4]
    assert keep_min_p(logits, 0.31).isfinite().tolist() == [[True, True, False, False], [True] * 4]


def test_min_p_samples_all_and_only_the_tokens_that_it_keeps(float64: None) -> None:
    model, prompt = writer("learned"), torch.tensor([[1, 2, 3]]).expand(500, -1)
    probability = (model.logits(prompt[:1]).y[0, -1].detach() / 3).softmax(-1)
    threshold = 0.5 * float(probability.max())
    kept = {token for token in range(VOCAB) if float(probability[token]) >= threshold}
    assert 1 < len(kept) < VOCAB
    assert set(generate(model, prompt, 1, temperature=3.0, min_p=0.5, seed=0)[:, -1].tolist()) == kept


def test_min_p_alone_samples_at_temperature_1_from_the_whole_vocabulary(float64: None) -> None:
    model = writer("rotary")
    arguments = {"tokens": torch.tensor([[1, 2, 3]]), "steps": 30, "seed": 0}
    tokens = generate(model, min_p=0.01, **arguments)
    assert torch.equal(tokens, generate(model, min_p=0.01, temperature=1.0, **arguments))
    assert not torch.equal(tokens, generate(model, **arguments))
    assert torch.equal(
        generate(model, min_p=1.0, **arguments),
        generate(model, tokens=torch.tensor([[1, 2, 3]]), steps=30, temperature=0),
    )


# Repetition penalty ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 20.0])
def test_the_penalty_gives_the_logits_of_transformers(float64: None, penalty: float) -> None:
    torch.manual_seed(0)
    logits, rows = 3 * torch.randn(20, 12), torch.randint(0, 12, (20, 6))
    expected = RepetitionPenaltyLogitsProcessor(penalty)(rows, logits)
    assert (logits == expected).all() == (penalty == 1)
    assert torch.equal(penalize_repetition(logits, rows, penalty), expected)


def test_the_penalty_divides_positive_logits_and_multiplies_negative_ones(float64: None) -> None:
    logits, rows = torch.tensor([[3.0, -3.0, 3.0, -3.0]] * 2), torch.tensor([[0, 1, 1], [-1, -1, 3]])
    assert penalize_repetition(logits, rows, 2.0).tolist() == [[1.5, -6.0, 3.0, -3.0], [3.0, -3.0, 3.0, -6.0]]


def naive_penalized_greedy(model: Writer, prompt: list[int], steps: int, penalty: float) -> list[int]:
    row = list(prompt)
    for _ in range(steps):
        logits = model.logits(torch.tensor([row])).y[0, -1].tolist()
        scores = [(x / penalty if x > 0 else x * penalty) if n in row else x for n, x in enumerate(logits)]
        row.append(scores.index(max(scores)))
    return row


@pytest.mark.parametrize("form", ["rotary", "memory"])
def test_greedy_decoding_counts_the_tokens_of_prompt_and_continuation(form: str, float64: None) -> None:
    model, prompts = writer(form), [[4], [1, 2, 3, 4]]
    rows = generate(model, prompts, 6, temperature=0, repetition_penalty=1.6).tolist()
    for row, prompt in zip(rows, prompts, strict=True):
        assert row[4 - len(prompt) :] == naive_penalized_greedy(model, prompt, 6, 1.6)
    assert rows != generate(model, prompts, 6, temperature=0).tolist()


def test_samples_are_drawn_from_the_penalized_probabilities(float64: None) -> None:
    model, prompt, penalty = writer("rotary"), torch.tensor([[1, 2, 4]]), 2.5
    logits = model.logits(prompt).y[:, -1].detach()
    expected = (RepetitionPenaltyLogitsProcessor(penalty)(prompt, logits)[0] / 1.7).softmax(-1)
    new = generate(model, prompt.expand(4000, -1), 1, temperature=1.7, repetition_penalty=penalty, seed=0)[:, -1]
    bound = 4 * (0.25 / 4000) ** 0.5  # four standard deviations of the widest
    assert ((logits[0] / 1.7).softmax(-1) - expected).abs().max() > 2 * bound
    assert (new.bincount(minlength=VOCAB) / 4000 - expected).abs().max() < bound
