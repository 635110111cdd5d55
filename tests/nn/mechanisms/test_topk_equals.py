"""TopKEquals: the equation where scores are equal, rows that are gathered and rows that are not, lost equals."""

import pytest
import torch

import kinformer as kf
from kinformer.core.pattern import Pattern
from kinformer.nn.mechanisms import topk_equals
from tests.nn.mechanisms.test_topk import PATTERNS, H, by_hand, call, inputs, with_equals

pytestmark = pytest.mark.usefixtures("float64")


def check(pattern: Pattern, most: int, gathered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """S_i = the keys j whose q_i.k_j is at least the k-th highest; whole numbers make many of them equal."""
    if gathered:
        monkeypatch.setattr(topk_equals, "LONG", 1)
        monkeypatch.setattr(topk_equals, "STEP", 4)
    heads = inputs(True, 2)
    torch.testing.assert_close(call(kf.TopKEquals(pattern, most), *heads).y, by_hand(*heads, pattern, most, True))


@pytest.mark.parametrize("pattern", PATTERNS[:2], ids=str)
@pytest.mark.parametrize("gathered", [False, True])
def test_a_query_reads_all_keys_that_equal_the_last_of_the_best(
    pattern: Pattern, gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(pattern, 5, gathered, monkeypatch)


def test_lost_equals_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The k best of a row alone, as top-k without ties has them."""
    monkeypatch.setattr(topk_equals, "_best", lambda x, k, tolerance: topk_equals._Best(*x.topk(min(k, x.shape[3]))))
    with pytest.raises(AssertionError):
        check(kf.Full(), 5, True, monkeypatch)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("groups", "whole", "most"), [(4, False, 3), (1, True, 2), (2, True, 5), (4, False, 99)])
def test_a_long_row_gathers_what_the_equation_reads_with_its_gradients(
    pattern: Pattern, groups: int, whole: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`whole` numbers have many equals: some rows are gathered wider, and with few of them all scores are made."""
    monkeypatch.setattr(topk_equals, "LONG", 1)
    monkeypatch.setattr(topk_equals, "STEP", 4)
    heads = [x.requires_grad_() for x in inputs(whole, groups)]
    reads = []
    for mechanism in (kf.TopKEquals(pattern, most), with_equals(pattern, most)):
        read = call(mechanism, *heads)
        reads.append((read.y, read.lse, *torch.autograd.grad((read.y.sin().sum(-1) + read.lse.cos()).sum(), heads)))
    plain = [x.detach() for x in heads]
    torch.testing.assert_close(reads[0][0], by_hand(*plain, pattern, most, True))
    for ours, theirs in zip(*reads, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_long_row_is_gathered_unless_most_of_its_scores_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk_equals, "LONG", 1)
    monkeypatch.setattr(topk_equals, "STEP", 4)
    widths: list[int] = []
    inner = topk_equals.columns_with_ties
    monkeypatch.setattr(
        topk_equals,
        "columns_with_ties",
        lambda *arguments: (columns := inner(*arguments), widths.append(columns.shape[3]))[0],
    )
    q, k, v = inputs(False, H)
    call(kf.TopKEquals(kf.Full(), 3), q, k, v)
    k[:, :, 5] = k[:, :, 2]  # wherever the third best is one of these two, both are read
    call(kf.TopKEquals(kf.Full(), 3), q, k, v)
    call(kf.TopKEquals(kf.Full(), 3), q, torch.ones_like(k), v)
    assert widths == [3, 4, 0]
