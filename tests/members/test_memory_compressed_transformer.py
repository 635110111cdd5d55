"""T-DMCA: L and M by turns, a cache a third as long in M layers, and keywords that reach the parts."""

from typing import Any

import pytest
import torch

from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.members.memory_compressed_transformer import memory_compressed_transformer
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.block import Block
from kinformer.nn.shorteners.conv_shortener import ConvShortener

SMALL: dict[str, Any] = {"d": 8, "heads": 2, "vocab": 11, "length": 40}


def mechanisms(model: torch.nn.Module) -> list[Mechanism]:
    return [part.mechanism for part in model.modules() if isinstance(part, Attention)]


def test_layers_take_turns() -> None:
    mechanisms_of = mechanisms(memory_compressed_transformer(block=7, compress=4, tied=True, null=True, **SMALL))
    assert [isinstance(mechanism, Shortened) for mechanism in mechanisms_of] == [letter == "M" for letter in "LMLML"]
    local, compressed = mechanisms_of[:2]
    assert isinstance(local, Softmax) and local.pattern == Causal() & Block(7)
    assert isinstance(compressed, Shortened) and isinstance(compressed.shorten, ConvShortener)
    assert compressed.shorten.size == 4 and compressed.shorten.weight.v is None and compressed.null is not None
    plain = mechanisms(memory_compressed_transformer(depth=3, layers="MML", **SMALL))
    assert [isinstance(mechanism, Shortened) for mechanism in plain] == [True, True, False]
    assert isinstance(plain[0], Shortened) and plain[0].null is None and plain[0].shorten.size == 3  # type: ignore[union-attr]


def test_a_token_hears_of_the_far_past_through_whole_groups() -> None:
    model = memory_compressed_transformer(depth=2, block=4, **SMALL).double().eval()
    tokens = torch.randint(0, 11, (1, 16))
    other = tokens.clone()
    other[0, 1] = (other[0, 1] + 1) % 11
    changed = (model.logits(tokens).y != model.logits(other).y).any(-1)[0].tolist()
    assert changed == [False] + [True] * 15  # tokens 1 to 3 by the block, later ones by the first group


def test_it_caches_a_key_for_each_group() -> None:
    model = memory_compressed_transformer(depth=2, block=4, **SMALL)
    local, compressed = (block[0] for block in model.start(1, 30).body)
    assert local.k.shape[2] == 4
    assert (compressed.short.k.shape[2], compressed.rest.k.shape[2]) == (30 // 3 + 1, 2)


def test_layers_share_what_is_known_of_positions() -> None:
    """One plan of a step serves all compressed layers, and so do the positions that it leaves."""
    model = memory_compressed_transformer(depth=3, layers="M", **SMALL).eval()
    state = model.start(2, 20)
    for step in (7, 1, 1, 1):
        state = model.logits(torch.zeros(2, step, dtype=torch.long), state).state
        positions = [tensor for block in state.body for part in block[0] for tensor in (part.pos, part.now)]
        assert len(positions) == 12 and len(set(map(id, positions))) == 3


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"layers": "LX"}, "letters L"),
        ({"layers": ""}, "letters L"),
        ({"compress": 0}, "at least 1"),
        ({"block": 0}, "Block.size=0"),
    ],
)
def test_keywords_that_do_not_fit_are_refused_in_one_line(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as refusal:
        memory_compressed_transformer(**{**SMALL, **keywords})
    assert "\n" not in str(refusal.value)


def test_each_layer_has_a_projection_of_its_own() -> None:
    """Of width 16: (16 + 1) 48 numbers of q, k and v in each layer, so three layers more have three times as many."""
    sizes = []
    for depth in (1, 4):
        model = memory_compressed_transformer(d=16, depth=depth, heads=2, layers="L", block=8, length=64, vocab=11)
        sizes.append(sum(weight.numel() for weight in model.parameters()))
    qkv, out, mlp, norms = 17 * 48, 17 * 16, 17 * 64 + 65 * 16, 2 * 2 * 16
    assert sizes[1] - sizes[0] == 3 * (qkv + out + mlp + norms)
