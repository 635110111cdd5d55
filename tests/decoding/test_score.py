"""score: log-probabilities of tokens, alone and in batches, in pieces and in windows."""

import math
from inspect import unwrap

import pytest
import torch

import kinformer as kf
from kinformer.decoding import score as module

TEXTS = ["a cat", "the cat sat on the mat", "x", "dog"]


def by_hand(model: kf.Model, text: str) -> torch.Tensor:
    tokens = torch.tensor([list(text.encode())])
    return model.logits(tokens[:, :-1]).y.log_softmax(-1)[0].gather(-1, tokens[0, 1:, None])[:, 0].detach()


@pytest.fixture
def model() -> kf.Model:
    torch.manual_seed(0)
    return kf.gpt(d=16, depth=2, heads=2, length=64).eval()


@pytest.mark.parametrize("logits", [module.LOGITS, 256 * 8, 1])
def test_batches_and_pieces_change_nothing(model: kf.Model, logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGITS", logits)
    done: list[int] = []
    every = kf.score(model, TEXTS, on_progress=done.append)
    assert done[-1] == len(TEXTS) and sorted(done) == done
    for text, scores in zip(TEXTS, every, strict=True):
        expected = by_hand(model, text)
        assert scores.tokens.tolist() == list(text.encode()) and math.isnan(scores.log_probabilities[0])
        torch.testing.assert_close(scores.log_probabilities[1:], expected, rtol=0, atol=1e-5)
        assert scores.total == pytest.approx(expected.sum().item(), abs=1e-4)


def test_the_greedy_text_is_the_likeliest(model: kf.Model) -> None:
    ids = kf.generate(model, list(b"a cat"), 9, temperature=0)[0].tolist()
    (scores,) = kf.score(model, [ids])
    assert scores.is_greedy[5:].all() and not scores.is_greedy[0]
    ids[9] = (ids[9] + 1) % 256
    (scores,) = kf.score(model, [ids])
    assert scores.is_greedy[5:9].all() and not scores.is_greedy[9]


def test_a_text_beyond_the_learned_positions_is_read_in_windows() -> None:
    torch.manual_seed(0)
    model = kf.gpt(d=16, depth=1, heads=2, length=8, position="learned").eval()
    text = "the cat sat"
    with pytest.warns(UserWarning, match="more than the 8 positions"):
        (scores,) = kf.score(model, text)
    torch.testing.assert_close(scores.log_probabilities[1:9], by_hand(model, text[:9]), rtol=0, atol=1e-5)
    # the second window begins at the fifth token and predicts the tokens after its first half
    torch.testing.assert_close(scores.log_probabilities[9:], by_hand(model, text[4:])[4:], rtol=0, atol=1e-5)


def test_other_models_are_refused_in_a_line() -> None:
    for other, got in ((kf.bert(d=16, depth=1, heads=2), "bert, a masked language model"), (3, "3")):
        with pytest.raises(ValueError, match=f"next token of a text: got {got}. Use one such as gpt"):
            kf.score(other, "a")


def test_ids_that_are_no_tokens_are_refused(model: kf.Model) -> None:
    for wrong in (-1, 256):
        with pytest.raises(ValueError, match=f"a text has the token id {wrong}: expected 0 to 255"):
            kf.score(model, [[5, wrong, 6]])
    for texts, got in (
        ([1, 2, 3], ".1, 2, 3."),
        (5, "5"),
        ([[1.5, 2]], ".*1.5, 2"),
        ([[True, False]], ".*True, False"),
        ({"input_ids": [[1]]}, ".'input_ids'"),
        ([{5: 6}], ".*5: 6"),
        ([[[1]]], r"\[\[\[1"),
        ([None], ".None."),
        ([torch.tensor([0.5, 1.0])], ".tensor"),
    ):
        with pytest.raises(TypeError, match=f"wrong texts: got {got}.*, expected texts or lists of token ids"):
            unwrap(kf.score)(model, texts)


def test_an_iterator_of_texts_and_tensors_of_ids_are_scored(model: kf.Model) -> None:
    (expected,) = kf.score(model, "a cat")
    (of_iterator,) = kf.score(model, iter(["a cat"]))
    (of_ids,) = kf.score(model, [torch.tensor(list(b"a cat"))])
    for scores in (of_iterator, of_ids):
        assert torch.equal(scores.log_probabilities[1:], expected.log_probabilities[1:])
