"""Members that differ from GPT by their heads: talking heads, multi-query, collaborative heads."""

import math

import pytest
import torch

from kinformer.core.discover import find_member
from kinformer.core.state import leaves
from kinformer.members.collaborative import collaborative
from kinformer.members.disagreement import disagreement
from kinformer.members.gpt import gpt
from kinformer.members.multi_query import multi_query
from kinformer.members.routing_by_agreement import routing_by_agreement
from kinformer.members.talking_heads import talking_heads

SIZES = {"d": 16, "depth": 2, "heads": 4, "length": 32, "vocab": 11}


def parameters(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def kept(model) -> int:
    """Numbers of keys and values that a state of one row holds for each token."""
    return sum(leaf.numel() for _, leaf in leaves(model.eval().start(1, 8)) if leaf.dim() == 4) // 8


def test_multi_query_keeps_one_head_of_keys_and_is_as_large_as_its_twin() -> None:
    """The paper widens the feed-forward by what the keys and values save; biases make the only difference."""
    plain, one, two = gpt(**SIZES), multi_query(**SIZES), multi_query(**SIZES, key_heads=2)
    assert (kept(one) * 4, kept(two) * 2) == (kept(plain), kept(plain))
    matrices = [sum(w.numel() for w in m.body.parameters() if w.dim() == 2) for m in (plain, one, two)]
    assert matrices[0] == matrices[1] == matrices[2]
    assert parameters(multi_query(**SIZES, hidden=64)) < parameters(plain)
    assert parameters(multi_query(**SIZES, key_heads=4)) == parameters(plain)


def test_multi_querys_head_dim_is_free() -> None:
    projection = multi_query(**SIZES, head_dim=6).body.layers[0].layers[0].projection
    assert (projection.k_dim, projection.key_heads, projection.heads) == (6, 1, 4)


def test_talking_heads_cost_their_mixes_alone(float64: None) -> None:
    assert parameters(talking_heads(**SIZES)) == parameters(gpt(**SIZES)) + 2 * 2 * 16
    # h_k = 4 heads of queries, h = 3 of the softmax, h_v = 2 of values: 4 * 3 + 3 * 2 a block
    other = talking_heads(**SIZES, softmax_heads=3, value_heads=2)
    assert parameters(other) == parameters(gpt(**SIZES)) + 2 * (12 + 6)


def test_talking_heads_whose_mixes_do_nothing_are_gpt(float64: None) -> None:
    model, plain = talking_heads(**SIZES).eval(), gpt(**SIZES).eval()
    left = model.load_state_dict(plain.state_dict(), strict=False)
    assert not left.unexpected_keys and all("mix" in name for name in left.missing_keys)
    for block in model.body.layers:
        for change in (block.layers[0].mechanism.before, block.layers[0].mechanism.after):
            torch.nn.init.eye_(change.mix.weight)
    tokens = torch.randint(0, 11, (2, 9))
    torch.testing.assert_close(model.logits(tokens).y, plain.logits(tokens).y, rtol=0, atol=1e-12)


def test_heads_talk_on_one_side_alone() -> None:
    """What is left out of one side is as if it mixed nothing, and asks for as many heads on either side."""
    both = talking_heads(**SIZES).eval()
    tokens = torch.randint(0, 11, (2, 9))
    for mixes, silent in (("scores", "after"), ("weights", "before")):
        alone = talking_heads(**SIZES, mixes=mixes).eval()
        left = both.load_state_dict(alone.state_dict(), strict=False)
        assert left.missing_keys and all(f".{silent}." in name for name in left.missing_keys)
        for block in both.body.layers:
            torch.nn.init.eye_(getattr(block.layers[0].mechanism, silent).mix.weight)
        torch.testing.assert_close(alone.logits(tokens).y, both.logits(tokens).y)
    talking_heads(**SIZES, mixes="scores", softmax_heads=2).logits(tokens)
    for words in ({"mixes": "scores", "value_heads": 2}, {"mixes": "weights", "softmax_heads": 3}):
        with pytest.raises(ValueError, match="_heads=[23] has no effect with mixes="):
            talking_heads(**SIZES, **words)


def test_collaborative_heads_keep_a_quarter_of_the_keys() -> None:
    small, plain = collaborative(**SIZES), gpt(**SIZES)
    assert parameters(small) < parameters(plain)
    assert kept(plain) == 2 * (16 + 16) and kept(small) == 2 * (4 + 4 + 16)  # shared columns, a score a head, values
    assert kept(collaborative(**SIZES, shared=8, content=False)) == 2 * (8 + 16)


@pytest.mark.parametrize("name", ["talking_heads", "multi_query", "collaborative", "realformer", "performer", "rfa"])
def test_the_first_loss_is_that_of_guessing(name: str) -> None:
    form = {"form": "decoder"} if name == "realformer" else {}
    model = find_member(name)(d=32, depth=2, heads=2, length=64, **form)
    loss = float(model(model.sample(2, 60, 0)).total.detach())
    assert abs(loss / math.log(256) - 1) < 0.1


def test_multi_query_knows_order_as_told() -> None:
    tokens = torch.randint(0, 11, (1, 8))
    turned = torch.cat([tokens[:, :7].flip(1), tokens[:, 7:]], 1)
    for position in ("learned", "sinusoidal", "rotary", "alibi", "none"):
        sizes = {key: value for key, value in SIZES.items() if key != "length" or position == "learned"}
        model = multi_query(**{**sizes, "depth": 1}, position=position).eval()
        moved = (model.logits(tokens).y - model.logits(turned).y)[0, -1].abs().max()
        assert bool(moved > 1e-6) is (position != "none")
    narrow = multi_query(**{**SIZES, "depth": 1}, pattern="Causal() & Band(2)").eval()
    other = torch.cat([(tokens[:, :1] + 1) % 11, tokens[:, 1:]], 1)
    assert torch.equal(narrow.logits(tokens).y[0, 3:], narrow.logits(other).y[0, 3:])


@pytest.mark.parametrize("name", ["softmax_heads", "value_heads"])
def test_no_heads_at_all_are_not_taken_for_the_default(name: str) -> None:
    with pytest.raises(ValueError, match="=0: give a whole number of at least 1"):
        talking_heads(d=16, depth=1, heads=2, length=8, vocab=11, **{name: 0})


def test_heads_are_routed_in_the_lower_layers_alone() -> None:
    for lower, wanted in ((None, [True, False]), (0, [False, False]), (2, [True, True])):
        model = routing_by_agreement(**SIZES, lower=lower, head_dim=3)
        assert [hasattr(block.layers[0].aggregation, "votes") for block in model.body.layers] == wanted
    with pytest.raises(ValueError, match="lower=3"):
        routing_by_agreement(**SIZES, lower=3)


def test_disagreement_is_gpt_that_pays_for_heads_that_are_alike(float64: None) -> None:
    plain, model = gpt(**SIZES), disagreement(**SIZES, subspace=0.5, position=0.25, output=2.0)
    rename = {name: name.replace("mechanism.mechanism", "mechanism") for name in model.state_dict()}
    assert set(rename.values()) == set(plain.state_dict())
    model.load_state_dict(plain.state_dict())
    tokens = torch.randint(0, 11, (3, 9))
    loss, of_plain = model(tokens), plain(tokens)
    parts = {name: value.item() for name, value in loss.parts.items()}
    extra = 0.5 * parts["subspace_disagreement"] + 0.25 * parts["position_disagreement"]
    extra += 2.0 * parts["output_disagreement"]
    assert loss.total.item() == pytest.approx(of_plain.total.item() + extra, abs=1e-12) and extra > 0.5
    assert list(disagreement(**SIZES, output=0.0)(tokens).parts) == ["nll"]
    with pytest.raises(ValueError, match="output=-1.0: give a number from 0 up"):
        disagreement(**SIZES, output=-1.0)
