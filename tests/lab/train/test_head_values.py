"""Head values: by their formulas, as means over real tokens, whatever part they stand in."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.bias import Bias
from kinformer.core.discover import find_member
from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.lab.train.head_values import has_head_values, head_values_by_layer
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from tests.discovered import discovered

SIZES = {"d": 16, "depth": 2, "heads": 2, "vocab": 7}
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 2, 6], [5, 3, 5, -1, -1, -1, -1]])


def build(name: str, **keywords: Any) -> Any:
    torch.manual_seed(0)
    model = find_member(name)(**SIZES, **keywords)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return model.eval()


@torch.no_grad()
def learned(model: Any, tokens: Tensor) -> dict[str, dict[str, list[float]]]:
    with evaluating(model), head_values_by_layer(model) as values:
        model.judge(tokens)
    return {name: by_layer.layers for name, by_layer in values.items()}


def attention(model: Any) -> dict[str, Attention]:
    return {name: part for name, part in model.named_modules() if isinstance(part, Attention)}


@pytest.mark.parametrize(
    ("name", "keywords", "value", "formula"),
    [
        ("adaptive_span", {"segment": 4, "longest": 9}, "span", lambda m: 9 * m.mask.span),
        ("da_transformer", {}, "alpha", lambda m: m.bias.alpha),
        ("gaussian_transformer", {}, "sigma", lambda m: (2 * F.softplus(m.bias.raw_w)) ** -0.5),
        ("low_rank_band", {}, "low rank share", lambda m: 1 / (1 + (-m.gate).exp())),
        ("localness", {"window": "fixed", "width": 6.0}, "sigma", lambda m: torch.tensor([3.0, 3.0])),
    ],
)
def test_what_each_head_has_learned(
    name: str, keywords: dict[str, Any], value: str, formula: Callable[[Any], Tensor], float64: None
) -> None:
    model = build(name, **keywords)
    with torch.no_grad():
        if name == "adaptive_span":
            for layer in attention(model).values():
                layer.mechanism.mask.span.clamp_(0, 1)
                layer.mechanism.mask.look()
    values = learned(model, TOKENS)[value]
    assert list(values) == list(attention(model)) and has_head_values(model)
    for layer, heads in values.items():
        assert heads == pytest.approx(formula(attention(model)[layer].mechanism).tolist(), rel=1e-9)


def test_only_layers_whose_heads_learn_something_are_told(float64: None) -> None:
    model = build("memorizing_transformer", segment=4, memory=8, k=2)
    (gated,) = (name for name, part in attention(model).items() if isinstance(part.mechanism, Retrieval))
    with head_values_by_layer(model) as values:
        pass
    gate = attention(model)[gated].mechanism.gate.tolist()
    assert values["memory share"].layers == {gated: pytest.approx([1 / (1 + math.exp(-g)) for g in gate])}
    assert values["memory share"].numbers == [1 + list(attention(model)).index(gated)] != [1]
    assert not has_head_values(build("gpt"))


@torch.no_grad()
def test_a_span_of_each_token_is_told_as_its_mean_over_real_tokens(float64: None) -> None:
    """z_t = S sigmoid(v.x_t + b), from what the matrix of v makes of each token; padding has none."""
    model, spans = build("adaptive_span", spans="dynamic", segment=3, longest=9), dict[str, Tensor]()
    for name, layer in attention(model).items():
        layer.side.register_forward_hook(lambda _, __, out, name=name: spans.update({name: out}))
    read, real = TOKENS[:, :-1], TOKENS[:, :-1] >= 0
    model.logits(read)
    expected = {name: (9 * torch.sigmoid(out))[real].mean(0).tolist() for name, out in spans.items()}
    assert learned(model, TOKENS)["span"] == {name: pytest.approx(heads) for name, heads in expected.items()}


@torch.no_grad()
@pytest.mark.parametrize("window", ["query", "layer"])
def test_rows_of_a_batch_count_by_their_tokens(window: str, float64: None) -> None:
    model = build("localness", window=window)
    with evaluating(model), head_values_by_layer(model) as together:
        model.logits(TOKENS)
    alone = []
    for row, length in ((TOKENS[:1], 7), (TOKENS[1:, :3], 3)):
        with evaluating(model), head_values_by_layer(model) as values:
            model.logits(row)
        alone.append((values, length))
    for value in ("centre", "sigma"):
        for layer, heads in together[value].layers.items():
            each = [torch.tensor(values[value].layers[layer]) * length for values, length in alone]
            assert heads == pytest.approx((sum(each) / 10).tolist())


SHOWING = [example for example in discovered("biases") if type(example.make()).head_values is not Bias.head_values]


@pytest.mark.parametrize("example", SHOWING, ids=lambda example: example.name)
def test_every_bias_that_declares_values_gives_one_for_each_head(example: Any) -> None:
    layer = Attention(QKV(16, 2), Softmax(Causal(), example.make())).eval()
    with torch.no_grad(), head_values_by_layer(layer) as values:
        layer(torch.randn(2, 5, 16), None, Context(torch.arange(5).expand(2, 5), run=True))
    assert values
    for by_layer in values.values():
        ((place, heads),) = by_layer.layers.items()
        assert place == "" and 1 <= len(heads) <= 2 and all(map(math.isfinite, heads))
