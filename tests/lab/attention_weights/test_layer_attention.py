"""Maps of blocks, and the numbers of each head: equal to a plain softmax that the test computes itself."""

import math
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import kinformer as kf
from kinformer.attend import read
from kinformer.lab.attention_weights import layer_attention as layers
from kinformer.lab.look import AttentionMaps, look

T, H, K = 23, 2, 8


class TwoReads(kf.KeyValueMechanism):
    """Softmax over a pattern as the merge of two attention calls over disjoint keys."""

    def __init__(self, pattern: kf.Pattern):
        super().__init__()
        self.pattern = pattern

    def read(self, request: kf.Request) -> Any:
        near = kf.Band(3)
        calls = [request.replace(pattern=request.pattern & part) for part in (near, ~near)]
        return kf.Out(kf.merge(*(read(call, "reference") for call in calls)))


PATTERNS = {
    "causal": lambda i, j: j <= i,
    "full": lambda i, j: True,
    "window": lambda i, j: i - 4 <= j <= i,
    "without first queries": lambda i, j: 3 <= j < i,
}
ALLOWED = {
    "causal": kf.Causal(),
    "full": kf.Full(),
    "window": kf.Causal() & kf.Band(4),
    "without first queries": kf.Causal() & kf.Band(T, -1) & ~kf.Tokens(3),
}


def plain_weights(layer: Any, x: Tensor, name: str) -> list[list[list[float]]]:
    """The softmax of q.k / sqrt(K) over the allowed keys, with loops, from the matrix of the layer."""
    with torch.no_grad():
        qkv = (x[0] @ layer.projection.qkv.weight.T + layer.projection.qkv.bias).unflatten(1, (3, H, K))
    maps = []
    for h in range(H):
        rows = []
        for i in range(len(x[0])):
            allowed = [j for j in range(len(x[0])) if PATTERNS[name](i, j)]
            exps = {j: math.exp(float(qkv[i, 0, h] @ qkv[j, 1, h]) / math.sqrt(K)) for j in allowed}
            rows.append([exps.get(j, 0.0) / sum(exps.values()) if exps else 0.0 for j in range(len(x[0]))])
        maps.append(rows)
    return maps


def blocks(rows: list[list[float]], size: int) -> list[list[float]]:
    """Sums over blocks of keys, means over blocks of queries; the last block may be shorter."""
    cuts = [range(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]
    return [[sum(rows[i][j] for i in q for j in k) / len(q) for k in cuts] for q in cuts]


def make_layer(name: str, mechanism: Any) -> tuple[Any, Float[Tensor, "1 T D"]]:
    torch.manual_seed(1)
    layer = kf.Attention(kf.QKV(H * K, H), mechanism(ALLOWED[name])).double()
    return layer, 2 * torch.randn(1, T, H * K, dtype=torch.float64)


@pytest.mark.parametrize("pairs", [1, 400, 1 << 19])  # tiles of one query, of a few, and of all
@pytest.mark.parametrize("cells", [None, 6, 1])
@pytest.mark.parametrize("mechanism", [kf.Softmax, TwoReads])
@pytest.mark.parametrize("name", PATTERNS)
def test_blocks_and_numbers_of_heads_are_those_of_a_plain_softmax(
    name: str, mechanism: Any, cells: int | None, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "PAIRS", pairs)
    layer, x = make_layer(name, mechanism)
    seen = look(layer, x, cells=cells)
    size = {None: 1, 6: 4, 1: T}[cells]
    assert seen.cell == size and not seen.unseen and seen.bits is None
    expected = plain_weights(layer, x, name)
    torch.testing.assert_close(seen.maps[""], torch.tensor([blocks(rows, size) for rows in expected]))
    numbers = seen.heads[""]
    for h, rows in enumerate(expected):
        reading = [i for i in range(T) if sum(rows[i]) > 0]
        distance = sum(rows[i][j] * abs(i - j) for i in reading for j in range(T)) / len(reading)
        entropy = -sum(w * math.log2(w) for i in reading for w in rows[i] if w > 0) / len(reading)
        assert float(numbers.distance[h]) == pytest.approx(distance, rel=1e-5)
        assert float(numbers.entropy[h]) == pytest.approx(entropy, rel=1e-5)
        for n, column in ((1, numbers.first_token), (4, numbers.first_tokens)):
            later = [i for i in reading if i >= n]
            share = sum(rows[i][j] for i in later for j in range(n)) / len(later)
            assert float(column[h]) == pytest.approx(share, rel=1e-5, abs=1e-7)


def test_a_text_without_later_queries_has_no_share_of_first_tokens() -> None:
    layer, x = make_layer("causal", kf.Softmax)
    numbers = look(layer, x[:, :3]).heads[""]
    assert numbers.first_token.isfinite().all() and numbers.first_tokens.isnan().all()


class LargestTensor(TorchDispatchMode):
    """The most numbers that any tensor of a computation has."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            self.most = max(self.most, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return out


def test_no_matrix_of_all_pairs_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "PAIRS", 1 << 13)
    torch.manual_seed(0)
    for member in (kf.gpt, kf.longformer_lm):
        model, text = member(d=16, depth=1, heads=2), bytes(7 * n * n % 251 for n in range(512))
        model.eval()
        with torch.no_grad(), LargestTensor() as alone:
            model.logits(torch.tensor([list(text)]))
        with LargestTensor() as largest:
            seen = look(model, text, cells=32)
        assert next(iter(seen.maps.values())).shape == (2, 32, 32)
        assert largest.most <= max(2 * (1 << 13), alone.most) < 512 * 512


def test_a_long_text_gets_blocks_by_default_and_a_longer_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinformer.lab.look.WHOLE", 40)
    model = kf.gpt(d=16, depth=1, heads=2, length=300)
    seen = look(model, bytes(300))
    assert seen.cell == 3 and next(iter(seen.maps.values())).shape == (2, 100, 100)
    assert look(model, bytes(40)).cell == 1
    with pytest.raises(ValueError, match="cells=0"):
        look(model, bytes(300), cells=0)


class OwnModel(nn.Module):
    """A user's own module with two attention layers, which takes token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, H * K)
        self.layers = nn.ModuleList(
            kf.Attention(kf.QKV(H * K, H), kf.Softmax(kf.Causal()), aggregation=None) for _ in range(2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x).y
        return x


def test_a_module_of_the_user_is_called_with_the_tensor() -> None:
    torch.manual_seed(0)
    module, ids = OwnModel().train(), torch.tensor([[3, 14, 15, 9, 26]])
    seen: AttentionMaps = look(module, ids)
    assert module.training and seen.tokens == [b"3", b"14", b"15", b"9", b"26"]
    assert list(seen.maps) == ["layers.0", "layers.1"] and seen.bits is None
    expected = plain_weights(module.layers[0], module.embedding(ids).detach(), "causal")
    torch.testing.assert_close(seen.maps["layers.0"], torch.tensor(expected))
    rows = look(module, torch.tensor([[3, 14, 15], [9, 26, 5]]))
    assert set(rows.unseen.values()) == {"its input has 2 rows, and a map is of one row"} and not rows.maps
    with pytest.raises(TypeError, match="look calls a module with one tensor: got 'abc', expected a tensor"):
        look(module, "abc")
