"""Hard-coded attention against its equation, both forms: densities as they are, and over their sum."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.attend import attend, explain
from kinformer.attend.plan_request import plan_request
from kinformer.core.heads import Keys, Queries
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.biases.hard_coded_gaussian import HardCodedGaussian
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.unnormalised import Unnormalised
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.value_projection import ValueProjection

pytestmark = pytest.mark.usefixtures("float64")
OFFSETS, SIGMA = (-1, 0, 2), (1.0, 0.5, 3.0)


def density(j: float, centre: float, sigma: float) -> float:
    return math.exp(-(((j - centre) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))


def naive(layer: Attention, x: Tensor, pos: Tensor, pattern: Pattern, *, normalised: bool) -> Tensor:
    v = layer.projection.keys(x, pos).v
    y = torch.zeros_like(v)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, v.shape[:3])).tolist():
        read = [s for s in range(len(pos[b])) if min(pos[b, t], pos[b, s]) >= 0 and pattern(b, h, pos[b, t], pos[b, s])]
        weights = [density(float(pos[b, s]), float(pos[b, t]) + OFFSETS[h], SIGMA[h]) for s in read]
        total = sum(weights) if normalised else 1.0
        for s, weight in zip(read, weights, strict=True):
            y[b, h, t] += weight / total * v[b, h, s]
    return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("pattern", [Full(), Causal(), Causal() & Band(2)], ids=repr)
@pytest.mark.parametrize("kind", [Softmax, Unnormalised])
def test_equals_a_loop_over_the_equation(kind: type[KeyValueMechanism], pattern: Pattern) -> None:
    """Rows with padding on either side; what is padding has no weight, and changes no other."""
    pos = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, 0, 1, 2, 3, -1]])
    layer = Attention(ValueProjection(9, 3), kind(pattern, HardCodedGaussian(OFFSETS, SIGMA)), aggregation=Concat())
    x = torch.randn(2, 6, 9)
    want = naive(layer, x, pos, pattern, normalised=kind is Softmax)
    torch.testing.assert_close(layer(x, None, Context(pos, run=True)).y, want, rtol=0, atol=1e-12)


def test_a_source_is_read_where_its_share_of_the_way_lies() -> None:
    """gamma i + o, with a cache of the source too."""
    layer = Attention(
        ValueProjection(9, 3),
        Unnormalised(Full(), HardCodedGaussian(OFFSETS, SIGMA, ratio=0.5)),
        aggregation=Concat(),
        cross=True,
    )
    x, source, pos = torch.randn(1, 6, 9), torch.randn(1, 4, 9), torch.arange(6)[None]
    source_of = {"source": source, "source_pos": pos[:, :4]}
    v = layer.projection.keys(source, pos[:, :4]).v
    y = layer(x, None, Context(pos, run=True, **source_of)).y.unflatten(-1, (3, 3))
    for i, h in torch.cartesian_prod(torch.arange(6), torch.arange(3)).tolist():
        want = sum(density(j, 0.5 * i + OFFSETS[h], SIGMA[h]) * v[0, h, j] for j in range(4))
        torch.testing.assert_close(y[0, i, h], want, rtol=0, atol=1e-12)
    first = layer(x[:, :2], layer.start(1, 6), Context(pos[:, :2], run=True, **source_of))
    last = layer(x[:, 2:], first.state, Context(pos[:, 2:], run=True))
    torch.testing.assert_close(torch.cat([first.y, last.y], 1), y.flatten(2), rtol=0, atol=1e-12)


def test_it_owns_neither_queries_nor_keys_and_decodes_where_it_reads_the_past() -> None:
    layer = Attention(ValueProjection(8, 2, bias=False), Unnormalised(Causal(), HardCodedGaussian((-1, 0))))
    assert [name for name, _ in layer.named_parameters()] == ["projection.v.weight", "aggregation.linear.weight"]
    x, state, steps = torch.randn(2, 6, 8), layer.start(2, 6), []
    whole = layer(x).y
    for t in range(6):
        out = layer(x[:, t : t + 1], state, Context(torch.full((2, 1), t), run=True))
        steps, state = [*steps, out.y], out.state
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-12)
    with pytest.raises(NoState):
        Attention(ValueProjection(8, 2), Unnormalised(Full(), HardCodedGaussian((-1, 0)))).start(2, 6)


def test_densities_sum_to_one_only_where_nothing_is_cut_off() -> None:
    eye, empty = torch.eye(40).view(1, 1, 40, 40), torch.zeros(1, 1, 40, 0)
    layer = Unnormalised(Full(), HardCodedGaussian((0,)))
    pos = torch.arange(40).view(1, 1, 40)
    sums = layer(Queries(empty, pos), Keys(empty, eye, pos), None, Context(pos[:, 0], run=True)).y.y.sum(-1)[0, 0]
    torch.testing.assert_close(sums[10:30], torch.ones(20), rtol=0, atol=1e-6)
    assert sums[0] < 0.8 and sums[-1] < 0.8


def test_a_window_bounds_its_cost() -> None:
    """The executor that is chosen reads as many pairs for each token of a longer row."""

    def pairs(length: int) -> float:
        pos, empty = torch.arange(length).view(1, 1, -1), torch.zeros(1, 2, length, 0)
        queries, keys = Queries(empty, pos), Keys(empty, torch.zeros(1, 2, length, 4), pos)
        bias = HardCodedGaussian((-1, 0))
        request = Request(queries, keys, Causal() & Band(8), Product(), bias, run=True, full=True)
        assert next(iter(explain(request))) == "pieces"
        planned_request = plan_request(request)
        assert not isinstance(planned_request, Refusal)
        return planned_request.pairs / length

    assert pairs(8192) < 1.1 * pairs(2048) < 8192 / 4


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="got HardCodedGaussian of 2 offsets in a layer of 4 heads"):
        attend(*torch.zeros(3, 1, 4, 5, 4), bias=HardCodedGaussian((-1, 1)))
    with pytest.raises(ValueError, match="sigma has 1 numbers for 2 offsets"):
        HardCodedGaussian((-1, 1), (1.0,))
    with pytest.raises(ValueError, match="the number of offsets=0"):
        HardCodedGaussian(())
    with pytest.raises(ValueError, match="sigma=0"):
        HardCodedGaussian((-1, 1), 0)
    with pytest.raises(ValueError, match="ratio=-1"):
        HardCodedGaussian((-1, 1), ratio=-1)
