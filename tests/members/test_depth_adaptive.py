"""depth_adaptive: its classifiers are keywords, learn with the layers, and name exits that their price makes lower."""

import pytest
import torch

from kinformer.decoding.generate import generate
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.nn.exits.confidence import SoftmaxProbability
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.geometric import Geometric
from kinformer.nn.exits.multinomial import Multinomial
from kinformer.nn.losses.exit_oracles import Correctness, Likelihood

TINY = {"d": 16, "depth": 3, "heads": 2, "length": 32, "vocab": 7}


def test_classifiers_and_oracles_are_keywords() -> None:
    rule = depth_adaptive(**TINY).body.rule
    assert isinstance(rule, Multinomial) and isinstance(rule.oracle, Likelihood)
    rule = depth_adaptive(
        **TINY, classifier="geometric", oracle="correctness", price=0.3, sigma=2.0, threshold=(0.4, 0.6), shared=False
    ).body.rule
    assert isinstance(rule, Geometric) and isinstance(rule.oracle, Correctness)
    assert (rule.threshold, len(rule.stop), rule.oracle.price, rule.oracle.sigma) == ((0.4, 0.6), 2, 0.3, 2.0)
    rule = depth_adaptive(**TINY, classifier="probability", threshold=0.7).body.rule
    assert (
        isinstance(rule, ConfidenceThreshold)
        and isinstance(rule.confidence, SoftmaxProbability)
        and rule.threshold == 0.7
    )


@pytest.mark.parametrize("classifier", ["multinomial", "geometric", "probability"])
def test_it_writes_the_same_with_and_without_a_state(classifier: str) -> None:
    model = depth_adaptive(**TINY, classifier=classifier).double()
    prompt = torch.tensor([[3, 1, 4], [-1, 1, 5]])
    rows = generate(model, prompt, 8, temperature=0)
    assert torch.equal(rows, generate(model, prompt, 8, temperature=0, recompute=True))


def test_a_search_finds_the_same_with_and_without_a_state(float64: None) -> None:
    """Of three beams, whose states are selected and go on apart, behind an encoder too."""
    prompt, source = torch.tensor([[3, 1, 4], [-1, 1, 5]]), torch.tensor([[2, 2, 5], [6, 1, -1]])
    for form, arguments in (("decoder", {"source": None}), ("encoder_decoder", {"source": source})):
        torch.manual_seed(1)
        model = depth_adaptive(**TINY, classifier="geometric", shared=False, form=form)
        for p in model.exits.rule.parameters():
            torch.nn.init.normal_(p)
        begun = prompt if form == "decoder" else None
        rows = generate(model, begun, 5, beam=3, **arguments)
        assert torch.equal(rows, generate(model, begun, 5, beam=3, recompute=True, **arguments))


@pytest.mark.parametrize("classifier", ["multinomial", "geometric"])
def test_layers_that_cost_more_are_taken_less(classifier: str) -> None:
    """The same training; where a layer costs more than it can bring, the classifier learns to leave at the first."""
    layers_taken = {}
    for price in (0.0, 100.0):
        torch.manual_seed(0)
        model = depth_adaptive(**TINY, classifier=classifier, price=price)
        optimiser = torch.optim.Adam(model.parameters(), 2e-2)
        g = torch.Generator().manual_seed(1)
        for _ in range(12):
            batch = torch.randint(0, 7, (8, 3), generator=g).repeat(1, 4)
            loss = model(batch)
            optimiser.zero_grad()
            loss.total.backward()
            optimiser.step()
        with torch.no_grad():
            layers, count = model.eval().judge(batch).totals["layers"]
        layers_taken[price] = float(layers / count)
    assert layers_taken[100.0] == 1 < layers_taken[0.0], layers_taken
