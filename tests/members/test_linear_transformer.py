"""The linear Transformer and the Performer: a state that does not grow, and draws of their own for each block."""

import math
from typing import Any

import pytest
import torch

from kinformer.core.after_step import after_step
from kinformer.core.discover import find_member
from kinformer.core.state import leaves
from kinformer.members.performer import performer
from kinformer.members.rfa import rfa
from kinformer.models.mlm import MLM
from kinformer.nn.maps.arc_cosine import ArcCosine
from kinformer.nn.maps.elu import ELU
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.maps.relu import ReLU
from kinformer.nn.maps.trigonometric import Trigonometric
from kinformer.nn.mechanisms.decayed import Decayed
from kinformer.nn.mechanisms.delta_update import DeltaUpdate
from kinformer.nn.mechanisms.linear import AdditiveUpdate, GatedUpdate


@pytest.mark.parametrize("name", ["linear_transformer", "performer"])
def test_the_state_is_as_large_for_any_row(name: str) -> None:
    model = find_member(name)(d=16, depth=2, heads=2, length=64, vocab=11)

    def size(length: int) -> int:
        return sum(leaf.numel() for _, leaf in leaves(model.start(2, length)))

    assert size(1) == size(100_000)
    state = model.start(1, 40)
    state = model.logits(torch.randint(0, 11, (1, 40)), state).state
    assert sum(leaf.numel() for _, leaf in leaves(state)) * 2 == size(40)


@pytest.mark.parametrize("name", ["linear_transformer", "performer", "rfa"])
def test_with_lanes_they_read_on_beyond_any_length(name: str) -> None:
    """A7: those who want the state carried in training say so, and their positions do not end."""
    assert not find_member(name)(d=16, depth=2, heads=2, vocab=11).lanes
    model = find_member(name)(d=16, depth=2, heads=2, vocab=11, lanes=True).eval()
    assert model.lanes
    tokens, state, pieces = torch.randint(0, 11, (1, 24)), model.start(1, 24), []
    for chunk in tokens.split(6, 1):
        out = model.logits(chunk, state)
        state = out.state
        pieces.append(out.y)
    torch.testing.assert_close(torch.cat(pieces, 1), model.logits(tokens).y, rtol=1e-4, atol=1e-4)


def test_blocks_draw_their_own_directions_anew_while_they_train() -> None:
    model = performer(d=16, depth=2, heads=2, features=12, redraw=2, length=64, vocab=11)
    first, second = (block.layers[0].mechanism.map for block in model.body.layers)
    before = first.directions.clone()
    assert not torch.equal(before, second.directions)
    after_step(model, 0.1, {})
    assert torch.equal(first.directions, before)
    after_step(model, 0.2, {})
    assert not torch.equal(first.directions, before) and not torch.equal(first.directions, second.directions)


def test_directions_stay_where_sums_are_carried_on() -> None:
    """A state of old directions means nothing under new ones, so `lanes` keeps them."""
    for name in ("performer", "rfa"):
        for keywords, stay in (({"redraw": 1}, False), ({"lanes": True}, True)):
            model = find_member(name)(d=16, depth=1, heads=2, features=12, vocab=11, **keywords)
            map = model.body.layers[0].layers[0].mechanism.map
            before = map.directions.clone()
            after_step(model, 0.1, {})
            assert torch.equal(map.directions, before) is stay


