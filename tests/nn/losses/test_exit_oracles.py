"""Exit oracles against their equations, one number at a time, and what rules learn from them."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.patterns.document import Document
from kinformer.nn.exits.geometric import Geometric
from kinformer.nn.exits.multinomial import Multinomial
from kinformer.nn.losses.exit_oracles import Correctness, ExitOracle, Likelihood

N, V = 4, 3
WANTED = torch.tensor([[0, 2, 1, 1, -1, -1], [-1, 2, 0, 1, 2, 0]])


def merit(oracle: ExitOracle, logits: list[Tensor], n: int, b: int, t: int) -> float:
    target = int(WANTED[b, t])
    if isinstance(oracle, Likelihood):
        return float(logits[n][b, t].log_softmax(-1)[target])
    return float(int(logits[n][b, t].argmax()) == target)


def best(values: list[float], price: float) -> int:
    values = [value - price * (n + 1) for n, value in enumerate(values)]
    return values.index(max(values))


@pytest.mark.parametrize("sigma", [0.0, 1.5])
@pytest.mark.parametrize("price", [0.0, 0.2])
@pytest.mark.parametrize("kind", [Likelihood, Correctness])
def test_equals_the_equations(kind: type, price: float, sigma: float, float64: None) -> None:
    logits, oracle = [2 * torch.randn(2, 6, V) for _ in range(N)], kind(price, sigma=sigma)
    labels, rows, labels_reached = oracle(logits, WANTED), oracle.of_rows(logits, WANTED), set()
    for b in range(2):
        real = [t for t in range(6) if WANTED[b, t] >= 0]
        for t in real:
            near = {s: math.exp(-((t - s) ** 2) / sigma) if sigma else float(s == t) for s in real}
            expected = best([sum(w * merit(oracle, logits, n, b, s) for s, w in near.items()) for n in range(N)], price)
            assert int(labels[b, t]) == expected
            labels_reached.add(expected)
        assert int(rows[b]) == best([sum(merit(oracle, logits, n, b, t) for t in real) for n in range(N)], price)
    assert len(labels_reached) > 1


def test_neighbours_of_another_document_say_nothing(float64: None) -> None:
    logits, targets = [2 * torch.randn(2, 8, V) for _ in range(N)], torch.randint(0, V, (2, 8))
    documents, oracle = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2, 2]]), Likelihood(0.1, sigma=9.0)
    labels, changed = oracle(logits, targets, documents), oracle(logits, targets)
    for b, ids in enumerate(documents):
        for document in ids.unique():
            at = ids == document
            alone = oracle([x[b : b + 1, at] for x in logits], targets[b : b + 1, at])
            assert torch.equal(labels[b, at], alone[0])
    assert not torch.equal(labels, changed), "in one document they would"
    rule = Geometric(5, N, oracle=oracle)
    states, pos = [torch.randn(2, 8, 5) for _ in range(N)], torch.arange(8).expand(2, 8)
    loss = rule.loss(states, logits, targets, Context(pos, run=True, only=Document(documents)))
    assert torch.allclose(loss, -rule.log_q(states).gather(-1, labels[..., None])[..., 0])


def test_of_equal_exits_the_lowest_is_named() -> None:
    logits = [torch.zeros(1, 2, V)] * N
    for oracle in (Likelihood(0.0), Correctness(0.0)):
        assert oracle(logits, torch.tensor([[1, 2]])).tolist() == [[0, 0]]


def test_a_rule_learns_by_the_exit_that_is_named(float64: None) -> None:
    states, logits = [torch.randn(2, 6, 5) for _ in range(N)], [2 * torch.randn(2, 6, V) for _ in range(N)]
    logits = [exit_logits.requires_grad_() for exit_logits in logits]
    for rule in (Multinomial(5, N, oracle=Correctness()), Geometric(5, N), Geometric(5, N, shared=False)):
        loss, named, q = rule.loss(states, logits, WANTED), rule.oracle(logits, WANTED), rule.log_q(states).exp()
        for b, t in (WANTED >= 0).nonzero().tolist():
            assert torch.allclose(loss[b, t], -q[b, t, named[b, t]].log())
        gradients = torch.autograd.grad(loss.sum(), [*rule.parameters(), *logits], allow_unused=True)
        assert all(g.any() for g in gradients[:-N]) and all(g is None for g in gradients[-N:])


def test_a_price_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="price=-1.0"):
        Likelihood(-1.0)
