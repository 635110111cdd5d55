"""Collaborative heads: the equation by loops, ordinary attention as a case of it, and trained layers turned into it."""

import inspect
from itertools import pairwise

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.projections.collaborative import Collaborative
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("scale", ["shared", "head"])
def test_the_equation(scale: str, content: bool) -> None:
    part = Collaborative(12, 3, shared=5, v_dim=2, scale=scale, content=content)
    layer, x = Attention(part, Softmax(Full())), torch.randn(2, 4, 12)
    y = torch.zeros(2, 3, 4, 2)
    for b in range(2):
        for h in range(3):
            value = x[b] @ part.v.weight[2 * h : 2 * h + 2].T + part.v.bias[2 * h : 2 * h + 2]
            for i in range(4):
                logits = []
                for j in range(4):
                    product = ((part.q.weight @ x[b, i]) * part.mixing[h]) @ (part.k.weight[:5] @ x[b, j])
                    alone = part.k.weight[5 + h] @ x[b, j] if content else 0.0
                    logits.append((product + alone) / (5 if scale == "shared" else 5 / 3) ** 0.5)
                y[b, h, i] = torch.stack(logits).softmax(0) @ value
    torch.testing.assert_close(layer(x).y, layer.aggregation(y, torch.arange(4).expand(2, -1)), rtol=0, atol=1e-12)


def layers(trained: QKV, shared: int | None = None) -> tuple[Attention, Attention]:
    ordinary = Attention(trained, Softmax(Causal()))
    turned = Attention(Collaborative.from_trained(trained, shared), Softmax(Causal()), aggregation=ordinary.aggregation)
    return ordinary, turned


@pytest.mark.parametrize("keywords", [{}, {"key_heads": 2}, {"bias": False}, {"head_dim": 3, "v_dim": 5}], ids=str)
def test_a_trained_layer_is_a_case_of_it(keywords: dict) -> None:
    ordinary, turned = layers(QKV(16, 4, **keywords))
    x = torch.randn(2, 7, 16)
    torch.testing.assert_close(turned(x).y, ordinary(x).y, rtol=0, atol=1e-12)


def test_columns_that_heads_have_in_common_are_found() -> None:
    """Four heads made of six columns: six give the layer back, and fewer come nearer the more there are."""
    mix, left, right = torch.randn(4, 6), *(3 * torch.linalg.qr(torch.randn(2, 16, 6))[0].mT)
    trained = QKV(16, 4, head_dim=6)
    for h in range(4):
        trained.matrix("q")[0].data[6 * h : 6 * h + 6] = mix[h][:, None] * left
        trained.matrix("k")[0].data[6 * h : 6 * h + 6] = right
    x = torch.randn(2, 7, 16)

    def error(shared: int) -> float:
        ordinary, turned = layers(trained, shared)
        return float((turned(x).y - ordinary(x).y).abs().max().detach())

    assert error(6) < 1e-6
    assert error(6) < 1e-3 * error(4) and error(4) < error(1)


def test_logits_come_nearer_with_every_column_until_they_are_those_of_the_trained_layer() -> None:
    trained = QKV(16, 2)
    q, k = (trained.matrix(name)[0].detach().unflatten(0, (2, 8)) for name in "qk")
    expected = torch.einsum("hka,hkb->hab", q, k) / 8**0.5

    def error(shared: int) -> float:
        part = Collaborative.from_trained(trained, shared)
        logits = torch.einsum("hr,ra,rb->hab", part.mixing, part.q.weight, part.k.weight[:shared])
        logits = logits / part.squared_scale**0.5
        return float(((logits - expected).norm() / expected.norm()).detach())

    errors = [error(shared) for shared in (2, 4, 8, 16)]
    assert all(after < 0.95 * before for before, after in pairwise(errors)) and errors[-1] < 1e-12


@pytest.mark.parametrize("key_heads", [1, 2])
@torch.no_grad()
def test_columns_beyond_the_rank_of_grouped_keys_help_too(key_heads: int) -> None:
    """A key side of rank key_heads * head_dim holds fewer directions than columns; one more always comes nearer."""
    trained = QKV(12, 4, key_heads=key_heads, head_dim=3, bias=False)
    q, k = (trained.matrix(name)[0].detach().unflatten(0, (-1, 3)) for name in "qk")
    whole = torch.einsum("hka,hkb->hab", q, k.repeat_interleave(4 // key_heads, 0))

    def error(shared: int) -> float:
        part = Collaborative.from_trained(trained, shared)
        assert part.shared == shared
        logits = torch.einsum("hr,ra,rb->hab", part.mixing, part.q.weight, part.k.weight[:shared])
        return float((logits * (3 / part.squared_scale) ** 0.5 - whole).norm() / whole.norm())

    errors = [error(shared) for shared in (3, 6, 9, 12, 15)]
    assert all(after < 0.75 * before for before, after in pairwise(errors[:4])) and max(errors[3:]) < 1e-12


def test_the_cache_holds_one_key_for_all_heads() -> None:
    layer = Attention(Collaborative(16, 4, shared=6), Softmax(Causal()))
    x = torch.randn(2, 9, 16)
    whole, state, done = layer(x).y, layer.start(2, 9), []
    assert sorted(leaf.shape[-1] * leaf.shape[1] for _, leaf in leaves(state) if leaf.dim() == 4) == [6 + 4, 16]
    for at in torch.arange(9).split([4, 1, 4]):
        out = layer(x[:, at], state, Context(at.expand(2, -1), run=True))
        state = out.state
        done.append(out.y)
    torch.testing.assert_close(torch.cat(done, 1), whole, rtol=0, atol=1e-12)


def test_heads_begin_as_told() -> None:
    assert Collaborative(6, 2, shared=5, mixing="concatenated").mixing.tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]
    assert (Collaborative(6, 2, mixing="ones").mixing == 1).all()
    assert abs(Collaborative(64, 64, shared=64).mixing.std() - 0.2) < 0.02


def unchecked(**keywords: object) -> None:
    """Made as outside of the tests, where nothing checks annotations."""
    inspect.unwrap(Collaborative.__init__)(Collaborative.__new__(Collaborative), 8, 2, **keywords)


REFUSED = {
    "d=10 is not a multiple of heads=4": lambda: Collaborative(10, 4),
    "shared=0": lambda: Collaborative(8, 2, shared=0),
    r"shared=3 is too small for 4 heads that each have columns of their own\. Pass at least 4": lambda: Collaborative(
        8, 4, shared=3, mixing="concatenated"
    ),
    "mixing='random' is not known": lambda: unchecked(mixing="random"),
    "scale='d' is not known": lambda: unchecked(scale="d"),
    "a QKV with a rotation": lambda: Collaborative.from_trained(QKV(8, 2, rotation=Rotary(4))),
    "linear attention needs as many key heads as value heads: got 1 key heads and 2": lambda: Attention(
        Collaborative(8, 2), LinearAttention(ELU())
    ),
    "linear attention needs as many key heads as value heads": lambda: Attention(
        Collaborative(8, 2), FullLinearAttention(ELU())
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        REFUSED[text]()


@pytest.mark.parametrize(("heads", "shared"), [(4, 6), (3, 7), (4, 4), (2, 8), (5, 6)])
def test_concatenated_gives_every_head_columns_of_its_own(heads: int, shared: int) -> None:
    """With 6 columns the last of 4 heads used to have none, and to read every key alike."""
    own = Collaborative(heads, heads, shared=shared, mixing="concatenated").mixing.detach()
    assert (own.sum(0) == 1).all()
    assert set(own.sum(1).tolist()) <= {shared // heads, -(-shared // heads)}
