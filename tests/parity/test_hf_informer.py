"""ProbSparse attention against Hugging Face's on equal weights, where theirs is made to look at every key.

Theirs draws one sample of as many keys as there are for all queries, and takes u by ln(1 + L): so it is asked with
every key once, which is the exact max-mean measure, and at a length at which both logarithms round up alike.
"""

from typing import Any

import pytest
import torch
from transformers import InformerConfig
from transformers.models.informer.modeling_informer import (
    InformerDecoderLayer,
    InformerEncoderLayer,
    InformerProbSparseAttention,
)

from kinformer.core.layer import Context
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from tests.parity.peers import agree, copy_weights, gradient, put_qkv, shaken

D, HEADS, LENGTH = 24, 4, 24


@pytest.fixture(autouse=True)
def every_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def randint(low: int, high: int, size: tuple[int, ...]) -> torch.Tensor:
        assert size == (high - low,)
        return torch.arange(low, high)

    monkeypatch.setattr(torch, "randint", randint)


def both_layers(dtype: torch.dtype, causal: bool) -> tuple[InformerProbSparseAttention, Any]:
    theirs = InformerProbSparseAttention(D, HEADS, is_decoder=causal, sampling_factor=2).to(dtype).eval()
    theirs = shaken(theirs)
    rest: dict[str, Any] = {"rest": "sum"} if causal else {}
    ours: Any = Attention(QKV(D, HEADS), ProbSparse(causal=causal, factor=2, measure="max-mean", **rest)).to(dtype)
    for name in "qkv":
        linear = getattr(theirs, f"{name}_proj")
        put_qkv(ours.projection, name, linear.weight, linear.bias)
    copy_weights(ours.aggregation.linear, theirs.out_proj.weight, theirs.out_proj.bias)
    return theirs, ours.eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_and_gradients(dtype: torch.dtype, causal: bool) -> None:
    theirs, ours = both_layers(dtype, causal)
    x = torch.randn(3, LENGTH, D, dtype=dtype)
    future = torch.full((LENGTH, LENGTH), -torch.inf, dtype=dtype).triu(1).expand(3, 1, -1, -1)
    want = theirs(x, attention_mask=future if causal else None)[0]
    actual = ours(x).y
    # their sum over the row is kept in float32 whatever comes
    tolerance = 1e-6 if causal and dtype == torch.float64 else None
    agree(actual, want, tolerance)
    actual.square().sum().backward()
    want.square().sum().backward()
    agree(gradient(ours.projection, "q"), theirs.q_proj.weight.grad, tolerance and 10 * tolerance)


def test_an_encoder_layer_and_a_decoder_layer_over_it() -> None:
    """Theirs halves the row by a batch norm and a convolution that wraps around, so whole models are not the same."""
    sizes: dict[str, Any] = {"prediction_length": 5, "d_model": D, "sampling_factor": 2, "dropout": 0.0}
    both_sides = {
        f"{side}_{name}": number
        for side in ("encoder", "decoder")
        for name, number in (("attention_heads", HEADS), ("ffn_dim", 40))
    }
    config = InformerConfig(**sizes, **both_sides, attention_type="prob", activation_function="gelu")
    config._attn_implementation = "eager"
    below, above = (
        shaken(kind.double().eval()) for kind in (InformerEncoderLayer(config), InformerDecoderLayer(config))
    )
    sparse, causal = (
        ProbSparse(causal=ahead, factor=2, measure="max-mean", rest="sum" if ahead else "mean")
        for ahead in (False, True)
    )
    encoder: Any = PostNorm(Attention(QKV(D, HEADS), sparse), MLP(D, 40)).double().eval()
    across = Attention(QKV(D, HEADS), Softmax(Full()), cross=True)
    decoder: Any = PostNorm(Attention(QKV(D, HEADS), causal), across, MLP(D, 40)).double().eval()
    for ours, theirs in ((encoder, below), (decoder, above)):
        attentions = [getattr(theirs, name) for name in ("self_attn", "encoder_attn") if hasattr(theirs, name)]
        norms = [
            getattr(theirs, f"{name}_layer_norm")
            for name in ("self_attn", "encoder_attn", "final")
            if hasattr(theirs, f"{name}_layer_norm")
        ]
        for layer, their_part in zip(ours.layers[:-1], attentions, strict=True):
            for name in "qkv":
                put_qkv(layer.projection, name, (linear := getattr(their_part, f"{name}_proj")).weight, linear.bias)
            copy_weights(layer.aggregation.linear, their_part.out_proj.weight, their_part.out_proj.bias)
        for norm, their_part in zip(ours.norms, norms, strict=True):
            copy_weights(norm, their_part.weight, their_part.bias)
        copy_weights(ours.layers[-1].up, theirs.fc1.weight, theirs.fc1.bias)
        copy_weights(ours.layers[-1].down, theirs.fc2.weight, theirs.fc2.bias)
    x, y = torch.randn(2, LENGTH, D, dtype=torch.float64), torch.randn(2, LENGTH, D, dtype=torch.float64)
    reduced = below(x, attention_mask=None)
    reduced = reduced[0] if isinstance(reduced, tuple) else reduced
    source = encoder(x).y
    agree(source, reduced)
    future = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1).expand(2, 1, -1, -1)
    want = above(y, attention_mask=future, encoder_hidden_states=reduced)
    ctx = Context.of_sequence(y).replace(source=source, source_pos=Context.of_sequence(source).pos)
    agree(decoder(y, None, ctx).y, want[0] if isinstance(want, tuple) else want, 1e-6)
