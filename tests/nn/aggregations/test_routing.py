"""Dynamic and EM routing: loops written from the papers' procedures, limits, and one line for what is wrong."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.nn.aggregations.dynamic_routing import DynamicRouting, squash
from kinformer.nn.aggregations.em_routing import EMRouting

POS = torch.arange(3).expand(2, -1)


def softmax(x: list[float]) -> list[float]:
    whole = sum(math.exp(value) for value in x)
    return [math.exp(value) / whole for value in x]


def dynamic(votes: Tensor, iterations: int, over: str) -> Tensor:
    """One token's votes [H N W], after procedure 1 of Sabour et al."""
    heads, capsules, _ = votes.shape
    b = [[0.0] * capsules for _ in range(heads)]
    v = []
    for _ in range(iterations):
        if over == "outputs":
            c = [softmax(row) for row in b]
        else:
            columns = [softmax([row[n] for row in b]) for n in range(capsules)]
            c = [[columns[n][h] for n in range(capsules)] for h in range(heads)]
        v = []
        for n in range(capsules):
            s = sum(c[h][n] * votes[h, n] for h in range(heads))
            square = float(s @ s)
            v.append(square / (1 + square) * s / math.sqrt(square))
        b = [[b[h][n] + float(votes[h, n] @ v[n]) for n in range(capsules)] for h in range(heads)]
    return torch.stack(v)


@torch.no_grad()
def em(votes: Tensor, a: Tensor, part: EMRouting) -> tuple[Tensor, Tensor]:
    """One token's votes [H N W], after procedure 1 of Hinton et al., lambda constant, variances above 0."""
    heads, capsules, width = votes.shape
    r = torch.full((heads, capsules), 1 / capsules).double()
    mu, active = torch.zeros(capsules, width).double(), torch.zeros(capsules).double()
    for n in range(part.iterations):
        variance = torch.zeros(capsules, width).double()
        for j in range(capsules):
            w = [float(r[h, j] * a[h]) for h in range(heads)]
            mu[j] = sum(w[h] * votes[h, j] for h in range(heads)) / sum(w)
            variance[j] = sum(w[h] * (votes[h, j] - mu[j]) ** 2 for h in range(heads)) / sum(w) + 1e-8
            cost = (part.beta_u[j] + variance[j].sqrt().log()) * sum(w)
            active[j] = torch.sigmoid(part.sharpness * (part.beta_a[j] - cost.sum()))
        if n + 1 < part.iterations:
            for h in range(heads):
                density = ((2 * math.pi * variance) ** -0.5 * (-((votes[h] - mu) ** 2) / 2 / variance).exp()).prod(-1)
                r[h] = active * density / (active * density).sum()
    return mu, active


def votes_of(y: Tensor, weight: Tensor) -> Tensor:
    """The votes of one token's heads [H V]."""
    heads, capsules = weight.shape[:2]
    return torch.stack([torch.stack([y[h] @ weight[h, n] for n in range(capsules)]) for h in range(heads)]).detach()


@pytest.mark.parametrize("over", ["outputs", "inputs"])
def test_dynamic_routing_is_its_procedure(over: str) -> None:
    part = DynamicRouting(3, 4, 10, capsules=2, iterations=4, over=over).double()  # type: ignore[arg-type]
    y = torch.randn(2, 3, 3, 4).double()
    out = part(y, POS)
    for b in range(2):
        for t in range(3):
            votes = torch.stack(
                [torch.stack([y[b, h, t] @ part.votes.weight[h, n] for n in range(2)]) for h in range(3)]
            )
            assert torch.allclose(out[b, t].view(2, 5), dynamic(votes.detach(), 4, over), rtol=0, atol=1e-12)


def test_em_routing_is_its_procedure() -> None:
    part = EMRouting(4, 3, 6, capsules=2, iterations=3, sharpness=0.7).double()
    torch.nn.init.normal_(part.beta_u)
    torch.nn.init.normal_(part.beta_a)
    torch.nn.init.normal_(part.active_bias)
    y = torch.randn(2, 4, 3, 3).double()
    out = part(y, POS).detach()
    for b in range(2):
        for t in range(3):
            a = torch.stack([torch.sigmoid(y[b, h, t] @ part.active[h] + part.active_bias[h]) for h in range(4)])
            votes = torch.stack(
                [torch.stack([y[b, h, t] @ part.votes.weight[h, n] for n in range(2)]) for h in range(4)]
            )
            mu, active = em(votes.detach(), a.detach(), part)
            # the floor of masses, 1e-8, stands in no paper
            assert torch.allclose(out[b, t].view(2, 3), active[:, None] * mu, rtol=0, atol=1e-6)


def test_what_all_heads_say_alike_is_squashed_and_what_they_do_not_is_less() -> None:
    part = DynamicRouting(3, 2, 2, capsules=1, over="outputs").double()
    votes = torch.tensor([1.0, 2.0]).double().expand(3, 1, 2)
    assert torch.allclose(part.route(votes)[0], squash(3 * votes[0, 0]))
    assert part.route(votes * torch.tensor([1, 1, -2]).view(3, 1, 1)).abs().max() < 1e-12
    zero = torch.zeros(4, requires_grad=True)
    squash(zero).sum().backward()
    assert torch.equal(squash(zero), torch.zeros(4)) and zero.grad is not None and zero.grad.isfinite().all()


def test_an_outlier_is_routed_away() -> None:
    """Two capsules; three heads vote one thing for both, the fourth agrees with them for the second one alone."""
    part = EMRouting(4, 2, 4, capsules=2, iterations=3).double()
    votes = torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(0)).double() * 0.1
    votes[3, 0] += 5.0
    means, _ = part.route(votes, torch.ones(4).double())
    assert (
        (means[0] - votes[:3, 0].mean(0)).abs().max() < 0.1 < (votes[:, 0].mean(0) - votes[:3, 0].mean(0)).abs().min()
    )


def test_it_is_finite_where_heads_are_far_or_alike_in_float32() -> None:
    part = EMRouting(4, 8, 16)
    for y in (1e3 * torch.randn(1, 4, 3, 8), torch.zeros(1, 4, 3, 8), torch.ones(1, 4, 3, 8)):
        y.requires_grad_()
        out = part(y, POS[:1])
        out.sum().backward()
        assert out.isfinite().all() and y.grad is not None and y.grad.isfinite().all()


@torch.no_grad()
def test_em_routing_rounds_nothing_but_what_comes_out() -> None:
    low, high = EMRouting(4, 8, 16).to(torch.bfloat16), EMRouting(4, 8, 16)
    high.load_state_dict(low.state_dict())
    y = torch.randn(2, 4, 3, 8, dtype=torch.bfloat16)
    assert torch.equal(low(y, POS), high(y.float(), POS).to(torch.bfloat16))


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="capsules"):
        DynamicRouting(2, 8, 16, capsules=3)
    with pytest.raises(ValueError, match="sharpness"):
        EMRouting(2, 8, 16, sharpness=-1.0)
