"""LazyFormer: which blocks compare, what the others own and cost, and its plain twin."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kinformer.mechanisms.lending import Lending
from kinformer.mechanisms.reused import Reused
from kinformer.mechanisms.softmax import Softmax
from kinformer.members.gpt import gpt
from kinformer.members.lazyformer import lazyformer
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.patterns.full import Full


@pytest.mark.parametrize("every", [1, 2, 3, 9])
def test_the_first_of_each_block_lends(every: int) -> None:
    model = lazyformer(d=8, depth=5, heads=2, every=every, length=8, vocab=11, attention_dropout=0.25)
    mechanisms = [block.layers[0].mechanism for block in model.body.layers]
    lent = [n % every == 0 and n + 1 < 5 and every > 1 for n in range(5)]  # to a block above
    wanted = [Reused if n % every else Lending if lent[n] else Softmax for n in range(5)]
    assert [type(one) for one in mechanisms] == wanted
    assert all(one.dropout == 0.25 for one in mechanisms)


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


def test_a_lazy_block_saves_queries_keys_and_their_products() -> None:
    """By count: 2 d^2 for queries and keys of a token, d L for its scores, of multiplications with additions."""

    def count(every: int) -> tuple[int, int]:
        model = lazyformer(d=16, depth=4, heads=2, every=every, length=64, vocab=11).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as flops:
            for block in model.body.layers if every == 1 else ():
                block.layers[0].mechanism = Lending(Full())  # the fused kernel is not counted
            model.logits(torch.zeros(1, 32, dtype=torch.long))
        return flops.get_total_flops(), sum(weight.numel() for weight in model.parameters())

    (plain, weights), (half, fewer), (quarter, fewest) = count(1), count(2), count(4)
    saved = 2 * 32 * (2 * 16 * 16 + 16 * 32)
    assert plain - half == 2 * saved and plain - quarter == 3 * saved
    assert weights - fewer == 2 * 2 * (16 * 16 + 16) and weights - fewest == 3 * 2 * (16 * 16 + 16)


def test_forms_and_refusals() -> None:
    assert isinstance(lazyformer(d=8, depth=2, heads=2, length=8), MLM)
    assert isinstance(lazyformer(d=8, depth=2, heads=2, length=8, form="decoder"), LM)
    with pytest.raises(ValueError, match="every=0: give a whole number of at least 1"):
        lazyformer(every=0)
