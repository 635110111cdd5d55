"""MLM: what it hides and how often, what its loss is over, and what it refuses."""

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.models.mlm import MLM
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.positions.learned import Learned

VOCAB = 1000


def model(**keywords: int) -> MLM:
    return MLM(VOCAB, 8, Stack([MLP(8)]), position=Learned(8, 64), **keywords)


def fates(tokens: Tensor, read: Tensor, wanted: Tensor) -> tuple[float, float, float, float]:
    """Shares: of tokens, the chosen; of the chosen, those that read as the mask, as another token, as themselves."""
    chosen = wanted >= 0
    masked, same = chosen & (read == VOCAB), chosen & (read == tokens)
    drawn = chosen & ~masked & ~same
    count = chosen.sum()
    return tuple(
        float(n) for n in (count / (tokens >= 0).sum(), *(part.sum() / count for part in (masked, drawn, same)))
    )


def test_fifteen_percent_are_chosen_and_of_these_80_10_10() -> None:
    tokens = torch.randint(0, VOCAB, (400, 500))
    tokens[:, :50] = -1
    read, wanted = model().hide(tokens)
    assert fates(tokens, read, wanted) == pytest.approx((0.15, 0.8, 0.1, 0.1), abs=0.01)
    chosen = wanted >= 0
    assert torch.equal(wanted[chosen], tokens[chosen]) and torch.equal(read[~chosen], tokens[~chosen])
    assert not chosen[:, :50].any() and read.max() == VOCAB


def test_training_draws_anew_by_the_seed_and_eval_always_alike() -> None:
    tokens, made = torch.randint(0, VOCAB, (4, 32)), model()
    torch.manual_seed(5)
    first, second = made(tokens).total.item(), made(tokens).total.item()
    torch.manual_seed(5)
    assert made(tokens).total.item() == first != second
    made.eval()
    before = torch.get_rng_state()
    assert made(tokens).total.item() == made(tokens).total.item()
    assert torch.equal(torch.get_rng_state(), before)


def test_in_a_training_a_row_s_tokens_decide_and_its_progress() -> None:
    tokens, made = torch.randint(0, VOCAB, (4, 32)), model().train()
    before = torch.get_rng_state()
    whole, again, later = (made(tokens, progress=progress) for progress in (0.25, 0.25, 0.5))
    halves = [made(rows, progress=0.25) for rows in tokens.split(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert whole.total.item() == again.total.item() != later.total.item()
    assert sum(int(half.count) for half in halves) == int(whole.count)
    every = [made.hide(tokens, fixed=True, seed=seed) for seed in range(1, 400)]
    stacked = [torch.cat(some) for some in zip(*every, strict=True)]
    assert fates(torch.cat([tokens] * 399), *stacked) == pytest.approx((0.15, 0.8, 0.1, 0.1), abs=0.01)


def test_the_loss_is_the_mean_over_the_chosen_tokens() -> None:
    tokens, made = torch.randint(0, VOCAB, (4, 32)), model().eval()
    tokens[1, 20:] = -1
    read, wanted = made.hide(tokens, fixed=True)
    chances = made.logits(read).y.log_softmax(-1)
    assert chances.shape[-1] == VOCAB
    each = [-chances[b, t, wanted[b, t]] for b, t in (wanted >= 0).nonzero().tolist()]
    loss = made(tokens)
    torch.testing.assert_close(loss.total, torch.stack(each).mean())
    torch.testing.assert_close(loss.parts["nll"], loss.total)


def test_a_batch_of_which_nothing_is_chosen_has_no_loss() -> None:
    loss = model()(torch.full((2, 5), -1))
    loss.total.backward()
    assert loss.total.item() == 0


def test_segments_are_told_apart_and_are_the_first_kind_where_none_are_named() -> None:
    made, tokens = model(kinds=2).eval(), torch.randint(0, VOCAB, (2, 6))
    pos = torch.arange(6).expand(2, -1)
    plain, zeros, ones = (
        made.logits(tokens, None, Context(pos, labels=labels)).y
        for labels in ({}, {"segment": torch.zeros_like(tokens)}, {"segment": torch.ones_like(tokens)})
    )
    assert torch.equal(plain, zeros) and not torch.allclose(plain, ones)
    assert torch.equal(plain, made.logits(tokens).y)


def test_it_writes_nothing() -> None:
    with pytest.raises(NoState, match="use a causal member, like gpt"):
        model().start(1, 4)
