"""What the claims about hard-coded, collaborative and regularised heads measure."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.lab.claims import collaborative_width, hard_coded_translation, head_losses, lazyformer_time
from kinformer.lab.claims.support.verdict import Claim
from kinformer.lab.data.text import TextData
from kinformer.members.gpt import gpt
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.reused import Reused


def counted(model: lazyformer_time.LazyModel, tokens: Tensor) -> float:
    """How many blocks compare queries with keys, as if they took a second and nothing else did."""
    mechanisms = [part.mechanism for part in model.modules() if isinstance(part, Attention)]
    return float(sum(not isinstance(mechanism, Reused) for mechanism in mechanisms))


def on_heads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Claim]:
    """These claims, without their trainings."""
    losses = collaborative_width.ConversionLoss([0.5, 0.3, 0.1, 0.0], [4.0, 3.1, 3.0, 3.0], 3.0, 4.0, 3.4)
    monkeypatch.setattr(collaborative_width, "read_text", lambda where: TextData("none", *torch.zeros(3, 1024)))
    monkeypatch.setattr(collaborative_width, "train_gpt", lambda *_: None)
    monkeypatch.setattr(collaborative_width, "conversion_loss", lambda *_: losses)
    monkeypatch.setattr(hard_coded_translation, "bits", lambda form, *_: 2.0 if "cross" in form else 0.1)
    monkeypatch.setattr(head_losses, "read_text", lambda where: TextData("none", *torch.zeros(3, 1)))
    monkeypatch.setattr(head_losses, "penalty", lambda make, weight, *_: 0.9 - 0.6 * weight)
    of = {"collaborative_width": collaborative_width, "hard_coded_translation": hard_coded_translation}
    monkeypatch.setattr(lazyformer_time, "SIZES", {"d": 8, "depth": 4, "heads": 2})
    monkeypatch.setattr(lazyformer_time, "seconds", counted)
    lazy = lazyformer_time.claim((0, 1), lengths=(8, 12), rounds=1)
    return {name: x.claim((0, 1)) for name, x in {**of, "head_losses": head_losses}.items()} | {"lazyformer_time": lazy}


def text() -> TextData:
    tokens = torch.randint(256, (1200,), dtype=torch.uint8)
    return TextData("random", tokens, tokens, tokens)


def test_a_translation_is_its_source_in_reverse_each_word_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = hard_coded_translation.pairs(40, 1)
    words: dict[int, int] = {}
    for read, written in zip(source.tolist(), target.tolist(), strict=True):
        for word, other in zip(read, reversed(written), strict=True):
            assert words.setdefault(word, other) == other
    assert len(words) == len(set(words.values())) == hard_coded_translation.WORDS
    assert not torch.equal(source, hard_coded_translation.pairs(40, 2)[0])
    small = {**hard_coded_translation.SIZES, "d": 8, "depth": 1, "hidden": 8}
    monkeypatch.setattr(hard_coded_translation, "SIZES", small)
    assert 2 < hard_coded_translation.bits("hard-coded self- and cross-attention", 0, 1) < 5


def test_half_of_the_columns_is_compared_with_half_of_each_head_s_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose heads need few features loses little in both cases, so the conversion proves nothing."""
    assert on_heads(monkeypatch)["collaborative_width"].verdict == "holds"
    needless = collaborative_width.ConversionLoss([0.5, 0.3, 0.1, 0.0], [4.0, 3.1, 3.02, 3.0], 3.0, 4.0, 3.03)
    monkeypatch.setattr(collaborative_width, "conversion_loss", lambda *_: needless)
    assert collaborative_width.claim((0, 1)).verdict == "does not hold"


@torch.no_grad()
def test_all_columns_lose_nothing_and_fewer_lose_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaborative_width, "SIZES", {"heads": 2})
    model, rows = gpt(d=8, depth=1, heads=2, length=12).eval(), torch.randint(256, (2, 12))
    for weight in model.body.layers[0].layers[0].projection.parameters():
        weight.mul_(3)
    result = collaborative_width.conversion_loss(model, rows, (2, 4, 8))
    assert result.logits[0] > result.logits[1] > 0.01 and result.logits[2] < collaborative_width.EXACT
    assert result.bits[2] == pytest.approx(result.before, rel=1e-5) and result.bits[0] != result.before
    assert result.even != result.before and result.halved not in (result.even, result.before)
    observed: list[Any] = []
    attention = next(part for part in model.modules() if isinstance(part, Attention))
    attention.register_forward_pre_hook(lambda _, inputs: observed.append(inputs[0]))
    attention.mechanism.register_forward_pre_hook(lambda _, inputs: observed.append(inputs[:2]))
    model.logits(rows)
    x, (queries, keys) = observed
    want = (queries.q @ keys.k.mT * keys.k.shape[-1] ** -0.5).softmax(-1)
    torch.testing.assert_close(collaborative_width.logits(attention.projection, x).softmax(-1), want)


def test_a_loss_that_is_not_felt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two heads of cosine c the mean over all pairs is (1 + (H - 1) c) / H."""
    assert head_losses.cosine((1 + (head_losses.HEADS - 1) * 0.3) / head_losses.HEADS) == pytest.approx(0.3)
    monkeypatch.setattr(head_losses, "SIZES", {**head_losses.SIZES, "d": 8, "depth": 1})
    rows = text()
    for make, key, weight in (
        (head_losses.build_disagreeing_decoder, "output_disagreement", head_losses.UNFELT),
        (head_losses.build_guided_encoder, "guided_attention", 1.0),
    ):
        assert 0 < head_losses.penalty(make, weight, key, 0, 1, rows) < 4


def test_what_lazy_blocks_multiply_is_counted_beside_blocks_that_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that reuse make no queries and keys, and multiply those of the block beneath again."""
    monkeypatch.setattr(lazyformer_time, "SIZES", {"d": 8, "depth": 4, "heads": 2})
    readings, tokens = lazyformer_time.models(12), torch.randint(256, (1, 12))
    count = {name: lazyformer_time.count_flops(model, 12) for name, model in readings.items()}
    saved = 2 * 12 * 2 * 8 * 8
    assert count["m=1"] - count["m=2"] == 2 * saved and count["m=1"] - count["m=4"] == 3 * saved
    block = 24 * 12 * 8 * 8 + 4 * 12 * 12 * 8
    assert count["m=1"] == 4 * block
    for every, fewer in ((1, 0), (2, 2), (4, 3)):
        assert lazyformer_time.formula(every, 12) == pytest.approx(4 * block / (4 * block - fewer * saved))
    assert 0 < lazyformer_time.seconds(readings["m=2"], tokens) < 60
