"""Places of layers, and weights that are read off a mechanism."""

import math

import torch

from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.routing_published import PublishedRouting
from kinformer.nn.projections.qkv import QKV
from kinformer.pages.pictures.support.attention_calls import calls, join_names, place_of, read_weights


def test_places_are_named_as_a_reader_counts() -> None:
    assert place_of("body.layers.3.layers.0") == "layer 3"
    assert place_of("decoder.layers.2.layers.1") == "decoder layer 2"
    assert join_names(["encoder layer 0", "encoder layer 1", "encoder layer 2"]) == "encoder layers 0-2"
    assert (
        join_names(["layer 0", "layer 1", "layer 2"]) == "layers 0-2"
        and join_names(["layer 1", "layer 3"]) == "layers 1, 3"
    )
    assert join_names([""]) == "" and join_names(["layer 2"]) == "layer 2"


def test_weights_beside_a_learned_value_are_those_of_keys_alone() -> None:
    """A query of the published routing reads a null value of its own beside keys, whose weights are then below 1."""
    torch.manual_seed(0)
    mechanism = PublishedRouting(2, 8, 1, 12, null=True, norm="none")
    (call,) = calls(Attention(QKV(16, 2), mechanism), torch.randn(1, 12, 16))
    logits = call.queries.q[0] @ call.keys.k[0].mT * 8**-0.5  # one cluster takes all tokens
    logits = logits.masked_fill(torch.ones(12, 12).tril() == 0, -math.inf)
    assert mechanism.null_k is not None
    null = (call.queries.q[0] * mechanism.null_k).sum(-1, keepdim=True) * 8**-0.5
    expected = torch.cat([null, logits], -1).softmax(-1)[..., 1:]
    torch.testing.assert_close(read_weights(call), expected, atol=1e-5, rtol=0)
