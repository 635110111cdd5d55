"""Routing by agreement: where heads are routed, and that a translator is the 2017 Transformer but for them."""

import pytest

from kinformer.members.routing_by_agreement import routing_by_agreement
from kinformer.members.transformer import transformer
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.aggregations.em_routing import EMRouting

SMALL = {"d": 16, "depth": 4, "heads": 2, "vocab": 11}


def routed(model: LM | Seq2Seq) -> list[str]:
    return [name for name, part in model.named_modules() if isinstance(part, EMRouting)]


def test_the_lower_half_of_a_decoder_is_routed() -> None:
    assert routed(routing_by_agreement(**SMALL)) == [f"body.layers.{n}.layers.0.aggregation" for n in (0, 1)]


@pytest.mark.parametrize("places", [("encoder",), ("cross",), ("decoder",), ("encoder", "cross", "decoder")])
def test_a_translator_is_routed_where_it_is_told(places: tuple[str, ...]) -> None:
    model = routing_by_agreement(**SMALL, form="encoder_decoder", places=places, lower=1)
    names = {"encoder": "encoder.layers.0.layers.0", "decoder": "decoder.layers.0.layers.0"}
    names["cross"] = "decoder.layers.0.layers.1"
    assert set(routed(model)) == {f"{names[place]}.aggregation" for place in places}


def test_without_routing_it_is_the_transformer() -> None:
    model = routing_by_agreement(**SMALL, form="encoder_decoder", lower=0)
    plain = transformer(**SMALL, hidden=64, dropout=0.0)
    assert [(name, x.shape) for name, x in model.named_parameters()] == [
        (name, x.shape) for name, x in plain.named_parameters()
    ]
    batch = plain.sample(2, 9, 0)
    model.load_state_dict(plain.state_dict())
    assert model.eval()(batch)[0].item() == pytest.approx(plain.eval()(batch)[0].item())


def test_heads_are_routed_in_the_lower_layers_alone() -> None:
    for lower, expected in ((None, [True, False]), (0, [False, False]), (2, [True, True])):
        model = routing_by_agreement(**{**SMALL, "depth": 2}, lower=lower, head_dim=3)
        assert [hasattr(block.layers[0].aggregation, "votes") for block in model.body.layers] == expected
    with pytest.raises(ValueError, match="lower=3"):
        routing_by_agreement(**{**SMALL, "depth": 2}, lower=3)
