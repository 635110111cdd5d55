"""The dense and the factorised dense synthesizer against a published code's: weights and what they read."""

import torch
from torch import Tensor

from kinformer.core.attention_output import weights
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.score import Score
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.value_projection import ValueProjection
from kinformer.nn.scores.factorised_dense import FactorisedDense
from kinformer.nn.scores.synthesizer import DenseSynthesizer
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import copy_weights

HIDDEN, FACTORS, VALUES = ("W_1", "b_1", "W_2", "b_2"), ("W_a", "b_a", "W_b", "b_b"), ("W_v", "b_v", "W_v2", "b_v2")


@goldens("synthesizer_dense")
def test_synthesizer_dense(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    outputs = [f"{kind}_{form}" for kind in ("attn", "y") for form in ("dense", "factorized_dense")]
    known_names = {"x", *HIDDEN, *FACTORS, *VALUES, *outputs}
    assert tensors.keys() <= known_names, f"not read: {sorted(tensors.keys() - known_names)}"
    heads, causal, compared = sizes.get("heads", sizes.get("h", 1)), bool(sizes.get("causal")), 0
    for form, dense_layer, value in (("dense", dense, "v"), ("factorized_dense", factorised, "v2")):
        if f"y_{form}" in tensors:
            score, side, shift = dense_layer(tensors, heads)
            layer = layer_of(score, tensors, value, causal)
            copy_weights(layer.side, side, shift)
            attention, y = read(layer, tensors["x"])
            close(y, tensors[f"y_{form}"])
            if (theirs := tensors.get(f"attn_{form}")) is not None:
                close(attention if theirs.dim() == 4 else attention[:, 0], theirs)
            compared += 1
    assert compared


def bias(tensors: dict[str, Tensor], name: str, width: int) -> Tensor:
    return tensors.get(name, torch.zeros(width))


def dense(tensors: dict[str, Tensor], heads: int) -> tuple[Score, Tensor, Tensor]:
    """W_2 of all heads side by side, or one for all."""
    (units, columns), hidden = tensors["W_2"].shape, tensors["W_1"].shape[1]
    shared = heads > 1 and columns == tensors["x"].shape[1]
    length = columns if shared else columns // heads
    score = DenseSynthesizer(heads, length, units, shared=shared)
    with torch.no_grad():
        score.weight.copy_(tensors["W_2"].view(units, -1, length).transpose(0, 1))
        score.bias.copy_(bias(tensors, "b_2", columns).view(-1, 1, length))
    return score, tensors["W_1"].T, bias(tensors, "b_1", hidden)


def factorised(tensors: dict[str, Tensor], heads: int) -> tuple[Score, Tensor, Tensor]:
    a, b = tensors["W_a"], tensors["W_b"]
    widths = [matrix.shape[1] // heads for matrix in (a, b)]
    score = FactorisedDense(heads, widths[0] * widths[1], widths[0])
    biases = [bias(tensors, f"b_{name}", w.shape[1]) for name, w in (("a", a), ("b", b))]
    return score, torch.cat([a, b], 1).T, torch.cat(biases)


def layer_of(score: Score, tensors: dict[str, Tensor], value: str, causal: bool) -> Attention:
    """No output projection, as in the code."""
    weight = tensors[f"W_{value}"].T
    projection = ValueProjection(weight.shape[1], score.heads, v_dim=len(weight) // score.heads)
    copy_weights(projection.v, weight, bias(tensors, f"b_{value}", len(weight)))
    return Attention(projection, Softmax(Causal() if causal else Full(), score=score), aggregation=Concat())


def read(layer: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of all pairs [B H T S], and what is read by them."""
    inputs: list[tuple] = []
    mechanism = layer.mechanism
    assert isinstance(mechanism, KeyValueMechanism)
    handle = mechanism.register_forward_pre_hook(lambda module, args: inputs.append(args))
    y = layer(x).y
    handle.remove()
    queries, keys, _, ctx = inputs[0]
    assert isinstance(ctx, Context)
    request, _ = mechanism.make_request(queries, keys, None, ctx)
    every = torch.arange(x.shape[1]).expand(len(x), -1)
    lse = mechanism(queries, keys, None, ctx).y.lse
    return weights(request, lse, every), y