KERNELS = ["softmax", "hyperbolic", "relu", "sigmoid", "abs", "softplus", "exp"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_performers_published_choices_reach_its_map(kernel: str) -> None:
    sizes = {"d": 16, "depth": 1, "heads": 2, "features": 12, "length": 16, "vocab": 11, "redraw": None}
    map = performer(**sizes, kernel=kernel, lengths="equal", eps=0.25).body.layers[0].layers[0].mechanism.map
    assert torch.allclose(map.directions.norm(dim=1), torch.full((12,), 8**0.5)) and map.eps == 0.25
    assert isinstance(map, FAVOR) is (kernel in ("softmax", "hyperbolic"))
    assert map.features(8) == (24 if kernel == "hyperbolic" else 12) and getattr(map, "f", kernel) == kernel
    apart = performer(**sizes, kernel=kernel, orthogonal=False).body.layers[0].layers[0].mechanism.map
    gram = apart.directions[:8] @ apart.directions[:8].T
    assert (gram - gram.diagonal().diag()).abs().max() > 0.1


def test_a_performer_of_sines_and_cosines() -> None:
    sizes = {"d": 16, "depth": 1, "heads": 2, "features": 12, "kernel": "trigonometric", "vocab": 11}
    for form in ("decoder", "encoder"):
        map = performer(**sizes, form=form, lengths="equal", redraw=3).body.layers[0].layers[0].mechanism.map
        assert isinstance(map, Trigonometric) and map.features(8) == 24 and map.redraw == 3
        assert torch.allclose(map.directions.norm(dim=1), torch.full((12,), 8**0.5))
    with pytest.raises(ValueError, match=r"^eps=0.1 has no effect with kernel=trigonometric; leave it out"):
        performer(**sizes, eps=0.1)


def test_a_performers_window_is_read_exactly() -> None:
    sizes = {"d": 16, "depth": 1, "heads": 2, "features": 12, "vocab": 11, "window": 4}
    for kernel in ("softmax", "hyperbolic"):
        near, far = performer(**sizes, kernel=kernel).body.layers[0].layers[0].mechanism.parts
        assert str(near.pattern) == "(Causal() & Band(left=3, right=None))" and far.by == 4
        assert far.linear.map.hyperbolic is (kernel == "hyperbolic")
    for wrong in ({"kernel": "relu"}, {"form": "encoder"}):
        with pytest.raises(ValueError, match="^window=4 has no effect with .*kernel=softmax"):
            performer(**sizes, **wrong)
    with pytest.raises(ValueError, match="^window=0"):
        performer(**{**sizes, "window": 0})


def test_both_kernels_of_random_feature_attention() -> None:
    sizes = {"d": 16, "depth": 1, "heads": 2, "features": 12, "vocab": 11}
    for kernel, kind, features in (("gaussian", RandomFourier, 24), ("arc-cosine", ArcCosine, 12)):
        for keywords in ({"redraw": 5}, {"lanes": True}):
            map = rfa(**sizes, kernel=kernel, **keywords).body.layers[0].layers[0].mechanism.map
            assert type(map) is kind and map.features(8) == features and map.redraw == keywords.get("redraw")
    with pytest.raises(ValueError, match=r"^tau=2\.0 has no effect with kernel=arc-cosine"):
        rfa(**sizes, kernel="arc-cosine", tau=2.0)
    map = rfa(**sizes, form="published").body.layers[0].layers[0].mechanism.map
    assert (map.scale, map.eps, map.floor, map.clamp) == (0.1, 1e-3, 1.0, "value")  # of the causal kernel


@pytest.mark.parametrize(
    ("member", "keywords", "says"),
    [
        (performer, {"form": "encoder", "lanes": True}, "lanes=true has no effect with form=encoder"),
        (performer, {"orthogonal": False, "lengths": "equal"}, "lengths=equal has no effect with orthogonal=false"),
        (performer, {"features": 0}, "features=0: give a whole number of at least 1"),
        (performer, {"eps": math.inf}, "eps=inf: give a number from 0"),
        (performer, {"eps": math.inf, "kernel": "relu"}, "eps=inf must be positive and finite"),
        (rfa, {"features": 0}, "features=0: give a whole number of at least 1"),
        (rfa, {"tau": 0.0}, "tau=0.0 must be positive and finite, because the map multiplies or divides by it"),
        (rfa, {"tau": math.nan}, "tau=nan must be positive and finite, because the map multiplies or divides by it"),
        (rfa, {"tau": math.inf}, "tau=inf must be positive and finite, because the map multiplies or divides by it"),
    ],
)
def test_what_means_nothing_or_does_nothing_is_refused(member: Any, keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}") as raised:
        member(**{"d": 16, "depth": 1, "heads": 2, "features": 12, "vocab": 11, **keywords})
    assert "\n" not in str(raised.value)


def test_the_performer_as_an_encoder_reads_both_ways() -> None:
    model = performer(d=16, depth=1, heads=2, features=12, form="encoder", length=16, vocab=11).eval()
    tokens = torch.randint(0, 11, (1, 6))
    other = torch.cat([tokens[:, :-1], (tokens[:, -1:] + 1) % 11], 1)
    assert isinstance(model, MLM)
    assert ((model.logits(tokens).y - model.logits(other).y)[0, :-1].abs().amax(-1) > 0).all()


def test_the_linear_transformers_updates_and_features_reach_its_mechanism() -> None:
    sizes = {"d": 16, "depth": 1, "heads": 2, "length": 16, "vocab": 11}
    for name, kind in (("sum", AdditiveUpdate), ("gated", GatedUpdate), ("decayed", Decayed), ("delta", DeltaUpdate)):
        for features, map in (("elu", ELU), ("relu", ReLU)):
            model = find_member("linear_transformer")(**sizes, features=features, update=name)
            mechanism = model.body.layers[0].layers[0].mechanism
            assert type(mechanism.update) is kind and type(mechanism.map) is map


def test_the_linear_transformer_as_an_encoder_reads_both_ways() -> None:
    sizes = {"d": 16, "depth": 1, "heads": 2, "vocab": 11, "form": "encoder"}
    model = find_member("linear_transformer")(**sizes).eval()
    tokens = torch.randint(0, 11, (1, 6))
    other = torch.cat([tokens[:, :-1], (tokens[:, -1:] + 1) % 11], 1)
    assert isinstance(model, MLM)
    assert ((model.logits(tokens).y - model.logits(other).y)[0, :-1].abs().amax(-1) > 0).all()
    for wrong in ({"lanes": True}, {"update": "delta"}):
        with pytest.raises(ValueError, match="has no effect with form=encoder; leave it out, or give form=decoder"):
            find_member("linear_transformer")(**sizes, **wrong)


def test_the_performers_stabiliser_is_the_tokens_or_as_in_the_authors_code_the_sequences() -> None:
    sizes = {"d": 16, "depth": 1, "heads": 2, "features": 12, "length": 16, "vocab": 11, "form": "encoder"}
    k = 3 * torch.randn(1, 2, 6, 8)
    for stabiliser, constants in (("token", 6), ("sequence", 1)):
        map = performer(**sizes, stabiliser=stabiliser).body.layers[0].layers[0].mechanism.map
        assert len(map(k, False)[1][0, 0].unique()) == constants
    with pytest.raises(ValueError, match="stabiliser=sequence has no effect with kernel=relu"):
        performer(**sizes, kernel="relu", stabiliser="sequence")
