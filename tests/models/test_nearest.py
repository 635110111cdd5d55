"""Nearest and ContinuousCache against loops over the papers' equations, in float64; and what they do at the edges."""

import math

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.neighbours import Entries
from kinformer.decoding.generate import generate
from kinformer.members.calm import calm
from kinformer.members.gpt import gpt
from kinformer.models.continuous_cache import ContinuousCache, _History
from kinformer.models.lm import LM
from kinformer.models.nearest_neighbour_lm import NearestNeighbourLM
from kinformer.models.support.memory_probabilities import log_p_by_token, mix_log_p

TAP = "1.1.input"  # what the feed-forward of the second block reads


def model(vocab: int = 11) -> LM:
    torch.manual_seed(0)
    return gpt(d=16, depth=2, heads=2, length=32, vocab=vocab).double().eval()


def tokens(rows: int = 2, length: int = 7, vocab: int = 11) -> Int[Tensor, "B T"]:
    return torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(1))


def entries(count: int = 12, vocab: int = 11) -> Entries:
    generator = torch.Generator().manual_seed(2)
    return Entries(
        torch.randn(count, 16, generator=generator, dtype=torch.float64),
        torch.randint(vocab, (count,), generator=generator),
    )


def state_of(lm: LM, row: Int[Tensor, " T"]) -> tuple[Float[Tensor, "T d"], Float[Tensor, "T V"], Float[Tensor, "T D"]]:
    """What the tap gives, the model's probabilities, and what its head reads."""
    ctx = Context(torch.arange(len(row))[None], run=True, full=True, taps=(TAP,))
    with torch.no_grad():
        out = lm.logits(row[None], None, ctx)
        return out.taps[TAP][0], out.y[0].softmax(-1), lm.hidden(row[None]).y[0]


@pytest.mark.parametrize(("k", "weight", "temperature"), [(5, 0.25, 1.0), (99, 0.6, 7.0), (1, 1.0, 0.5), (3, 0.0, 1.0)])
def test_the_equation_of_knn_lm(k: int, weight: float, temperature: float) -> None:
    lm, rows, store = model(), tokens(), entries()
    with torch.no_grad():
        ours = NearestNeighbourLM(lm, store, TAP, k=k, weight=weight, temperature=temperature).logits(rows).y.exp()
    for row, actual in zip(rows, ours, strict=True):
        states, own, _ = state_of(lm, row)
        for t in range(len(row)):
            away = [float(((key - states[t]) ** 2).sum()) for key in store.keys]
            near = sorted(range(len(away)), key=lambda n: (away[n], n))[:k]
            weights = [math.exp((away[near[0]] - away[n]) / temperature) for n in near]
            for word in range(11):
                share = sum(w for w, n in zip(weights, near, strict=True) if int(store.tokens[n]) == word) / sum(
                    weights
                )
                expected = weight * share + (1 - weight) * float(own[t, word])
                assert float(actual[t, word]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_the_equation_of_the_continuous_cache(size: int) -> None:
    lm, rows, weight, theta = model(), tokens(), 0.3, 0.7
    with torch.no_grad():
        ours = ContinuousCache(lm, size=size, weight=weight, theta=theta).logits(rows).y.exp()
    for row, actual in zip(rows, ours, strict=True):
        _, own, h = state_of(lm, row)
        for t in range(len(row)):
            before = range(max(0, t - size), t)
            weights = [math.exp(theta * float(h[t] @ h[i])) for i in before]
            for word in range(11):
                expected = float(own[t, word])
                if weights:
                    same = sum(w for w, i in zip(weights, before, strict=True) if int(row[i + 1]) == word)
                    expected = weight * same / sum(weights) + (1 - weight) * expected
                assert float(actual[t, word]) == pytest.approx(expected, abs=1e-12)


def test_the_probabilities_of_both_together_sum_to_one_and_are_mixed_in_turn() -> None:
    lm, rows, store = model(), tokens(), entries()
    cached = ContinuousCache(lm, size=4, weight=0.2)
    with torch.no_grad():
        combined = NearestNeighbourLM(cached, store, TAP, k=4, weight=0.3).logits(rows).y.exp()
        alone = NearestNeighbourLM(lm, store, TAP, k=4, weight=1.0).logits(rows).y.exp()
        inner = cached.logits(rows).y.exp()
    torch.testing.assert_close(combined.sum(-1), torch.ones_like(combined[..., 0]))
    torch.testing.assert_close(combined, 0.3 * alone + 0.7 * inner)


def test_an_empty_store_leaves_the_model_as_it_is() -> None:
    lm, rows = model(), tokens()
    store = Entries(torch.zeros(0, 16, dtype=torch.float64), torch.zeros(0, dtype=torch.long))
    with torch.no_grad():
        torch.testing.assert_close(NearestNeighbourLM(lm, store, TAP).logits(rows).y, lm.logits(rows).y.log_softmax(-1))


def test_what_is_far_less_likely_keeps_its_digits() -> None:
    actual = log_p_by_token(torch.tensor([0.0, -300.0, -301.0]), torch.tensor([4, 2, 2]), 6)
    expected = -300 + math.log(1 + math.exp(-1))
    assert float(actual[2]) == pytest.approx(expected, abs=1e-4)
    assert actual.isneginf().tolist() == [True, True, False, True, False, True]
    assert log_p_by_token(torch.tensor([0.0]), torch.tensor([-1]), 3).isneginf().all()
    assert not mix_log_p(torch.full((3,), -1.0), actual[:3], 1.0).isnan().any()


def test_the_cache_looks_back_in_float32_under_autocast() -> None:
    lm = model().float()
    rows = tokens()
    h = 3 * torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(4))
    pos, cache = torch.arange(7).expand(2, 7), ContinuousCache(lm, size=5, theta=2.0)
    entries_kept = _History(h, rows, pos)
    like = torch.zeros(2, 7, 11)
    expected = cache._cache_log_p(h, pos, entries_kept, like)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(cache._cache_log_p(h, pos, entries_kept, like), expected)


