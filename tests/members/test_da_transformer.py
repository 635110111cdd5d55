"""DA-Transformer: two numbers a head and block, which learn; and a block from the paper's equation by hand."""

import math
from typing import Any

import torch

from kinformer.members.da_transformer import da_transformer
from kinformer.nn.biases.distance_aware import DistanceAware


def test_each_head_of_each_block_has_two_numbers_and_they_learn() -> None:
    model = da_transformer(d=16, depth=3, heads=4, vocab=11)
    biases = [part for part in model.modules() if isinstance(part, DistanceAware)]
    assert [(len(bias.alpha), len(bias.beta)) for bias in biases] == [(4, 4)] * 3
    with torch.no_grad():
        for bias in biases:
            bias.alpha.fill_(-0.1)
    model(torch.randint(0, 11, (4, 32))).total.backward()
    for bias in biases:
        for number in (bias.alpha, bias.beta):
            assert number.grad is not None and bool((number.grad != 0).all())


def test_attention_is_the_papers_equation(float64: None) -> None:
    """softmax(ReLU(Q K^T) f(alpha |i - j|) / sqrt(K)) V, f(R) = (1 + e^beta) / (1 + e^(beta - R)), both ways."""
    model: Any = da_transformer(d=12, depth=1, heads=3, vocab=11).eval()
    layer = model.body.layers[0].layers[0]
    bias = layer.mechanism.bias
    with torch.no_grad():
        bias.alpha.copy_(torch.tensor([-0.5, 0.3, 0.0]))
        bias.beta.copy_(torch.tensor([0.7, -1.0, 2.0]))
    x = torch.randn(1, 6, 12)
    q, k, v = ((x[0] @ layer.projection.matrix(name)[0].T + layer.projection.matrix(name)[1]) for name in "qkv")
    rows = []
    for i in range(6):
        heads = []
        for h in range(3):
            at, alpha, beta = slice(4 * h, 4 * h + 4), bias.alpha.tolist()[h], bias.beta.tolist()[h]
            scores = []
            for j in range(6):
                f = (1 + math.exp(beta)) / (1 + math.exp(beta - alpha * abs(i - j)))
                scores.append((q[i, at] @ k[j, at]).relu() * f / 2)
            heads.append(torch.stack(scores).softmax(0) @ v[:, at])
        rows.append(torch.cat(heads))
    expected = layer.aggregation.linear(torch.stack(rows))
    torch.testing.assert_close(layer(x).y[0], expected, rtol=0, atol=1e-12)


def test_a_distance_has_no_sign_and_a_position_gives_it_one(float64: None) -> None:
    tokens = torch.randint(0, 11, (1, 9))
    for position in ("none", "sinusoidal"):
        model = da_transformer(d=16, depth=2, heads=2, vocab=11, position=position).eval()
        for bias in (part for part in model.modules() if isinstance(part, DistanceAware)):
            torch.nn.init.normal_(bias.alpha)
        mirrored = model.logits(tokens.flip(1)).y.flip(1)
        assert torch.allclose(mirrored, model.logits(tokens).y, atol=1e-10) == (position == "none")
