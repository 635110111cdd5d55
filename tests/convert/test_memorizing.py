"""The conversion `memorizing`: a loop that picks keys itself, promised rows, decoding, training, saving."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kinformer as kf
from kinformer.convert.support.conversion_plan import find_conversion
from kinformer.core.kv_cache import KV
from kinformer.nn.mechanisms.sink_softmax import SinkSoftmax
from tests.parity.peers import shaken

pytestmark = pytest.mark.usefixtures("float64")
LONG, WINDOW, SINKS, MEMORY, K = 31, 4, 2, 13, 3
SMALL: dict[str, Any] = {"window": WINDOW, "sinks": SINKS, "memory": MEMORY, "k": K}


def source(member: str = "llama", **keywords: Any) -> Any:
    torch.manual_seed(3)
    usual: dict[str, Any] = {"key_heads": 2} if member == "llama" else {}
    if member == "gpt":
        usual = {"length": 64}
    model = getattr(kf, member)(**{"d": 16, "depth": 4, "heads": 4, "vocab": 11, **usual, **keywords})
    for weight in model.parameters():
        weight.data.mul_(2.0)  # sharper attention, so that a wrong key shows
    return shaken(model).eval()


def attention_of(model: Any) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, kf.Attention)]


def read_by_hand(layer: Any, x: Tensor, far: bool) -> Tensor:
    """The layer's output with the keys of each query and head chosen and read one query at a time.

    With rotary positions the sinks are read from no farther than all other keys.
    """
    pos = torch.arange(x.shape[1])[None]
    queries, keys = layer.projection.queries_and_keys(x, pos)
    last = WINDOW - 1 + SINKS + (MEMORY if far else 0)
    nearer = layer.projection.queries_and_keys(x, pos.clamp_max(last))[0].q[0]
    q, k, v = queries.q[0], keys.k[0], keys.v[0]
    shared, width = len(q) // len(k), q.shape[-1]
    y = torch.zeros(len(q), len(q[0]), width)
    for h in range(len(q)):
        for i in range(len(q[0])):
            score = {
                j: ((nearer if i - j >= WINDOW and j < SINKS else q)[h, i] @ k[h // shared, j]).item() / width**0.5
                for j in range(i + 1)
            }
            near = [j for j in score if i - j < WINDOW or j < SINKS]
            before = [j for j in score if j not in near and i - j < WINDOW + MEMORY]
            best = sorted(before, key=lambda j: score[j], reverse=True)[: K if far else 0]  # noqa: B023
            read = near + best
            weights = torch.tensor([score[j] for j in read]).softmax(0)
            y[h, i] = weights @ v[h // shared, read]
    return layer.aggregation(y[None], pos)


@pytest.mark.parametrize("member", ["llama", "gpt", "gpt_neox"])
def test_layers_read_the_keys_that_a_loop_picks(member: str) -> None:
    new = kf.convert(source(member), "memorizing", **SMALL)
    assert new.report.plan.options["layers"] == (3,)
    x = torch.randn(1, LONG, 16)
    for number, layer in enumerate(attention_of(new), 1):
        torch.testing.assert_close(layer(x).y, read_by_hand(layer, x, far=number == 3), rtol=0, atol=1e-12)


@pytest.mark.parametrize("member", ["llama", "gpt", "gpt_neox"])
@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"k": 7, "layers": (4, 1, 1)}, 6),  # the window and the sinks of the other layers
        ({"k": 7, "layers": (1, 2, 3, 4)}, 13),
        ({"k": 7, "layers": (2, 4), "keep": (1, 2, 3)}, 13),
        ({}, 6),
        ({"keep": (1, 2, 4)}, 9),  # and k keys
        ({"keep": (1, 2, 4), "k": 7}, 13),
        ({"keep": (1, 2, 4), "k": 13}, 19),  # position 19 reads from 3 on, and 0 and 1
        ({"keep": (1, 2, 4), "k": 50}, 19),
        ({"keep": (1, 2, 4), "k": 50, "memory": 20}, 26),
        ({"keep": (2, 3, 4), "layers": (1,), "sinks": 0}, 7),
    ],
)
def test_rows_of_the_promised_length_are_equal_and_longer_rows_are_not(
    member: str, options: dict[str, Any], length: int
) -> None:
    model = source(member)
    new = kf.convert(model, "memorizing", **{**SMALL, **options})
    assert new.report.plan.promise.length == length
    tokens = torch.randint(0, 11, (4, LONG))
    want, y = model.logits(tokens).y, new.logits(tokens).y
    torch.testing.assert_close(y[:, :length], want[:, :length], rtol=0, atol=1e-11)
    assert (y[:, length] - want[:, length]).abs().max() > 1e-9


def test_with_as_many_keys_as_tokens_it_is_the_source() -> None:
    model, tokens = source(), torch.randint(0, 11, (2, LONG))
    new = kf.convert(model, "memorizing", window=2, sinks=1, memory=64, k=40, layers=(2,), keep=(1, 3, 4))
    assert new.report.plan.promise.length == 43
    torch.testing.assert_close(new.logits(tokens).y, model.logits(tokens).y, rtol=0, atol=1e-11)


@pytest.mark.parametrize("member", ["llama", "gpt"])
def test_chunks_of_a_decoding_agree_with_whole_rows(member: str) -> None:
    new, tokens = kf.convert(source(member), "memorizing", **SMALL), torch.randint(0, 11, (2, LONG))
    state, pieces = new.start(2, LONG), []
    for chunk in tokens.split([1, 6, 1, 1, 9, 13], 1):
        out = new.logits(chunk, state)
        state = out.state
        pieces.append(out.y)
    torch.testing.assert_close(torch.cat(pieces, 1), new.logits(tokens).y, rtol=0, atol=1e-11)


def caches_of(state: Any) -> list[int]:
    """Numbers of keys in the caches of a state."""
    if isinstance(state, KV):
        return [state.k.shape[2]]
    return [size for part in state if isinstance(part, tuple) for size in caches_of(part)]


def test_only_the_memory_layer_keeps_distant_keys() -> None:
    new = kf.convert(source(), "memorizing", **SMALL)
    near = [WINDOW, SINKS + 1]
    expected = [*near, *near, *near, WINDOW + MEMORY, *near]
    state = new.start(1, 1000)
    assert caches_of(state) == expected
    for chunk in torch.randint(0, 11, (1, 80)).split([1, 40, 1, 38], 1):
        state = new.logits(chunk, state).state
        assert caches_of(state) == expected


def test_it_trains_through_the_retrieved_keys() -> None:
    new = kf.convert(source(), "memorizing", **SMALL).train()
    x = torch.randn(1, 20, 16, requires_grad=True)
    attention_of(new)[2](x).y[0, 19].sum().backward()
    read = set((x.grad[0].abs().amax(1) > 0).nonzero()[:, 0].tolist())
    assert {0, 1, 16, 17, 18, 19} < read < set(range(2)) | set(range(3, 20))
    new.zero_grad()
    new(torch.randint(0, 11, (2, LONG))).total.backward()
    assert all(weight.grad.abs().sum() > 0 for weight in new.parameters())


@pytest.mark.parametrize("member", ["llama", "gpt", "gpt_neox"])
def test_it_is_saved_and_loaded(member: str, tmp_path: Path) -> None:
    new, tokens = kf.convert(source(member), "memorizing", **SMALL), torch.randint(0, 11, (2, LONG))
    kf.save(new, tmp_path / "a")
    back = kf.load(tmp_path / "a")
    assert torch.equal(back.logits(tokens).y, new.logits(tokens).y) and back.member == new.member
    kf.save(back, tmp_path / "b")
    assert kf.load(tmp_path / "b").member == new.member


def test_no_rotary_distance_is_larger_than_those_of_the_memory() -> None:
    new = kf.convert(source(), "memorizing", **SMALL)
    for number, layer in enumerate(attention_of(new), 1):
        sinks = layer.mechanism.parts[1]
        assert isinstance(sinks, SinkSoftmax)
        assert sinks.last == WINDOW - 1 + SINKS + (MEMORY if number == 3 else 0)


def test_memory_layers_keep_scale_dropout_and_executor() -> None:
    for member in ("llama", "gpt"):
        model = source(member)
        for layer in attention_of(model):
            layer.mechanism.scale, layer.mechanism.dropout, layer.mechanism.impl = 0.3, 0.25, "reference"
        parts = attention_of(kf.convert(model, "memorizing", **SMALL))[2].mechanism.parts
        assert len(parts) == (3 if member == "llama" else 2)
        assert all((part.scale, part.dropout) == (0.3, 0.25) for part in parts)
        assert all(part.impl == "reference" for part in parts[:-1])


@pytest.mark.parametrize("layers", [(77,), (0,)])
def test_a_damaged_config_is_refused_in_one_line(layers: tuple[int, ...], tmp_path: Path) -> None:
    new = kf.convert(source(), "memorizing", **SMALL)
    change = new.member.changes[0]
    new.member = replace(new.member, changes=(change._replace(options={**change.options, "layers": layers}),))
    kf.save(new, tmp_path)
    with pytest.raises(ValueError, match=f"layers has the layer {layers[0]}, expected numbers from 1 to 4") as error:
        kf.load(tmp_path)
    assert "\n" not in str(error.value)


def test_layers_to_keep_are_named() -> None:
    """A measurement could choose the only memory layer."""
    with pytest.raises(TypeError, match="'keep' of 'MemorizingConversion' must be"):
        find_conversion("memorizing", {"keep": 2})


def test_models_that_it_does_not_fit_are_refused() -> None:
    for wrong, message in {
        "bert": "cannot give this bert a memory of earlier tokens: it does not predict the next token. Use",
        "bloom": "cannot give body.layers.3.layers.0 of this bloom a memory: a search compares products .* but ALiBi",
        "topk_transformer": "its mechanism is TopKEquals, expected Softmax. Choose another layer",
    }.items():
        with pytest.raises(ValueError, match=message):
            kf.convert(source(wrong), "memorizing")
    for option, message in (
        ({"layers": (5,)}, "layers has the layer 5, expected numbers from 1 to 4"),
        ({"keep": (3,)}, "no memory layer is left: got keep=.3,.. Keep fewer layers"),
        ({"keep": (7,)}, "keep has the layer 7"),
        ({"k": 0}, "k"),
        ({"memory": 0}, "memory"),
    ):
        with pytest.raises(ValueError, match=message):
            kf.convert(source(), "memorizing", **option)
