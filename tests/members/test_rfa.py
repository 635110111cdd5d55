"""RFA: the lowest attention by its recurrence and random features, a gate without its share, and sums without one."""

import pytest
import torch

import kinformer as kf
from tests.members.probes import LENGTH, Heads, check_lowest

pytestmark = pytest.mark.usefixtures("float64")

SMALL = {"d": 8, "heads": 2, "depth": 1, "features": 64, "length": 12, "vocab": 11}


def phi(heads: Heads, h: int, x: torch.Tensor) -> torch.Tensor:
    """[sin(w.x), cos(w.x)] / sqrt(D) of x at length 1, w = sigma w~ learned by head."""
    feature_map = heads.layer.mechanism.map
    angle = x / (x.norm(dim=-1, keepdim=True) + 1e-6) @ (feature_map.sigma[h] * feature_map.directions[h]).T
    return torch.cat([angle.sin(), angle.cos()], -1) / len(feature_map.directions[h]) ** 0.5


def by_hand(heads: Heads, h: int, gated: bool = True) -> torch.Tensor:
    """S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, z_t likewise, g_t = sigmoid(w.x_t + b); plain sums without gate."""
    q, k, v = phi(heads, h, heads.q[:, h]), phi(heads, h, heads.k[:, h]), heads.v[:, h]
    gates = heads.layer.key_side(heads.x)[:, h].sigmoid() if gated else None
    s, z, y = torch.zeros(k.shape[1], 4), torch.zeros(k.shape[1]), []
    for t in range(LENGTH):
        keep, enter = (gates[t], 1 - gates[t]) if gates is not None else (1.0, 1.0)
        s, z = keep * s + enter * torch.outer(k[t], v[t]), keep * z + enter * k[t]
        y.append(q[t] @ s / (q[t] @ z).clamp_min(1e-3))
    return torch.stack(y)


def test_the_past_fades_through_a_learned_gate() -> None:
    check_lowest(kf.rfa(**SMALL), by_hand)


def test_without_a_gate_tokens_are_added_up() -> None:
    check_lowest(kf.rfa(**SMALL, gate=False), lambda heads, h: by_hand(heads, h, False))


def test_tokens_that_enter_whole_and_another_temperature_are_noticed() -> None:
    model = kf.rfa(**SMALL)
    model.body.layers[0].layers[0].mechanism.update = kf.Decayed()  # S_t = g_t S_(t-1) + phi(k_t) v_t^T
    for fault in (model, kf.rfa(**SMALL, tau=2.0)):
        with pytest.raises(AssertionError):
            check_lowest(fault, by_hand)


def test_products_of_features_estimate_softmax_of_unit_vectors() -> None:
    """E phi(q).phi(k) = exp(-|q - k|^2 / 2) = exp(q.k) / e at length 1: within 0.05 for 20,000 directions."""
    model = kf.rfa(**{**SMALL, "features": 20_000})
    heads = Heads(model.body.layers[0].layers[0], torch.randn(LENGTH, 8))
    q, k = (torch.nn.functional.normalize(x[:, 0], dim=-1) for x in (heads.q, heads.k))
    estimate = phi(heads, 0, heads.q[:, 0]) @ phi(heads, 0, heads.k[:, 0]).T
    torch.testing.assert_close(estimate, (q @ k.T).exp() / torch.e, rtol=0, atol=0.05)


def test_published_sums_of_short_rows_shrink_what_is_read() -> None:
    """Features times 0.1 and a divisor of at least 1: weights of 9 tokens sum to at most 9 / 100 D, not to 1."""
    layer = kf.rfa(**SMALL, form="published", gate=False).eval().body.layers[0].layers[0]
    layer.projection.qkv.weight.data[-8:], layer.projection.qkv.bias.data[-8:] = 0.0, 1.0
    sums = []
    layer.aggregation.register_forward_pre_hook(lambda _layer, arguments: sums.append(arguments[0]))
    layer(torch.randn(1, 1, 8))
    # a row of one token: phi(q).phi(k) = 0.01 sum_d cos(w_d.(q - k)) <= 0.64
    assert bool((sums[0] <= 0.64 + 1e-12).all()) and bool((sums[0] > -0.64).all())
