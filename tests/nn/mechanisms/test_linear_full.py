"""FullLinearAttention: sums over every key by a loop, padding counted by mistake, and a source that is summed once."""

import pytest
import torch
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.mechanisms import linear_full
from tests.nn.mechanisms.heads import POS, close, random_heads, real_tokens, run
from tests.nn.mechanisms.test_linear import B, numbered

pytestmark = pytest.mark.usefixtures("float64")


def check(groups: int) -> None:
    """y_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j) over all real keys, phi = elu + 1."""
    heads = random_heads(groups=groups)
    q, k = F.elu(heads.q) + 1, F.elu(heads.k) + 1
    read = run(kf.FullLinearAttention(kf.ELU()), heads).y
    for b, h in ((b, h) for b in range(2) for h in range(2)):
        g, tokens = h * groups // 2, real_tokens(b)
        for i in tokens:
            weights = [q[b, h, i] @ k[b, g, j] for j in tokens]
            total = sum(weight * heads.v[b, g, j] for weight, j in zip(weights, tokens, strict=True))
            close(read.y[b, h, i], total / sum(weights))
            close(read.lse[b, h, i], sum(weights).log())


@pytest.mark.parametrize("groups", [1, 2])
def test_every_key_is_weighed_by_a_product_of_features(groups: int) -> None:
    check(groups)


def test_padding_that_is_counted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The features of a padded key are not zero: elu(0) + 1 = 1."""
    key_features = linear_full.key_features

    def unmasked(feature_map, keys, real, dtype):
        return key_features(feature_map, keys._replace(pos=keys.pos.clamp_min(0)), real, dtype)

    monkeypatch.setattr(linear_full, "key_features", unmasked)
    with pytest.raises(AssertionError):
        check(2)


def test_a_source_of_another_length_is_read_without_its_padding() -> None:
    heads, pos = random_heads(), torch.arange(6).expand(2, -1)
    q = heads.q[:, :, :6]
    keys = Keys(heads.k, heads.v, POS[:, None], own=False)
    y = kf.FullLinearAttention(kf.ELU())(Queries(q, pos[:, None]), keys, None, Context(pos)).y.y
    weights = (F.elu(q) + 1) @ (F.elu(heads.k) + 1).mT * (POS >= 0)[:, None, None]
    close(y, weights @ heads.v / weights.sum(-1, keepdim=True))


def test_a_source_is_added_up_once() -> None:
    """Cross-attention over all keys: the state of a decoder's second call is the sums over the source."""
    layer = kf.Attention(kf.QKV(16, 2), kf.FullLinearAttention(kf.ELU()), cross=True)
    x, source, source_pos = torch.randn(B, 4, 16), torch.randn(B, 5, 16), numbered(5).clone()
    source_pos[1, 3:] = -1
    whole = layer(x, None, Context(numbered(4), source=source, source_pos=source_pos)).y
    first = Context(numbered(4)[:, :1], source=source, source_pos=source_pos, only=kf.Causal())
    out = layer(x[:, :1], layer.start(B, 4), first)
    assert torch.allclose(out.y, whole[:, :1], atol=1e-13)
    assert torch.allclose(layer(x[:, 1:], out.state, Context(numbered(4)[:, 1:])).y, whole[:, 1:], atol=1e-13)
    assert out.state.inside.s.shape == (B, 2, 8, 9)
    for state in (None, layer.start(B, 4)):
        with pytest.raises(ValueError, match="got no source"):
            layer(x, state, Context(numbered(4)))
