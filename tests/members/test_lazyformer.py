"""LazyFormer: which blocks compare, what the others own and cost, and its plain twin."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from kinformer.members.gpt import gpt
from kinformer.members.lazyformer import lazyformer
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.mechanisms.lending import Lending
from kinformer.nn.mechanisms.reused import Reused
from kinformer.nn.mechanisms.softmax import Softmax


@pytest.mark.parametrize("every", [1, 2, 3, 9])
def test_the_first_of_each_block_lends(every: int) -> None:
    model = lazyformer(d=8, depth=5, heads=2, every=every, length=8, vocab=11, attention_dropout=0.25)
    mechanisms = [block.layers[0].mechanism for block in model.body.layers]
    lent = [n % every == 0 and n + 1 < 5 and every > 1 for n in range(5)]  # to a block above
    expected = [Reused if n % every else Lending if lent[n] else Softmax for n in range(5)]
    assert [type(mechanism) for mechanism in mechanisms] == expected
    assert all(mechanism.dropout == 0.25 for mechanism in mechanisms)


def test_without_lazy_blocks_it_is_gpt(float64: None) -> None:
    plain, lazy = (
        gpt(d=16, depth=2, heads=2, length=16, vocab=11),
        lazyformer(d=16, depth=2, heads=2, every=1, form="decoder", length=16, vocab=11),
    )
    lazy.load_state_dict(plain.state_dict())
    for block in plain.body.layers:
        block.layers[1].activation = "gelu"  # gpt takes its approximation by tanh
    tokens = torch.randint(0, 11, (2, 9))
    torch.testing.assert_close(lazy.logits(tokens).y, plain.logits(tokens).y, rtol=0, atol=1e-12)


def test_a_lazy_block_saves_queries_and_keys() -> None:
    """By count: 2 d^2 for queries and keys of a token, of multiplications with additions, and their weights."""

    def count(every: int) -> tuple[int, int]:
        model = lazyformer(d=16, depth=4, heads=2, every=every, length=64, vocab=11).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as flops:
            model.logits(torch.zeros(1, 32, dtype=torch.long))  # the fused kernel, of all blocks alike, is not counted
        return flops.get_total_flops(), sum(weight.numel() for weight in model.parameters())

    (plain, weights), (half, fewer), (quarter, fewest) = count(1), count(2), count(4)
    saved = 2 * 32 * 2 * 16 * 16
    assert plain - half == 2 * saved and plain - quarter == 3 * saved
    assert weights - fewer == 2 * 2 * (16 * 16 + 16) and weights - fewest == 3 * 2 * (16 * 16 + 16)


@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_a_step_of_training_keeps_less_than_without_sharing(form: Any) -> None:
    """Bytes for the backward, in rows of 16 to 256 tokens: no matrix of pairs, and fewer queries and keys."""

    def saved_numbers(every: int, length: int) -> int:
        model = lazyformer(d=16, depth=4, heads=2, every=every, form=form, length=length, vocab=11)
        storages: dict[int, int] = {}

        def keep(x: Tensor) -> Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss = model(torch.zeros(1, length, dtype=torch.long)).total
        del loss
        return sum(storages.values())

    for length in (16, 64, 256):
        plain, half, quarter = (saved_numbers(every, length) for every in (1, 2, 4))
        assert quarter < half < plain


def test_forms_and_refusals() -> None:
    assert isinstance(lazyformer(d=8, depth=2, heads=2, length=8), MLM)
    assert isinstance(lazyformer(d=8, depth=2, heads=2, length=8, form="decoder"), LM)
    with pytest.raises(ValueError, match="every=0: give a whole number of at least 1"):
        lazyformer(every=0)
