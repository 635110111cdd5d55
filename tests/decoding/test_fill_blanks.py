"""Blanks: what is hidden, with what probability it is what, and in which order it is filled in."""

import pytest
import torch

from kinformer.decoding.fill_blanks import ROUNDS, blank_probabilities, encode_blanks, fill_blanks
from kinformer.members.bert import bert
from kinformer.models.mlm import MLM


@pytest.fixture
def model(float64: None) -> MLM:
    torch.manual_seed(0)
    mlm = bert(d=16, depth=2, heads=2, length=32, vocab=11)
    with torch.no_grad():
        for weight in mlm.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.5)
    return mlm


def test_an_underscore_is_a_blank_and_a_backslash_takes_that_from_it() -> None:
    mask = 999

    def spelled(text: bytes) -> list[int | str]:
        return ["?" if token == mask else chr(token) for token in encode_blanks(text, list, mask).tolist()]

    assert spelled(b"the wh_le") == [*"the wh", "?", *"le"]
    assert spelled(b"__") == ["?", "?"]
    assert spelled(rb"a\_b_") == [*"a_b", "?"]
    assert spelled(rb"\\_\x") == ["\\", "?", "\\", "x"]
    assert spelled(b"_\\") == ["?", "\\"]
    assert spelled(b"") == []


def test_chances_are_those_of_the_hidden_places(model: MLM) -> None:
    tokens = torch.tensor([1, model.mask, 3, 4, model.mask, 0])
    expected = model.eval().logits(tokens[None]).y[0, [1, 4]].softmax(-1)
    torch.testing.assert_close(blank_probabilities(model.train(), tokens), expected)
    assert model.training and blank_probabilities(model, tokens).shape == (2, 11)


def test_the_surest_is_filled_in_first_and_known_to_the_others(model: MLM) -> None:
    tokens = torch.tensor([1, model.mask, 3, model.mask, model.mask, 0, 7])
    expected = tokens.tolist()
    for _ in range(3):
        open_places = [place for place, token in enumerate(expected) if token == model.mask]
        y = model.eval().logits(torch.tensor([expected])).y[0].softmax(-1)
        place = max(open_places, key=lambda place: float(y[place].max().detach()))
        expected[place] = int(y[place].argmax())
    assert fill_blanks(model, tokens).tolist() == expected
    assert tokens.tolist().count(model.mask) == 3, "what was given stays"


def test_many_blanks_are_filled_in_few_rounds(model: MLM, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = bert(d=16, depth=1, heads=2, length=512, vocab=11), []
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda *arguments: calls.append(1) or logits(*arguments))
    tokens = fill_blanks(model, torch.full((150,), model.mask))
    assert (tokens < 11).all() and 150 / 3 <= len(calls) <= ROUNDS


def test_beyond_learned_positions_it_slides(model: MLM) -> None:
    tokens = torch.arange(50) % 11
    tokens[40] = model.mask
    with pytest.warns(UserWarning, match="50 tokens are more than the 32 positions"):
        probabilities = blank_probabilities(model, tokens)
    # the table of 32 slides by half: position 40 is read in the window that begins at 16
    torch.testing.assert_close(probabilities, model.eval().logits(tokens[None, 16:48]).y[0, [24]].softmax(-1))