def test_padding_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, counts, search = NearestNeighbourLM(model(), entries(), TAP, k=4), list[int](), Entries.search
    monkeypatch.setattr(
        Entries, "search", lambda self, queries, k: (counts.append(len(queries)), search(self, queries, k))[1]
    )
    row = tokens(1)
    padded = torch.cat([torch.full((1, 3), -1), row, torch.full((1, 2), -1)], 1)
    with torch.no_grad():
        torch.testing.assert_close(reader.logits(padded).y[:, 3:-2], reader.logits(row).y)
    assert counts == [7, 7]


def test_a_model_that_tokens_leave_is_refused() -> None:
    with pytest.raises(ValueError, match="a datastore does not work with early exits.*Give a model without exits"):
        NearestNeighbourLM(calm(d=16, depth=2, heads=2, length=8, vocab=11), entries(), TAP)


@pytest.mark.parametrize("wrong", [{"k": 0}, {"weight": 1.5}, {"temperature": 0.0}])
def test_numbers_without_a_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        NearestNeighbourLM(model(), entries(), TAP, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no hidden state"):
        NearestNeighbourLM(model(), entries(), "9.1.input").logits(tokens())


def test_what_the_store_says_is_written_by_drawing_and_by_search() -> None:
    """A store in which every state is followed by token 7."""
    store = Entries(entries().keys, torch.full((12,), 7))
    sure = NearestNeighbourLM(ContinuousCache(model(), size=5), store, TAP, k=3, weight=0.999)
    prompts = torch.tensor([[-1, -1, 3], [1, 2, 3]])
    assert generate(sure, prompts, 6, temperature=0)[:, 3:].eq(7).all()
    assert generate(sure, prompts, 6, beam=3)[:, 3:].eq(7).all()


def test_rows_are_searched_as_they_would_be_alone() -> None:
    reader = NearestNeighbourLM(ContinuousCache(model(), size=5, weight=0.4), entries(), TAP, k=4, temperature=8.0)
    prompts = torch.tensor([[-1, -1, 3, 5], [1, 2, 3, 4]])
    together = generate(reader, prompts, 8, beam=3)
    assert generate(reader, prompts[:1, 2:], 8, beam=3).equal(together[:1, 2:])
    assert generate(reader, prompts[1:], 8, beam=3).equal(together[1:])
