"""Sampling options: against the definitions, and against the processors of logits of transformers."""

import pytest
import torch
from transformers.generation.logits_process import MinPLogitsWarper

from kinformer.decoding.generate import generate
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
