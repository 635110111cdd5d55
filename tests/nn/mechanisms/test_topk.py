"""TopK: the equation pair by pair, equal scores, gradients, blocks, and what both forms agree on."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.scores.product import Product
from kinformer.lab.search.flat import Flat
from kinformer.nn.mechanisms import highest_scores as search
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.topk import BestOfRow, TopK
from kinformer.nn.mechanisms.topk_equals import TopKEquals
from kinformer.nn.patterns.band import Band

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K = 2, 4, 13, 3
PATTERNS = [Causal(), Full(), Causal() & Band(4)]


def exact(pattern: Pattern, k: int) -> KeyValueMechanism:
    return TopK(pattern, k)


def with_equals(pattern: Pattern, k: int) -> KeyValueMechanism:
    return Explicit(pattern, before=BestOfRow(k))


def inputs(whole: bool, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Whole numbers make many scores equal."""
    q, k, v = (torch.randn(B, heads, T, K) for heads in (H, groups, groups))
    return (q.sign(), k.sign(), v) if whole else (q, k, v)


def call(mechanism: KeyValueMechanism, q: Tensor, k: Tensor, v: Tensor) -> Any:
    ctx = Context.of_sequence(q[:, 0])
    return mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y


def by_hand(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, most: int, equals: bool) -> Tensor:
    """For each query the best keys by a sort, of equal ones the latest; or all that equal the last of these."""
    y = torch.zeros(B, H, T, K)
    for b, h, i in ((b, h, i) for b in range(B) for h in range(H) for i in range(T)):
        group = h * k.shape[1] // H
        may = pattern.matrix(T)[i].nonzero().flatten().tolist()
        score = {j: float(q[b, h, i] @ k[b, group, j]) for j in may}
        chosen = sorted(may, key=lambda j: (-score[j], -j))[:most]
        if equals:
            chosen = [j for j in may if score[j] >= min(score[j] for j in chosen)]
        weight = torch.softmax(torch.tensor([score[j] for j in chosen]) * K**-0.5, 0)
        y[b, h, i] = sum(w * v[b, group, j] for w, j in zip(weight, chosen, strict=True))
    return y


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("groups", "whole", "most"), [(4, False, 3), (1, True, 2), (2, True, 5), (4, False, 99)])
def test_both_forms_are_the_equation(pattern: Pattern, groups: int, whole: bool, most: int) -> None:
    leaves_in = inputs(whole, groups)
    torch.testing.assert_close(call(exact(pattern, most), *leaves_in).y, by_hand(*leaves_in, pattern, most, False))
    torch.testing.assert_close(call(with_equals(pattern, most), *leaves_in).y, by_hand(*leaves_in, pattern, most, True))


def test_where_no_scores_are_equal_both_forms_are_one_with_gradients() -> None:
    leaves_in = [x.requires_grad_() for x in inputs(False, 2)]
    results = []
    for make in (exact, with_equals):
        read = call(make(Causal(), 3), *leaves_in)
        results.append(
            (read.y, read.lse, *torch.autograd.grad((read.y.sin().sum(-1) + read.lse.cos()).sum(), leaves_in))
        )
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_blocks_of_queries_and_keys_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves_in = inputs(True, 2)
    whole = call(exact(Causal(), 3), *leaves_in)
    monkeypatch.setattr(search, "KEYS", 5)
    monkeypatch.setattr(search, "PAIRS", 1)
    for ours, theirs in zip(call(exact(Causal(), 3), *leaves_in), whole, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_not_among_the_best_learns_nothing() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(False, H))
    call(exact(Full(), 1), q, k, v).y.sum().backward()
    best = (q @ k.transpose(2, 3)).argmax(-1)  # [B H T]
    read = torch.zeros(B, H, T, dtype=torch.bool).scatter(2, best, True)
    assert v.grad is not None and k.grad is not None
    assert torch.equal(v.grad.abs().sum(-1) > 0, read)
    assert not k.grad.any()  # the softmax over one key is 1 whatever its score


