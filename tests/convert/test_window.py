"""The conversions `window` and `memory` against loops over pairs, with the positions at which sinks are read."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kinformer as kf
from kinformer.convert.support.changed_model import attention_layers
from kinformer.lab.conversion.reading_costs import state_bytes
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.sink_softmax import SinkSoftmax

pytestmark = pytest.mark.usefixtures("float64")
LONG, HEADS, KEY_HEADS, WIDTH, BASE, SCALE = 61, 4, 2, 6, 50.0, 0.9
WINDOW, SEGMENT, MEMORY, SINKS = 7, 5, 6, 3


def source(**keywords: Any) -> Any:
    """A llama of one layer with random weights, a scale other than the default, and dropout."""
    sizes = {"d": 16, "depth": 1, "heads": HEADS, "key_heads": KEY_HEADS, "head_dim": WIDTH, "vocab": 11}
    model: Any = kf.llama(**{**sizes, "base": BASE, **keywords})
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.4)
    for _, layer in attention_layers(model):
        layer.mechanism.scale, layer.mechanism.dropout = SCALE, 0.25  # type: ignore[assignment]
    return model.eval()


def turned(vector: Tensor, position: int) -> Tensor:
    """A vector whose pairs (n, n + WIDTH / 2) are turned by the angle position * base^(-2n / WIDTH)."""
    y, half = vector.clone(), WIDTH // 2
    for n in range(half):
        angle = position * BASE ** (-2 * n / WIDTH)
        a, b = float(vector[n]), float(vector[n + half])
        y[n] = a * math.cos(angle) - b * math.sin(angle)
        y[n + half] = b * math.cos(angle) + a * math.sin(angle)
    return y


def layer_by_hand(layer: Any, x: Tensor, near: Any, last: int) -> Tensor:
    """The layer's output, pair by pair: near keys at their distance, sinks from position min(i, last)."""
    (q_matrix, _), (k_matrix, _), (v_matrix, _) = (layer.projection.matrix(name) for name in ("q", "k", "v"))
    q, k, v = (
        (x[0] @ matrix.T).unflatten(1, (-1, WIDTH)).detach() for matrix in (q_matrix, k_matrix, v_matrix)
    )  # [T heads width]
    heads = torch.zeros(len(q), HEADS, WIDTH)
    for i in range(len(q)):
        for h in range(HEADS):
            g, scores, values = h // (HEADS // KEY_HEADS), [], []
            for j in range(i + 1):
                if near(i, j):
                    place = i
                elif j < SINKS:
                    place = min(i, last)
                else:
                    continue
                scores.append(SCALE * (turned(q[i, h], place) @ turned(k[j, g], j)))
                values.append(v[j, g])
            heads[i, h] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return (heads.flatten(1) @ layer.aggregation.linear.weight.T)[None]


def in_window(i: int, j: int) -> bool:
    return i - j < WINDOW


def in_segment(i: int, j: int) -> bool:
    return j >= i // SEGMENT * SEGMENT - MEMORY


CASES = [
    pytest.param("window", {"window": WINDOW, "sinks": SINKS}, in_window, WINDOW - 1 + SINKS, id="window"),
    pytest.param(
        "memory",
        {"segment": SEGMENT, "memory": MEMORY, "sinks": SINKS},
        in_segment,
        SEGMENT - 1 + MEMORY + SINKS,
        id="memory",
    ),
]


@torch.no_grad()
@pytest.mark.parametrize(("what", "options", "near", "last"), CASES)
def test_a_layer_reads_near_keys_and_sinks_from_the_last_trained_position(
    what: str, options: dict[str, Any], near: Any, last: int
) -> None:
    model = source()
    layer = attention_layers(kf.convert(model, what, **options))[0][1]
    x = torch.randn(1, LONG, 16)
    want = layer_by_hand(layer, x, near, last)
    torch.testing.assert_close(layer(x).y, want, rtol=0, atol=1e-12)
    # the test sees the place of the sinks
    assert (want - layer_by_hand(layer, x, near, last + 7))[:, last + 2 :].abs().amax(2).min() > 1e-5
    assert not torch.allclose(layer(x).y, attention_layers(model)[0][1](x).y)


@pytest.mark.parametrize(("what", "options", "near", "last"), CASES)
def test_all_parts_of_a_layer_keep_its_scale_dropout_and_executor(
    what: str, options: dict[str, Any], near: Any, last: int
) -> None:
    model = source().train()
    attention_layers(model)[0][1].mechanism.impl = "reference"  # type: ignore[assignment]
    new = kf.convert(model, what, **options).train()
    mechanism: Any = attention_layers(new)[0][1].mechanism
    assert isinstance(mechanism, Merged) and isinstance(mechanism.parts[1], SinkSoftmax) and mechanism.training
    for part in mechanism.parts:
        assert (part.scale, part.dropout, part.impl, part.training) == (SCALE, 0.25, "reference", True)


@pytest.mark.parametrize(("what", "options", "near", "last"), CASES)
def test_dropout_reaches_the_sinks_in_training(what: str, options: dict[str, Any], near: Any, last: int) -> None:
    """With a dropout of almost 1 the output is almost 0, unless some weights stay."""
    model = source()
    attention_layers(model)[0][1].mechanism.dropout = 1 - 1e-9  # type: ignore[assignment]
    layer = attention_layers(kf.convert(model, what, **options))[0][1].train()
    y = layer(torch.randn(1, LONG, 16)).y
    assert (y == 0).all()


@torch.no_grad()
def test_the_decoding_state_of_a_window_has_one_size_from_200_to_2000_tokens() -> None:
    model = kf.convert(source(), "window", window=12, sinks=4)
    assert state_bytes(model.start(1, 200)) == state_bytes(model.start(1, 2000))
    state, sizes = model.start(1, 2000), set[int]()
    for number in range(1, 201):
        out = model.logits(torch.randint(0, 11, (1, 10)), state)
        state = out.state
        if number >= 20:
            sizes.add(state_bytes(state))
    assert len(sizes) == 1 and int(state.now) == 2000
    grown = source().start(1, 2000)
    assert sizes.pop() * 20 < state_bytes(grown)


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    model: Any = kf.llama(d=16, depth=2, heads=HEADS, vocab=11)
    new, tokens = kf.convert(model.eval(), "window", window=5, sinks=2, keep=(2,)), torch.randint(0, 11, (2, LONG))
    kf.save(new, tmp_path)
    back = kf.load(tmp_path)
    assert torch.equal(back.logits(tokens).y, new.logits(tokens).y) and back.member == new.member


@pytest.mark.parametrize("what", ["window", "Causal() & Band(3)", "memory", "memorizing"])
@pytest.mark.parametrize("member", ["transformer", "t5"])
def test_models_of_pairs_of_texts_are_refused_in_one_line(member: str, what: str) -> None:
    model = getattr(kf, member)(d=16, depth=1, heads=2, vocab=11)
    with pytest.raises(
        ValueError, match=f"cannot give this {member} a.*: it reads pairs of texts, and its encoder"
    ) as e:
        kf.convert(model, what)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("what", ["window", "Causal() & Band(3)"])
def test_a_mechanism_that_computes_its_pattern_is_refused_in_one_line(what: str) -> None:
    model = kf.adaptive_span(d=16, depth=1, heads=2, vocab=11)
    with pytest.raises(ValueError, match="another pattern: Restricted chooses its keys itself. Convert a model") as e:
        kf.convert(model, what)
    assert "\n" not in str(e.value)
