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


def fates(tokens: Tensor, read: Tensor, targets: Tensor) -> tuple[float, float, float, float]:
    """Shares: of tokens, the chosen; of the chosen, those that read as the mask, as another token, as themselves."""
    chosen = targets >= 0
    masked, same = chosen & (read == VOCAB), chosen & (read == tokens)
    random = chosen & ~masked & ~same
    count = chosen.sum()
    return tuple(
        float(n) for n in (count / (tokens >= 0).sum(), *(part.sum() / count for part in (masked, random, same)))
    )


def test_fifteen_percent_are_chosen_and_of_these_80_10_10() -> None:
    tokens = torch.randint(0, VOCAB, (400, 500))
    tokens[:, :50] = -1
    read, targets = model().hide(tokens)
    assert fates(tokens, read, targets) == pytest.approx((0.15, 0.8, 0.1, 0.1), abs=0.01)
    chosen = targets >= 0
    assert torch.equal(targets[chosen], tokens[chosen]) and torch.equal(read[~chosen], tokens[~chosen])
    assert not chosen[:, :50].any() and read.max() == VOCAB


def test_training_draws_anew_by_the_seed_and_eval_always_alike() -> None:
    tokens, mlm = torch.randint(0, VOCAB, (4, 32)), model()
    torch.manual_seed(5)
    first, second = mlm(tokens).total.item(), mlm(tokens).total.item()
    torch.manual_seed(5)
    assert mlm(tokens).total.item() == first != second
    mlm.eval()
    before = torch.get_rng_state()
    assert mlm(tokens).total.item() == mlm(tokens).total.item()
    assert torch.equal(torch.get_rng_state(), before)


def test_in_a_training_a_row_s_tokens_decide_and_its_progress() -> None:
    tokens, mlm = torch.randint(0, VOCAB, (4, 32)), model().train()
    before = torch.get_rng_state()
    whole, repeated, later = (mlm(tokens, progress=progress) for progress in (0.25, 0.25, 0.5))
    halves = [mlm(rows, progress=0.25) for rows in tokens.split(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert whole.total.item() == repeated.total.item() != later.total.item()
    assert sum(int(half.count) for half in halves) == int(whole.count)
    every = [mlm.hide(tokens, fixed=True, seed=seed) for seed in range(1, 400)]
    stacked = [torch.cat(leaves_of_parts) for leaves_of_parts in zip(*every, strict=True)]
    assert fates(torch.cat([tokens] * 399), *stacked) == pytest.approx((0.15, 0.8, 0.1, 0.1), abs=0.01)


def test_the_loss_is_the_mean_over_the_chosen_tokens() -> None:
    tokens, mlm = torch.randint(0, VOCAB, (4, 32)), model().eval()
    tokens[1, 20:] = -1
    read, targets = mlm.hide(tokens, fixed=True)
    chances = mlm.logits(read).y.log_softmax(-1)
    assert chances.shape[-1] == VOCAB
    each = [-chances[b, t, targets[b, t]] for b, t in (targets >= 0).nonzero().tolist()]
    loss = mlm(tokens)
    torch.testing.assert_close(loss.total, torch.stack(each).mean())
    torch.testing.assert_close(loss.parts["nll"], loss.total)


def test_a_batch_of_which_nothing_is_chosen_has_no_loss() -> None:
    loss = model()(torch.full((2, 5), -1))
    loss.total.backward()
    assert loss.total.item() == 0


def test_segments_are_told_apart_and_are_the_first_kind_where_none_are_named() -> None:
    mlm, tokens = model(kinds=2).eval(), torch.randint(0, VOCAB, (2, 6))
    pos = torch.arange(6).expand(2, -1)
    plain, zeros, kinds_one = (
        mlm.logits(tokens, None, Context(pos, labels=labels)).y
        for labels in ({}, {"segment": torch.zeros_like(tokens)}, {"segment": torch.ones_like(tokens)})
    )
    assert torch.equal(plain, zeros) and not torch.allclose(plain, kinds_one)
    assert torch.equal(plain, mlm.logits(tokens).y)


def test_it_writes_nothing() -> None:
    with pytest.raises(NoState, match="use a causal member, like gpt"):
        model().start(1, 4)
