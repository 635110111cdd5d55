"""The conversion `heads`: means against a loop, the best shared heads against cases with a known answer, saving."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kinformer as kf
from kinformer.convert.heads import HeadsConversion
from tests.parity.peers import shaken

pytestmark = pytest.mark.usefixtures("float64")
K = 6  # width of a head


def source(member: str = "llama", **keywords: Any) -> Any:
    torch.manual_seed(3)
    usual: dict[str, Any] = {"key_heads": 4} if member == "llama" else {}
    if member == "gpt":
        usual = {"length": 64}
    model = getattr(kf, member)(**{"d": 32, "depth": 2, "heads": 8, "head_dim": K, "vocab": 11, **usual, **keywords})
    return shaken(model).eval()


def attention_of(model: Any) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, kf.Attention)]


def matched(model: Any, key_heads: int, rows: Tensor) -> Any:
    """The conversion with its heads matched on rows of tokens."""
    new = kf.convert(model, "heads", key_heads=key_heads, merge="svd")
    HeadsConversion(key_heads, "svd").fit(model, new, rows, lambda stage, fraction: None)
    return new


@pytest.mark.parametrize("member", ["llama", "gpt", "gpt_neox", "bloom"])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_a_new_head_is_the_mean_of_its_group(member: str, key_heads: int) -> None:
    model = source(member)
    new = kf.convert(model, "gqa", key_heads=key_heads)
    assert new.report.plan.promise.length == 0
    for old, layer in zip(attention_of(model), attention_of(new), strict=True):
        assert layer.sizes.key_heads == layer.sizes.value_heads == key_heads
        for name in ("q", "k", "v"):
            heads = 8 if name == "q" else key_heads
            for tensor, before in zip(layer.projection.matrix(name), old.projection.matrix(name), strict=True):
                if before is None:
                    assert tensor is None
                    continue
                size = len(before) // K // heads  # old heads of a new one
                for head in range(heads):
                    rows = [before[(head * size + n) * K : (head * size + n + 1) * K] for n in range(size)]
                    want = sum(rows[1:], rows[0]) / size
                    torch.testing.assert_close(tensor[head * K : (head + 1) * K], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("merge", ["mean", "svd"])
def test_as_many_heads_as_before_are_the_source(merge: str) -> None:
    model, tokens = source(), torch.randint(0, 11, (2, 20))
    new = kf.convert(model, "heads", key_heads=4, merge=merge)
    assert new.report.plan.promise.length == torch.inf
    HeadsConversion(4, "svd").fit(model, new, tokens, lambda stage, fraction: None)
    assert torch.equal(new.logits(tokens).y, model.logits(tokens).y)


def spread(model: Any) -> None:
    """Make all heads of keys and values of a group of two linear images of the first, such that one head is enough.

    Rotating pairs may be turned and scaled alone, because they must keep their angles; the other numbers may mix.
    """
    for layer in attention_of(model):
        projection = layer.projection
        (key, key_bias), (value, value_bias) = projection.matrix("k"), projection.matrix("v")
        rotation = projection.rotation
        turned = 0 if rotation is None else rotation.turned
        for first in range(0, len(key) // K, 2):
            mix, turn = torch.randn(K, K), torch.randn(K, K)
            turn[:turned], turn[:, :turned] = 0, 0
            for n in range(turned // 2):
                a, b = (n, n + turned // 2) if rotation.pairs == "half" else (2 * n, 2 * n + 1)
                cos, sin = torch.randn(2)
                turn[a, a], turn[a, b], turn[b, a], turn[b, b] = cos, -sin, sin, cos
            for tensor, image in ((key, turn), (key_bias, turn), (value, mix), (value_bias, mix)):
                if tensor is not None:
                    tensor.data[(first + 1) * K : (first + 2) * K] = image @ tensor.data[first * K : (first + 1) * K]


@pytest.mark.parametrize(
    ("member", "keywords"),
    [
        ("llama", {}),
        ("llama", {"bias": "qkv", "pairs": "interleaved", "turned": 4}),
        ("llama", {"bias": "all", "turned": 2}),
        ("gpt", {}),
        ("gpt_neox", {}),
        ("bloom", {}),
    ],
)
def test_heads_that_are_images_of_one_head_become_it_without_an_error(member: str, keywords: dict[str, Any]) -> None:
    model = source(member, **keywords)
    spread(model)
    rows = torch.randint(0, 11, (8, 24))
    count = attention_of(model)[0].sizes.key_heads // 2
    new, mean = matched(model, count, rows), kf.convert(model, "heads", key_heads=count)
    tokens = torch.randint(0, 11, (2, 30))  # other ones than those of the match
    want = model.logits(tokens).y
    torch.testing.assert_close(new.logits(tokens).y, want, rtol=0, atol=1e-6)
    assert (mean.logits(tokens).y - want).abs().max() > 1e-2


def test_no_other_shared_head_has_a_smaller_error() -> None:
    """Without rotation and biases, the errors are the singular values that are left out (Eckart and Young)."""
    model = source("gpt", heads=8, depth=1)
    for layer in attention_of(model):
        layer.projection.qkv.bias.data.zero_()
    rows = torch.randint(0, 11, (6, 20))
    new = matched(model, 1, rows)
    seen: list[Tensor] = []
    hook = attention_of(model)[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    model.logits(rows)
    hook.remove()
    x = seen[0].detach().flatten(0, 1)
    (old,), (layer,) = attention_of(model), attention_of(new)
    heads = [slice(h * K, (h + 1) * K) for h in range(8)]
    q, k, v = (old.projection.matrix(name)[0].detach() for name in ("q", "k", "v"))
    out = old.aggregation.linear.weight.detach()
    values = torch.cat([out[:, at] @ v[at] @ x.T for at in heads])
    scores = torch.cat([x @ q[at].T @ k[at] @ x.T for at in heads])
    new_q, new_k, new_v = (layer.projection.matrix(name)[0].detach() for name in ("q", "k", "v"))
    new_out = layer.aggregation.linear.weight.detach()
    for want, got in (
        (values, torch.cat([new_out[:, at] @ new_v @ x.T for at in heads])),
        (scores, torch.cat([x @ new_q[at].T @ new_k @ x.T for at in heads])),
    ):
        least = torch.linalg.svdvals(want)[K:].square().sum()
        assert least > 0.01 * want.square().sum()
        torch.testing.assert_close((want - got).square().sum(), least, rtol=1e-6, atol=0)


@pytest.mark.parametrize("part", ["k", "v", "q"])
@pytest.mark.parametrize("member", ["llama", "gpt"])
def test_a_group_of_zeros_stays_zero_and_the_others_are_merged(member: str, part: str) -> None:
    model = source(member)
    spread(model)  # one head is enough for each group of two
    for layer in attention_of(model):
        heads = layer.sizes.heads if part == "q" else layer.sizes.key_heads
        for tensor in layer.projection.matrix(part):
            if tensor is not None:
                tensor.data[: len(tensor) // (heads // 2)] = 0  # of the first two heads
    rows, tokens = torch.randint(0, 11, (8, 24)), torch.randint(0, 11, (2, 30))
    new = matched(model, attention_of(model)[0].sizes.key_heads // 2, rows)
    assert all(weight.isfinite().all() for weight in new.parameters())
    torch.testing.assert_close(new.logits(tokens).y, model.logits(tokens).y, rtol=0, atol=1e-6)


def test_rows_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows, sizes, done = source(), torch.randint(0, 11, (5, 24)), list[int](), list[float]()
    hidden = model.hidden
    monkeypatch.setattr(model, "hidden", lambda tokens: sizes.append(len(tokens)) or hidden(tokens))
    new = kf.convert(source(), "heads", key_heads=2, merge="svd")
    HeadsConversion(2, "svd").fit(model, new, rows, lambda stage, fraction: done.append(fraction))
    assert sizes == [1] * 5 and done[4] == done[-1] == 1
    # the moment of all rows is the mean over the rows, so their order and repetitions of all of them count nothing
    again = matched(source(), 2, torch.cat([rows.flip(0), rows]))
    tokens = torch.randint(0, 11, (2, 30))
    torch.testing.assert_close(again.logits(tokens).y, new.logits(tokens).y, rtol=0, atol=1e-6)


@pytest.mark.parametrize("merge", ["mean", "svd"])
@pytest.mark.parametrize("member", ["llama", "gpt"])
def test_it_is_saved_and_loaded(member: str, merge: str, tmp_path: Path) -> None:
    tokens = torch.randint(0, 11, (2, 20))
    model = source(member)
    new = matched(model, 2, tokens) if merge == "svd" else kf.convert(model, "heads", key_heads=2)
    kf.save(new, tmp_path)
    back = kf.load(tmp_path)
    assert torch.equal(back.logits(tokens).y, new.logits(tokens).y) and back.member == new.member


def test_models_that_it_does_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="heads of keys"):
        kf.convert(source(), "heads", key_heads=3)
    with pytest.raises(ValueError, match="by svd: its queries and keys have RMSNorm, expected linear maps. Give merge"):
        kf.convert(source(query_norm=True), "heads", key_heads=2, merge="svd")
    with pytest.raises(TypeError, match="'merge' of 'HeadsConversion' must be 'mean' . 'svd', got 'median'"):
        kf.convert(source(), "heads", merge="median")
    with pytest.raises(ValueError, match="key_heads"):
        kf.convert(source(), "heads", key_heads=0)
