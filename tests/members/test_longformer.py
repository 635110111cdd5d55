"""Longformer and its language model: who sees whom, windows and gaps by layer and head, and what is refused."""

from typing import Any

import pytest
import torch

from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.longformer import longformer
from kinformer.members.longformer_lm import longformer_lm
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.dilated import Dilated
from kinformer.nn.projections.qkv import QKV
from tests.by_hand import attention_by_hand
from tests.parity.peers import put_qkv

SMALL: dict[str, Any] = {"vocab": 11}


def reads(
    window: int | tuple[int, ...], marked: int, depth: int = 1, length: int = 12, **keywords: object
) -> torch.Tensor:
    """Which outputs change with which token."""
    return moves(
        longformer(d=16, depth=depth, heads=2, window=window, marked=marked, length=length, **SMALL, **keywords)
    )


def moves(model: Any, length: int = 12) -> torch.Tensor:
    model, tokens = model.eval(), torch.randint(0, 11, (1, length))
    before, rows = model.logits(tokens).y, []
    for place in range(length):
        changed = tokens.clone()
        changed[0, place] = (changed[0, place] + 1) % 11
        rows.append((model.logits(changed).y - before)[0].abs().amax(-1) > 1e-9)
    return torch.stack(rows, 1)


def test_a_layer_reads_its_window_and_the_marked_tokens() -> None:
    at = torch.arange(12)
    near = (at[:, None] - at).abs() <= 2
    assert torch.equal(reads(2, 0), near)
    marked = at < 2
    assert torch.equal(reads(2, 2), near | marked[:, None] | marked)


def test_windows_add_up_over_layers() -> None:
    at = torch.arange(12)
    assert torch.equal(reads((1, 3), 0, depth=2), (at[:, None] - at).abs() <= 4)


def windows(model: Any) -> list[tuple[int, ...]]:
    """How far back each head of each layer reads."""
    at, spans = torch.arange(200), []
    for block in model.body.layers:
        mechanism = block.layers[0].mechanism
        masks = [(getattr(mechanism, "pattern", None) & Causal()).matrix(200, h=h) for h in range(4)]
        spans.append(tuple(int((at[:, None] - at)[mask].max()) for mask in masks))
    return spans


@pytest.mark.parametrize("lm", [False, True])
def test_windows_grow_from_the_bottom_to_the_top(lm: bool) -> None:
    make, less = (longformer_lm, 1) if lm else (longformer, 0)
    keywords = {} if lm else {"marked": 0}
    sizes = [4, 8, 16, 32]
    assert windows(make(d=16, depth=4, heads=4, window=4, top=32, **keywords)) == [(size - less,) * 4 for size in sizes]
    falling = make(d=16, depth=2, heads=4, window=(9, 3), **keywords, **({"top": None} if lm else {}))
    assert windows(falling) == [(9 - less,) * 4, (3 - less,) * 4]
    assert windows(make(d=16, depth=1, heads=4, window=5, **keywords)) == [(5 - less,) * 4]


@pytest.mark.parametrize("lm", [False, True])
def test_some_heads_of_some_layers_leave_gaps(lm: bool) -> None:
    make, less = (longformer_lm, 1) if lm else (longformer, 0)
    keywords = {"top": None} if lm else {"marked": 0}
    model: Any = make(d=16, depth=3, heads=4, window=5, dilation=(1, 1, 3), dilated=2, **keywords)
    size = 5 - less
    assert windows(model) == [(size,) * 4] * 2 + [(3 * size,) * 2 + (size,) * 2]
    pattern = model.body.layers[2].layers[0].mechanism.pattern & Causal()
    assert torch.equal(pattern.matrix(40, h=1), (Causal() & Dilated(size, 3)).matrix(40))


def test_gaps_let_a_layer_see_further() -> None:
    at = torch.arange(12)
    distance = (at[:, None] - at).abs()
    readable = (distance <= 2) | ((distance <= 6) & (distance % 3 == 0))
    assert torch.equal(reads(2, 0, dilation=3, dilated=1), readable)


def test_the_encoder_is_the_equation_with_symmetric_global_tokens(float64: None) -> None:
    """Global tokens read all by projections of their own; others read their window and the global ones by the local."""
    model: Any = longformer(d=8, depth=1, heads=2, window=2, dilation=2, dilated=1, marked=2, length=12, vocab=11)
    layer, x = model.body.layers[0].layers[0], torch.randn(12, 8)
    torch.nn.init.normal_(layer.side.weight), torch.nn.init.normal_(layer.key_side.weight)
    near, wide = (
        Attention(projection, Softmax(Full()), aggregation=layer.aggregation)
        for projection in (layer.projection, QKV(8, 2))
    )
    for name, weight, bias in zip("qkv", *(of_sides(layer, part) for part in ("weight", "bias")), strict=True):
        put_qkv(wide.projection, name, weight, bias)
    gaps = (2, 1)
    local = attention_by_hand(near, x, lambda h, i, j: j < 2 or abs(i - j) in range(0, 2 * gaps[h] + 1, gaps[h]))
    of_all = attention_by_hand(wide, x, lambda h, i, j: True)
    torch.testing.assert_close(layer(x[None]).y[0], torch.cat([of_all[:2], local[2:]]))


def of_sides(layer: Attention, name: str) -> tuple[torch.Tensor, ...]:
    """Weights or biases of the global queries, keys and values."""
    return (getattr(layer.side, name), *getattr(layer.key_side, name).chunk(2))


REFUSED = [
    (
        {"window": (1, 2)},
        r"window=\(1, 2\) has the wrong length: got 2, expected depth=3; give one value, or one for each layer",
    ),
    ({"window": (1, 2, 3), "top": 4}, "sets the window of every layer, so top=4 has no effect; add top=none"),
    ({"window": 2, "top": 0}, "top=0: give a whole number of at least 1"),
    ({"dilation": (1, 2)}, r"dilation=\(1, 2\) has the wrong length: got 2, expected depth=3"),
    ({"dilation": 0}, "dilation=0: give a whole number of at least 1"),
    ({"dilation": (1, 1, 2), "dilated": -1}, "dilation=.* has no effect with dilated=-1"),
    ({"dilation": 2, "dilated": 3}, "dilated=3: give a number from 0 to 2"),
]


@pytest.mark.parametrize(("keywords", "says"), REFUSED, ids=str)
@pytest.mark.parametrize("make", [longformer, longformer_lm])
def test_what_does_not_fit_is_refused(make: Any, keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make(**{"d": 16, "depth": 3, "heads": 2, "top": None, **keywords})


def test_global_projections_start_as_copies_of_the_local_ones() -> None:
    for block in longformer(d=16, depth=2, heads=2, window=2).body.layers:
        layer = block.layers[0]
        matrices = [layer.projection.matrix(name) for name in "qkv"]
        for n, parameter in enumerate((layer.side.weight, layer.side.bias)):
            assert torch.equal(parameter, matrices[0][n])
        for n, parameter in enumerate((layer.key_side.weight, layer.key_side.bias)):
            assert torch.equal(parameter, torch.cat([matrices[1][n], matrices[2][n]]))
