"""FourPieces: keys by who reads and what is read, pair by pair, and two pieces that are exchanged."""

import pytest
import torch

import kinformer as kf
from kinformer.core.heads import Keys
from tests.nn.mechanisms.heads import POS, Heads, close, random_heads, real_tokens, run, softmax_sum

pytestmark = pytest.mark.usefixtures("float64")

GLOBAL, RADIUS = 2, 1


class Exchanged(kf.FourPieces):
    """Global and long tokens read global tokens by each other's keys."""

    def _by_piece(self, keys: Keys) -> Keys:
        extras = keys.extras
        return super()._by_piece(keys._replace(extras={**extras, "l2g_k": extras["g2g_k"], "g2g_k": extras["l2g_k"]}))


def piece_of(heads: Heads, reader: int, key: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values that serve a pair of positions: those of g2g, g2l, l2g or l2l."""
    if reader < GLOBAL:
        name = "g2g" if key < GLOBAL else "global"
        return heads.extras[f"{name}_k"], heads.extras[f"{name}_v"]
    return (heads.extras["l2g_k"], heads.extras["l2g_v"]) if key < GLOBAL else (heads.k, heads.v)


def check(kind: type[kf.FourPieces], groups: int = 2) -> None:
    """Global rows are one softmax over [g2g | g2l], long rows over [l2g | l2l], with l2l in a band."""
    extras = {f"{name}_{part}": width for name in ("global", "g2g", "l2g") for part, width in (("k", 4), ("v", 3))}
    heads, global_q = random_heads(groups=groups, **extras), torch.randn(2, 2, POS.shape[1], 4)
    mechanism = kind(kf.Band(RADIUS) | kf.Tokens(GLOBAL), GLOBAL)
    y = run(mechanism, heads, global_q=global_q).y.y
    for b, h in ((b, h) for b in range(2) for h in range(2)):
        g, tokens = h * groups // 2, real_tokens(b)
        for i in tokens:
            at = int(POS[b, i])
            q = (global_q if at < GLOBAL else heads.q)[b, h, i]
            near = [j for j in tokens if at < GLOBAL or POS[b, j] < GLOBAL or abs(at - int(POS[b, j])) <= RADIUS]
            pairs = [tuple(x[b, g, j] for x in piece_of(heads, at, int(POS[b, j]))) for j in near]
            close(y[b, h, i], softmax_sum([q @ k / 2 for k, _ in pairs], [v for _, v in pairs]))


@pytest.mark.parametrize("groups", [1, 2])
def test_each_piece_has_keys_and_values_of_its_own(groups: int) -> None:
    check(kf.FourPieces, groups)


def test_exchanged_pieces_are_noticed() -> None:
    with pytest.raises(AssertionError):
        check(Exchanged)


def test_a_layer_has_two_matrices_of_queries_four_of_keys_and_four_of_values() -> None:
    layer = kf.Attention(kf.QKV(8, 2), kf.FourPieces(kf.Band(1) | kf.Tokens(2), 2))
    columns = layer.side.weight.shape[0], layer.key_side.weight.shape[0]
    assert columns == (8, 6 * 8) and sum(layer.projection.matrix(name)[0].shape[0] for name in "qkv") == 3 * 8
