"""The conversion `linear`: a layer against its equation, decoding, attention transfer, and refusals."""

import copy
import math
from typing import Any, cast

import pytest
import torch

import kinformer as kf
from kinformer.checkpoint.checkpoint import load, save
from kinformer.convert.linear import LinearConversion
from kinformer.convert.support.attention_transfer import layer_inputs
from kinformer.convert.support.changed_model import attention_layers
from kinformer.convert.support.conversion_plan import PlannedConversion, find_conversion
from kinformer.core.model import Model
from kinformer.nn.attention import Attention

WINDOW, SINKS = 5, 2


def sharp_llama(depth: int = 2) -> Model:
    """A llama with random weights whose attention is sharp: its queries and keys are large."""
    model = kf.llama(d=32, depth=depth, heads=4, key_heads=2, vocab=17)
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            size = 0.45 if "qkv" in name else 0.25
            weight.data = size * torch.randn(weight.shape, generator=generator)
    return cast(Model, model.double().eval())


def convert(source: Model, what: str = "hedgehog", **options: Any) -> tuple[Any, Any]:
    planned = PlannedConversion.of(source, find_conversion(what, {"window": WINDOW, "sinks": SINKS, **options}))
    return planned.conversion, planned.carry_out()


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(17, (rows, length), generator=torch.Generator().manual_seed(seed))


def randomise_maps(model: Model) -> None:
    for n, (name, parameter) in enumerate(model.named_parameters()):
        if ".map." in name:
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n))
            parameter.data += 0.5 * noise.to(parameter)


def layer_by_hand(layer: Attention, x: torch.Tensor) -> torch.Tensor:
    """The equation of the layer, pair by pair."""
    map: Any = layer.mechanism.parts[1].linear.map  # type: ignore[union-attr,index]
    queries, keys = layer.projection.queries_and_keys(x, torch.arange(x.shape[1])[None])
    q, k, v = queries.q[0], keys.k[0], keys.v[0]
    y = torch.zeros(x.shape[1], 4, v.shape[2], dtype=x.dtype)
    for h in range(4):
        g = h // 2
        for i in range(x.shape[1]):
            weights = []
            for j in range(i + 1):
                if i - j < WINDOW or j < SINKS:
                    weights.append(math.exp(float(q[h, i] @ k[g, j]) / math.sqrt(q.shape[2])))
                    continue
                u, w = map.query_matrix[h] @ q[h, i], map.key_matrix[g] @ k[g, j]
                a, b = (torch.cat([z, -z]).exp() for z in (u, w))
                weights.append(float(map.level[h].exp() * (a / a.sum()) @ (b / b.sum())))
            y[i, h] = sum(weight * v[g, j] for j, weight in enumerate(weights)) / sum(weights)
    return layer.aggregation.linear(y.flatten(1))[None]  # type: ignore[operator,union-attr]


