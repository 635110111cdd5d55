"""How many layers, or steps, a token takes in the mean: over the tokens that are judged or written, and no others."""

from typing import Any

import pytest
import torch

from kinformer.core.discover import find_member
from kinformer.core.eval_mode import evaluating
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.text_continuation import WritingSettings, write_all
from kinformer.lab.train.evaluate import evaluate

SIZES = {"d": 16, "depth": 3, "heads": 2}
DOCUMENTS = [[7, 3, 1, 1, 2], [5, 5], [1, 2, 3, 4, 5, 6, 0, 2, 4, 9], [6], [2, 2, 2]]


def build(name: str, **keywords: Any) -> Any:
    torch.manual_seed(0)
    sizes = {key: value for key, value in SIZES.items() if name != "act_rnn" or key == "d"}
    model = find_member(name)(**sizes, **keywords)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.5)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "keywords", "measure", "aux"),
    [
        ("calm", {"threshold": 0.4, "vocab": 10, "length": 16}, "layers", "exit"),
        ("depth_adaptive", {"classifier": "geometric", "vocab": 10, "length": 16}, "layers", "exit"),
        ("universal_transformer", {"vocab": 10}, "steps", "steps"),
        ("act_rnn", {"vocab": 10}, "steps", "steps"),
    ],
)
def test_a_measurement_counts_each_predicted_token_of_each_document(
    name: str, keywords: dict[str, Any], measure: str, aux: str, float64: None
) -> None:
    """Documents of unequal lengths are padded in a batch; the last token of each predicts nothing."""
    model = build(name, **keywords)
    begins = torch.tensor([sum(map(len, DOCUMENTS[:n])) for n in range(len(DOCUMENTS))])
    part = SplitTokens(torch.tensor(sum(DOCUMENTS, [])), begins)
    measured = evaluate(model, part, 12)
    layers: list[float] = []
    with evaluating(model):
        for document in DOCUMENTS:
            if len(document) > 1:
                layers += model.logits(torch.tensor([document[:-1]])).aux[aux][0].tolist()
    assert measured.count == len(layers) == 16 and len(set(layers)) > 1
    assert measured.extras[measure] == pytest.approx(sum(layers) / len(layers))


def test_a_text_has_a_number_of_layers_for_each_token_that_was_written(float64: None) -> None:
    """In a batch of unequal prompts, of which one ends early, as each has alone."""
    model = build("calm", threshold=0.05, length=64)
    prompts, settings = [b"a", b"bcdefgh", b"ij"], WritingSettings(temperature=0.0)
    (free, *_), _ = write_all(model, prompts, 8, settings)
    settings = WritingSettings(temperature=0.0, stop=free.text[2:4])
    together, _ = write_all(model, prompts, 8, settings)
    assert len(together[0].tokens) < 8
    for prompt, text in zip(prompts, together, strict=True):
        ((alone,), _) = write_all(model, [prompt], 8, settings)
        assert text.layers == alone.layers and len(text.layers) == len(text.tokens)
        assert all(1 <= count <= 3 for count in text.layers)
    assert len({count for text in together for count in text.layers}) > 1
