"""BERT's classifier: scores by hand from the pooled row, padding, another pooling, and BERT's weights beneath it."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.parameter_noise import add_parameter_noise
from tests.members.probes import count, multi_head

pytestmark = pytest.mark.usefixtures("float64")

SMALL: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "length": 20, "vocab": 11}


def encoded(model: kf.Classifier, tokens: list[int]) -> torch.Tensor:
    """BERT's encoder of one row: LN(E + P + first kind), then post-norm blocks of attention and GELU units."""
    d = model.d
    x = model.embedding.weight[tokens] + model.position(torch.arange(len(tokens))[None])[0] + model.kind.weight[0]
    x = F.layer_norm(x, (d,), model.norm.weight, model.norm.bias, 1e-12)
    for block in model.body.layers:
        attention, mlp = block.layers
        first, second = block.norms
        x = F.layer_norm(x + multi_head(attention, x, x), (d,), first.weight, first.bias, 1e-12)
        x = F.layer_norm(x + mlp.down(F.gelu(mlp.up(x))), (d,), second.weight, second.bias, 1e-12)
    return x


def check(model: kf.Classifier, pool: str) -> None:
    """softmax scores W p + b: p = tanh(W' h_[CLS] + b'), [CLS] before the row, or the mean of the row's tokens."""
    add_parameter_noise(model)
    tokens = torch.tensor([[3, 1, 4, 1, 5], [2, 7, -1, -1, -1]])
    scores = model.eval().scores(tokens)
    for row, scored in zip(tokens.tolist(), scores, strict=True):
        real = [token for token in row if token >= 0]
        if pool == "first":
            pooled = model.pooling.dense(encoded(model, [model.vocab, *real])[0]).tanh()
        else:
            pooled = encoded(model, real).mean(0)
        torch.testing.assert_close(scored, model.head.weight @ pooled + model.head.bias)


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_a_row_is_sorted_by_its_first_token_or_its_mean(pool: Any) -> None:
    check(kf.bert_classifier(**SMALL, pool=pool, classes=3), pool)


def test_a_pooler_without_tanh_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kf.CLSPooler, "forward", lambda self, y, real: self.dense(y[:, 0]))
    with pytest.raises(AssertionError):
        check(kf.bert_classifier(**SMALL, pool="first"), "first")


def test_it_has_the_weights_of_bert_but_for_the_head() -> None:
    classifier, bert = (dict(make(**SMALL).named_parameters()) for make in (kf.bert_classifier, kf.bert))
    shared = {name for name, weight in bert.items() if name in classifier and weight.shape == classifier[name].shape}
    assert {name for name in bert if name not in shared} == {
        name for name in bert if name.startswith(("transform", "head"))
    }
    assert classifier.keys() - shared == {"head.weight", "head.bias"}
    first = count(kf.bert_classifier(**SMALL, pool="first"))
    assert first - count(kf.bert_classifier(**SMALL)) == 16 * 16 + 16 + 16  # the pooler's matrix, a position of [CLS]
