"""ProbSparse: all of its forms by loops from the equations, draws that know of no padding, and what it costs."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.mechanisms import probsparse
from kinformer.nn.mechanisms.probsparse import ProbSparse

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, S, K = 2, 4, 13, 11, 3
PADDED = torch.tensor([[-1, -1, *range(9), -1, -1], list(range(T))])
SOURCE = torch.tensor([[*range(S - 4), -1, -1, -1, -1], list(range(S))])

FORMS: dict[str, dict[str, Any]] = {
    "sampled": {},
    "code": {"divisor": "row"},
    "causal": {"causal": True},
    "causal code": {"causal": True, "divisor": "row", "rest": "sum"},
    "max-mean": {"measure": "max-mean", "causal": True},
    "log-sum-exp": {"measure": "log-sum-exp", "scale": 0.9},
}


def bundles(groups: int = H, pos: Tensor = PADDED, source: Tensor | None = None) -> tuple[Queries, Keys, Context]:
    ctx, k_pos = Context(pos, run=True), pos if source is None else source
    at = ctx.by_head if source is None else k_pos[:, None]
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(B, n, x.shape[1], K, generator=g) for n, x in ((H, pos), (groups, k_pos), (groups, k_pos)))
    return Queries(q, ctx.by_head), Keys(k, v, at, own=source is None), ctx


def share(factor: int, count: int) -> int:
    return min(count, max(1, factor * math.ceil(math.log(count))))


def measure(mechanism: ProbSparse, q: Tensor, k: Tensor, ranks: list[int]) -> float:
    """M of one query, in plain numbers."""
    scale = K**-0.5 if mechanism.scale is None else mechanism.scale
    if mechanism.measure != "sampled":
        s = [float(q @ key) * scale for key in k]
        top = max(s) if mechanism.measure == "max-mean" else math.log(sum(math.exp(x) for x in s))
        return top - sum(s) / len(s)
    s = [float(q @ k[n]) * scale for n in ranks]
    return max(s) - sum(s) / (len(s) if mechanism.divisor == "sample" else len(k))


def loop(mechanism: ProbSparse, q: Tensor, k: Tensor, v: Tensor, ranks: Tensor) -> Tensor:
    """What the queries of one head read of a row without padding."""
    u, scale = share(mechanism.factor, len(q)), K**-0.5 if mechanism.scale is None else mechanism.scale
    draws = ranks[:, : share(mechanism.factor, len(k))].tolist()
    m = [measure(mechanism, q[i], k, draws[i]) for i in range(len(q))]
    chosen = sorted(range(len(q)), key=lambda i: m[i])[-u:]
    outputs = []
    for i in range(len(q)):
        last = i + 1 if mechanism.causal else len(k)
        if i in chosen:
            outputs.append((q[i] @ k[:last].T * scale).softmax(0) @ v[:last])
        else:
            outputs.append(v[:last].sum(0) if mechanism.rest == "sum" else v[:last].mean(0))
    return torch.stack(outputs)


@pytest.mark.parametrize("groups", [H, 1])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_it_is_the_papers_loop(form: str, across: bool, groups: int) -> None:
    mechanism = ProbSparse(factor=1, **FORMS[form]).eval()
    queries, keys, ctx = bundles(groups, source=SOURCE if across else None)
    if across and mechanism.causal:
        with pytest.raises(ValueError, match=r"keys of another sequence\. Pass causal=False"):
            mechanism(queries, keys, None, ctx)
        return
    y = mechanism(queries, keys, None, ctx).y.y
    for b in range(B):
        at, is_real_key = PADDED[b] >= 0, keys.pos[b, 0] >= 0
        count = is_real_key.sum()
        ranks = torch.zeros(1, H, int(at.sum()), 1).long()
        if mechanism.chance is not None:
            ranks = mechanism.ranks(H, torch.arange(int(at.sum()))[None, None], count[None, None], S)
        for h in range(H):
            real_keys = (x[b, h * groups // H, is_real_key] for x in keys[:2])
            torch.testing.assert_close(y[b, h, at], loop(mechanism, queries.q[b, h, at], *real_keys, ranks[0, h]))
            assert not y[b, h, ~at].any()


def test_the_paper_s_bounds_hold_between_its_measures() -> None:
    """Lemma 1: ln L <= M <= max_j s_j - mean_j s_j + ln L."""
    queries, keys, ctx = bundles(pos=torch.arange(T).expand(B, -1))

    def measured(name: Any) -> Tensor:
        mechanism = ProbSparse(measure=name)
        return mechanism.measure_sparsity(mechanism.make_request(queries, keys, None, ctx)[0])

    exact, bound = measured("log-sum-exp"), measured("max-mean")
    assert bool((exact >= math.log(T)).all()) and bool((exact <= bound + math.log(T)).all())
    assert bool((exact >= bound).all())


def test_a_long_query_changes_no_choice_among_the_others() -> None:
    """The query with the largest M is chosen anyway; the others stay in the order of their own M."""
    queries, keys, ctx = bundles(pos=torch.arange(T).expand(B, -1))
    mechanism = ProbSparse(factor=1, measure="max-mean")
    longer = queries._replace(q=torch.where(torch.arange(T)[:, None] == T - 1, 1e14 * queries.q, queries.q))
    request = mechanism.make_request(longer, keys, None, ctx)[0]
    s = request.scale * longer.q @ keys.k.repeat_interleave(H // keys.k.shape[1], 1).mT
    m, chosen = s.amax(-1) - s.mean(-1), mechanism.choose_queries(request)
    assert T > chosen.shape[-1] > 1
    assert torch.equal(chosen.sort(-1).values, m.topk(chosen.shape[-1]).indices.sort(-1).values)


def test_draws_are_of_real_keys_alone_and_others_in_every_step() -> None:
    mechanism = ProbSparse(factor=1, seed=5)
    rank, keys = torch.arange(400)[None, None], torch.tensor([[7]])
    ranks = mechanism.ranks(2, rank, keys, 6)
    assert ranks.shape == (1, 2, 400, 6) and sorted(ranks.unique().tolist()) == list(range(7))
    counts = ranks.flatten().bincount().double() / ranks.numel()
    assert bool((counts - 1 / 7).abs().max() < 0.03)
    assert not torch.equal(ranks[:, 0], ranks[:, 1])
    assert mechanism.chance is not None
    mechanism.chance.after_step(0.1, {})
    assert not torch.equal(ranks, mechanism.ranks(2, rank, keys, 6))


class Made(TorchDispatchMode):
    """How many numbers operations made, and the most that one of them did."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in (result if isinstance(result, tuple | list) else [result]) if isinstance(x, Tensor)]
        self.total += sum(sizes)
        self.most = max([self.most, *sizes])
        return result


