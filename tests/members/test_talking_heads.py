"""Talking heads: the lowest attention with its two mixes by hand, a mix that is turned, and what the mixes cost."""

import pytest
import torch

import kinformer as kf
from tests.members.probes import Heads, check_lowest, count, distances, softmax

pytestmark = pytest.mark.usefixtures("float64")

SIZES = {"d": 16, "depth": 2, "heads": 4, "length": 32, "vocab": 11}


def by_hand(heads: Heads, g: int) -> torch.Tensor:
    """J_h = Q_h K_h^T / sqrt(K); L = J P_l; W = softmax(L) over earlier tokens; U = W P_w; O_g = U_g V_g."""
    before, after = (mix.mix.weight for mix in (heads.layer.mechanism.before, heads.layer.mechanism.after))
    products = [heads.q[:, h] @ heads.k[:, h].T / 2 for h in range(heads.q.shape[1])]
    weights = []
    for line in before:
        mixed = sum(share * product for share, product in zip(line, products, strict=True))
        weights.append(softmax(mixed.masked_fill(distances() < 0, -torch.inf)))
    return sum(share * weight for share, weight in zip(after[g], weights, strict=True)) @ heads.v[:, g]


@pytest.mark.parametrize("counts", [{}, {"softmax_heads": 3, "value_heads": 2}])
def test_heads_talk_before_and_after_the_softmax(counts: dict[str, int]) -> None:
    check_lowest(kf.talking_heads(**SIZES, **counts), by_hand, heads=counts.get("value_heads", 4))


def test_a_mix_that_is_turned_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head out takes the shares of a column in place of those of a row."""
    mixed = kf.MixHeads.forward

    def turned(self, x, mask):
        self = type(self)(self.mix.in_features)
        return mixed(self, x, mask)

    monkeypatch.setattr(kf.MixHeads, "forward", turned)
    with pytest.raises(AssertionError):
        check_lowest(kf.talking_heads(**SIZES), by_hand)


def test_talking_heads_cost_their_mixes_alone() -> None:
    assert count(kf.talking_heads(**SIZES)) == count(kf.gpt(**SIZES)) + 2 * 2 * 16
    # h_k = 4 heads of queries, h = 3 of the softmax, h_v = 2 of values: 4 * 3 + 3 * 2 a block
    other = kf.talking_heads(**SIZES, softmax_heads=3, value_heads=2)
    assert count(other) == count(kf.gpt(**SIZES)) + 2 * (12 + 6)


def test_talking_heads_whose_mixes_do_nothing_are_gpt() -> None:
    model, plain = kf.talking_heads(**SIZES).eval(), kf.gpt(**SIZES).eval()
    left = model.load_state_dict(plain.state_dict(), strict=False)
    assert not left.unexpected_keys and all("mix" in name for name in left.missing_keys)
    for block in model.body.layers:
        for change in (block.layers[0].mechanism.before, block.layers[0].mechanism.after):
            torch.nn.init.eye_(change.mix.weight)
    tokens = torch.randint(0, 11, (2, 9))
    torch.testing.assert_close(model.logits(tokens).y, plain.logits(tokens).y, rtol=0, atol=1e-12)


def test_heads_talk_on_one_side_alone() -> None:
    """What is left out of one side is as if it mixed nothing, and asks for as many heads on either side."""
    whole = kf.talking_heads(**SIZES).eval()
    tokens = torch.randint(0, 11, (2, 9))
    for mixes, silent in (("scores", "after"), ("weights", "before")):
        alone = kf.talking_heads(**SIZES, mixes=mixes).eval()
        left = whole.load_state_dict(alone.state_dict(), strict=False)
        assert left.missing_keys and all(f".{silent}." in name for name in left.missing_keys)
        for block in whole.body.layers:
            torch.nn.init.eye_(getattr(block.layers[0].mechanism, silent).mix.weight)
        torch.testing.assert_close(alone.logits(tokens).y, whole.logits(tokens).y)
    kf.talking_heads(**SIZES, mixes="scores", softmax_heads=2).logits(tokens)
    for words in ({"mixes": "scores", "value_heads": 2}, {"mixes": "weights", "softmax_heads": 3}):
        with pytest.raises(ValueError, match="_heads=[23] has no effect with mixes="):
            kf.talking_heads(**SIZES, **words)


@pytest.mark.parametrize("name", ["softmax_heads", "value_heads"])
def test_no_heads_at_all_are_not_taken_for_the_default(name: str) -> None:
    with pytest.raises(ValueError, match="=0: give a whole number of at least 1"):
        kf.talking_heads(d=16, depth=1, heads=2, length=8, vocab=11, **{name: 0})
