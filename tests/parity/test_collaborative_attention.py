"""Collaborative heads against the authors' layer: shared projections, mixing vectors, scores of keys alone."""

from torch import Tensor

from kinformer.core.patterns.full import Full
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.collaborative import Collaborative
from tests.parity.goldens import Golden, close, goldens


@goldens("collaborative_attention")
def test_collaborative_attention(golden: Golden, float64: None) -> None:
    tensors, used = golden.tensors, {"x", "y", "M"}
    heads, shared = tensors["M"].shape
    v_dim, d = tensors["W_v"].shape[1] // heads, tensors["x"].shape[2]
    projection = Collaborative(d, heads, shared=shared, v_dim=v_dim, scale="head", content="W_cb" in tensors)
    layer = Attention(projection, Softmax(Full()), aggregation=OutProjection(heads, v_dim, tensors["W_o"].shape[1]))
    projection.mixing.data.copy_(tensors["M"])
    for weight, name in ((projection.q.weight, "q"), (projection.k.weight[:shared], "k")):
        used |= fill(weight, None, tensors, name)
    used |= fill(projection.v.weight, projection.v.bias, tensors, "v")
    used |= fill(layer.aggregation.linear.weight, layer.aggregation.linear.bias, tensors, "o")
    if "W_cb" in tensors:
        used |= fill(projection.k.weight[shared:], None, tensors, "cb")
    assert used == tensors.keys()
    close(layer(tensors["x"]).y, tensors["y"])


def fill(weight: Tensor, bias: Tensor | None, tensors: dict[str, Tensor], name: str) -> set[str]:
    """Weights are stored for y = x W + b; an absent b is none. Returns the names that were used."""
    weight.data.copy_(tensors[f"W_{name}"].T)
    if bias is not None:
        bias.data.copy_(tensors.get(f"b_{name}", bias.new_zeros(bias.shape)))
    return {f"W_{name}"} | ({f"b_{name}"} & tensors.keys() if bias is not None else set())