@pytest.mark.parametrize("causal", [False, True])
def test_it_costs_length_times_its_logarithm_backwards_too(causal: bool) -> None:
    totals = []
    for length in (1100, 2200):  # both logarithms round up to 8
        pos = torch.arange(length).expand(1, -1)
        ctx = Context(pos, run=True, full=True)
        q, k, v = (torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3))
        with Made() as counter:
            y = ProbSparse(causal=causal, factor=1)(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y
            y.square().sum().backward()
        totals.append(counter.total)
        assert counter.most < length * length / 4
    assert totals[1] < 2.3 * totals[0]


@pytest.mark.parametrize(
    ("keywords", "says"),
    [({"factor": 0}, "factor"), ({"rest": "sum"}, "rest"), ({"measure": "max-mean", "divisor": "row"}, "divisor")],
)
def test_wrong_choices_are_refused(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        ProbSparse(**keywords)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("groups", (1, 2, H))
@pytest.mark.parametrize("source", (None, SOURCE), ids=("self", "across"))
def test_keys_that_are_drawn_are_gathered_or_all_multiplied(
    groups: int, source: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism, (queries, keys, ctx) = ProbSparse(factor=1), bundles(groups, source=source)
    request = mechanism.make_request(queries, keys, None, ctx)[0]
    of_all = mechanism.measure_sparsity(request)
    monkeypatch.setattr(probsparse, "ALL", 0)
    monkeypatch.setattr(probsparse, "GATHERED", 70)  # several blocks
    torch.testing.assert_close(mechanism.measure_sparsity(request), of_all)