@pytest.mark.parametrize("make", [TopK, lambda pattern, k: BestOfRow(k)])
def test_k_is_checked(make: Any) -> None:
    with pytest.raises(ValueError, match="k=0: give a whole number of at least 1"):
        make(Causal(), 0)


@pytest.mark.parametrize("autocast", [False, True])
def test_keys_are_chosen_by_scores_that_are_not_rounded_to_16_bits(autocast: bool) -> None:
    q, k = (torch.randn(1, 1, 200, 16, dtype=torch.bfloat16) for _ in range(2))
    pos = torch.arange(200)[None, None]

    def chosen(q: Tensor, k: Tensor) -> Tensor:
        queries, keys = Queries(q, pos), Keys(k, k, pos)
        request = Request(queries, keys, Causal(), Product(), None, 1.0)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return search.find_by_scores(request, 4)

    assert torch.equal(chosen(q, k)[:, :, 4:], chosen(q.double(), k.double())[:, :, 4:])


@pytest.mark.parametrize("equals", [True, False])
@pytest.mark.parametrize("length", [40, 600])
def test_keys_that_rounding_alone_tells_apart_are_equal(equals: bool, length: int) -> None:
    """Rows of five tokens without positions, whose keys come from products of several shapes: their last bits differ.

    By the definition all that equal the k-th best are read, or the latest of them; equality is told by the token here.
    """
    token = torch.randint(5, (length,))
    exact = torch.randn(5, 2, K)
    k = torch.stack([exact[token, h] for h in range(2)])[None]
    k = (k * (1 + 1e-7 * torch.randint(-3, 4, k.shape))).float()
    q, v = (torch.randn(1, 2, length, K).float() for _ in range(2))
    pos = torch.arange(length)[None, None]
    ctx = Context(pos[:, 0], run=True, full=True)
    mechanism = TopKEquals(Causal(), 3) if equals else TopK(Causal(), 3)
    y = mechanism(Queries(q, pos), Keys(k, v, pos), None, ctx).y.y
    for i in range(0, length, length // 20):
        for h in range(2):
            score = (exact[:, h] @ q[0, h, i].double())[token[: i + 1]]
            least = score.sort(descending=True).values[min(2, i)]
            best = sorted(range(i + 1), key=lambda j: (-score[j], -j))  # noqa: B023
            read = [j for j in range(i + 1) if score[j] >= least] if equals else best[:3]
            want = (score[read] * K**-0.5).softmax(0) @ v[0, h, read].double()
            torch.testing.assert_close(y[0, h, i].double(), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [40, 600])
@pytest.mark.parametrize(
    "mechanism",
    [TopK(Causal(), 3), TopK(Causal(), 3, search=Flat()), with_equals(Causal(), 3), TopKEquals(Causal(), 3)],
    ids=["exact", "flat", "before", "equals"],
)
def test_a_long_key_changes_no_choice_among_earlier_keys(mechanism: KeyValueMechanism, length: int) -> None:
    """By its norm alone, 1e13 times that of others, all scores of a row would count as equal."""
    q, k, v = (torch.randn(1, 2, length, 4) for _ in range(3))
    at = length // 2
    is_long = torch.arange(length)[:, None] == at
    before, after = (call(mechanism, q, torch.where(is_long, size * k, k), v).y for size in (1, 1e13))
    assert torch.equal(after[:, :, :at], before[:, :, :at])
    # a query that the long key points away from chooses among the other keys as if this key were shorter
    shorter, longer = (torch.where(is_long, -size * q.mean(2, keepdim=True), k) for size in (1e9, 1e13))
    away = (q @ shorter[:, :, at, :, None])[..., 0] < -1e3
    assert away[:, :, at:].any()
    assert torch.equal(call(mechanism, q, longer, v).y[away], call(mechanism, q, shorter, v).y[away])
