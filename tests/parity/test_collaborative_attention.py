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
    given, used = golden.tensors, {"x", "y", "M"}
    heads, shared = given["M"].shape
    v_dim, d = given["W_v"].shape[1] // heads, given["x"].shape[2]
    projection = Collaborative(d, heads, shared=shared, v_dim=v_dim, scale="head", content="W_cb" in given)
    layer = Attention(projection, Softmax(Full()), aggregation=OutProjection(heads, v_dim, given["W_o"].shape[1]))
    projection.mixing.data.copy_(given["M"])
    for weight, name in ((projection.q.weight, "q"), (projection.k.weight[:shared], "k")):
        used |= fill(weight, None, given, name)
    used |= fill(projection.v.weight, projection.v.bias, given, "v")
    used |= fill(layer.aggregation.linear.weight, layer.aggregation.linear.bias, given, "o")
    if "W_cb" in given:
        used |= fill(projection.k.weight[shared:], None, given, "cb")
    assert used == given.keys()
    close(layer(given["x"]).y, given["y"])


def fill(weight: Tensor, bias: Tensor | None, given: dict[str, Tensor], name: str) -> set[str]:
    """Weights are stored for y = x W + b; an absent b is none. Returns the names that were used."""
    weight.data.copy_(given[f"W_{name}"].T)
    if bias is not None:
        bias.data.copy_(given.get(f"b_{name}", bias.new_zeros(bias.shape)))
    return {f"W_{name}"} | ({f"b_{name}"} & given.keys() if bias is not None else set())