@torch.no_grad()
def test_a_layer_is_its_equation() -> None:
    source = sharp_llama(1)
    _, model = convert(source, features=7)
    randomise_maps(model)
    layer, x = attention_layers(model)[0][1], torch.randn(1, 19, 32, dtype=torch.float64)
    torch.testing.assert_close(layer(x).y, layer_by_hand(layer, x), rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("what", ["hedgehog", "favor"])
@pytest.mark.parametrize("chunks", [[1] * 30, [9, 1, 1, 12, 7]], ids=["steps", "chunks"])
def test_decoding_equals_the_whole_row_far_beyond_the_window(what: str, chunks: list[int]) -> None:
    _, model = convert(sharp_llama(), what)
    randomise_maps(model)
    row, state, pieces = tokens(2, 30), model.start(2, 30), []
    for piece in row.split(chunks, 1):
        out = model.logits(piece, state)
        state = out.state
        pieces.append(out.y)
    torch.testing.assert_close(torch.cat(pieces, 1), model.logits(row).y, rtol=0, atol=1e-9)


def test_the_state_does_not_grow_with_the_row() -> None:
    _, model = convert(sharp_llama())

    def leaves(state: Any) -> int:
        if isinstance(state, torch.Tensor):
            return state.numel()
        parts = state.values() if isinstance(state, dict) else state if isinstance(state, tuple | list) else ()
        parts = vars(state).values() if not parts and hasattr(state, "__dict__") else parts
        return sum(map(leaves, parts))

    assert 0 < leaves(model.start(1, 100)) == leaves(model.start(1, 100_000))


@torch.no_grad()
def output_errors(source: Model, model: Model, rows: torch.Tensor) -> list[float]:
    """The mean squared error of each layer's output on the source's inputs, at tokens that have far keys."""
    errors = []
    inputs = layer_inputs(source, [name for name, _ in attention_layers(source)], rows)
    for (name, old), (_, new) in zip(attention_layers(source), attention_layers(model), strict=True):
        gaps = [(new(x).y - old(x).y)[:, WINDOW + SINKS :] for x in inputs[name]]
        errors.append(float(torch.cat(gaps).square().mean()))
    return errors


def test_transfer_lowers_the_error_on_other_rows_and_trains_the_maps_alone(tmp_path: Any) -> None:
    source = sharp_llama()
    conversion, model = convert(source)
    window = PlannedConversion.of(source, find_conversion("window", {"window": WINDOW, "sinks": SINKS})).carry_out()
    before, old, done = output_errors(source, model, tokens(8, 64, seed=9)), model.state_dict(), list[float]()
    old = {name: tensor.clone() for name, tensor in old.items()}
    conversion.fit(source, model, tokens(16, 64), lambda stage, fraction: done.append(fraction))
    after = output_errors(source, model, tokens(8, 64, seed=9))
    alone = output_errors(source, window, tokens(8, 64, seed=9))
    for n in range(2):
        assert after[n] < 0.8 * before[n] and after[n] < alone[n]
    assert done[-1] == 1 and done == sorted(done)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, old[name]) != (".map." in name), name
    assert all(parameter.requires_grad and parameter.grad is None for parameter in source.parameters())
    save(model, tmp_path)
    back = load(tmp_path)
    assert back.member == model.member and back.member.changes[0].name == "linear"
    assert torch.equal(back.logits(tokens(1, 40)).y, model.logits(tokens(1, 40)).y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("what", [torch.enable_grad, torch.no_grad])
def test_half_precision_trains_as_well_as_float32(dtype: torch.dtype, what: Any) -> None:
    source = sharp_llama().to(dtype)
    conversion, model = convert(source)
    precise, rows = copy.deepcopy(source).float(), tokens(8, 64, seed=9)
    before = output_errors(precise, copy.deepcopy(model).float(), rows)
    with what():
        conversion.fit(source, model, tokens(16, 64), lambda stage, fraction: None)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    after = output_errors(precise, copy.deepcopy(model).float(), rows)
    other, trained = convert(precise)
    other.fit(precise, trained, tokens(16, 64), lambda stage, fraction: None)
    for a, b, c in zip(before, after, output_errors(precise, trained, rows), strict=True):
        assert b < 0.8 * a and b < 1.1 * c


def test_the_exact_part_keeps_scale_dropout_and_executor() -> None:
    source = sharp_llama()
    for _, layer in attention_layers(source):
        layer.mechanism.scale, layer.mechanism.dropout = 0.3, 0.25  # type: ignore[assignment]
        layer.mechanism.impl = "reference"  # type: ignore[assignment]
    _, model = convert(source)
    for _, layer in attention_layers(model):
        near = layer.mechanism.parts[0]  # type: ignore[union-attr,index]
        assert (near.scale, near.dropout, near.impl) == (0.3, 0.25, "reference")


def test_inputs_of_few_layers_at_a_time_give_the_same_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    from kinformer.convert.support import attention_transfer

    source, rows, states = sharp_llama(), tokens(3, 20), []
    monkeypatch.setattr(attention_transfer, "STEPS", 3)
    for size in (1, 1 << 30):
        monkeypatch.setattr(attention_transfer, "CACHE", size)
        conversion, model = convert(source)
        conversion.fit(source, model, rows, lambda stage, fraction: None)
        states.append(model.state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


def test_kept_layers_stay_as_they_are_and_are_not_trained() -> None:
    source = sharp_llama(3)
    conversion, model = convert(source, keep=(2,))
    kinds = [type(layer.mechanism).__name__ for _, layer in attention_layers(model)]
    assert kinds == ["Merged", "Softmax", "Merged"]
    conversion.fit(source, model, tokens(2, 20), lambda stage, fraction: None)


def test_favor_and_short_rows_train_nothing() -> None:
    source = sharp_llama()
    for what, length in (("favor", 30), ("hedgehog", WINDOW + SINKS)):
        conversion, model = convert(source, what)
        old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        conversion.fit(source, model, tokens(2, length), lambda stage, fraction: None)
        assert all(torch.equal(tensor, old[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (lambda: kf.llama(d=16, depth=1, heads=2, vocab=11, pattern="Causal() & Band(3)"), "its pattern is"),
        (lambda: kf.bloom(d=16, depth=1, heads=2, vocab=11), "its scores have ALiBi"),
        (lambda: kf.performer(d=16, depth=1, heads=2, vocab=11), "its mechanism is LinearAttention"),
        (lambda: kf.bert(d=16, depth=1, heads=2, vocab=11), "its pattern is Full()"),
    ],
    ids=["window", "bias", "linear", "encoder"],
)
def test_other_layers_are_refused_in_one_line(source: Any, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        convert(source())
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_rows_with_padding_are_refused() -> None:
    source = sharp_llama(1)
    conversion, model = convert(source)
    rows = tokens(2, 30)
    rows[0, -1] = -1
    with pytest.raises(ValueError, match="rows with padding"):
        conversion.fit(source, model, rows, lambda stage, fraction: None)


def test_features_default_to_the_width_of_a_head() -> None:
    conversion, _ = convert(sharp_llama(1))
    assert isinstance(conversion, LinearConversion) and conversion.features == 8
