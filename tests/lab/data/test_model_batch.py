"""Batches of other libraries: padding has no loss and is not read, and labels mean what they mean there."""

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.model import Model
from kinformer.lab.data.support.model_batch import model_batch
from kinformer.members.bert import bert
from kinformer.members.bert_classifier import bert_classifier
from kinformer.members.gpt import gpt
from kinformer.members.transformer import transformer

SIZE = {"d": 16, "depth": 2, "heads": 2, "vocab": 11}
ROWS = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10, 1], [3, 3, 3, 3]]


def padded(rows: list[list[int]], *, left: bool = False, filler: int = 0) -> dict[str, Tensor]:
    """What a tokenizer of transformers gives: input_ids filled up with a token, and attention_mask."""
    width = max(map(len, rows))
    sides = [([filler] * (width - len(row)), row, [0] * (width - len(row)), [1] * len(row)) for row in rows]
    ids = [fill + row if left else row + fill for fill, row, _, _ in sides]
    masks = [zeros + ones if left else ones + zeros for _, _, zeros, ones in sides]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(masks)}


def mean_of_rows(model: Model, batches: list[Any]) -> Tensor:
    """The loss of rows that are read one by one, each without padding."""
    losses = [model(batch) for batch in batches]
    return sum(loss.total * loss.count for loss in losses) / sum(int(loss.count) for loss in losses)


@pytest.fixture
def decoder(float64: None) -> Model:
    torch.manual_seed(0)
    return gpt(**SIZE)


# Padding -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("filler", [0, 7])
def test_padding_of_a_decoder_is_neither_read_nor_learned(decoder: Model, left: bool, filler: int) -> None:
    batch = model_batch(padded(ROWS, left=left, filler=filler), "text")
    expected = mean_of_rows(decoder, [torch.tensor([row]) for row in ROWS])
    (wanted,) = torch.autograd.grad(expected, decoder.embedding.weight)
    loss = decoder(batch).total
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, decoder.embedding.weight)[0], wanted)


def test_padding_that_were_read_would_be_noticed(decoder: Model) -> None:
    """The fault that the test above is for: the filler taken for tokens."""
    expected = mean_of_rows(decoder, [torch.tensor([row]) for row in ROWS])
    assert not torch.isclose(decoder(padded(ROWS)["input_ids"]).total, expected, rtol=1e-3)


def test_padding_of_a_classifier_is_not_read(float64: None) -> None:
    model = bert_classifier(**SIZE, classes=3, dropout=0.0)
    labels = torch.tensor([0, 2, 1, 1])
    batch = model_batch(padded(ROWS) | {"labels": labels}, "labelled")
    alone = [(torch.tensor([row]), label[None]) for row, label in zip(ROWS, labels, strict=True)]
    torch.testing.assert_close(model(batch).total, mean_of_rows(model, alone))


def test_padding_of_pairs_is_neither_read_nor_learned(float64: None) -> None:
    model = transformer(**SIZE, hidden=16, dropout=0.0)
    targets = [[5, 6], [7], [1, 2, 3, 4], [9]]
    labels = padded(targets, filler=-100)["input_ids"]
    batch = model_batch(padded(ROWS) | {"labels": labels}, "pairs")
    alone = [(torch.tensor([row]), torch.tensor([target])) for row, target in zip(ROWS, targets, strict=True)]
    torch.testing.assert_close(model(batch).total, mean_of_rows(model, alone))


# Labels --------------------------------------------------------------------------------------------------------------


def test_labels_that_are_the_tokens_change_nothing() -> None:
    batch = padded(ROWS)
    tokens = model_batch(batch, "text")
    labels = torch.where(batch["attention_mask"] == 1, batch["input_ids"], -100)
    assert isinstance(tokens, Tensor) and torch.equal(model_batch(batch | {"labels": labels}, "text"), tokens)


def test_a_label_of_minus_100_has_no_loss(decoder: Model) -> None:
    rows = padded([[1, 2, 3, 4, 5, 6], [7, 8, 9]])
    labels = torch.where(rows["attention_mask"] == 1, rows["input_ids"], -100)
    labels[:, :3] = -100
    loss = decoder(model_batch(rows | {"labels": labels}, "text"))
    logp = decoder.logits(torch.tensor([[1, 2, 3, 4, 5, 6]])).y.log_softmax(-1)[0]
    expected = -torch.stack([logp[n, token] for n, token in ((2, 4), (3, 5), (4, 6))]).mean()
    assert int(loss.count) == 3
    torch.testing.assert_close(loss.total, expected)


def test_a_masked_model_hides_the_tokens_that_have_a_label(float64: None) -> None:
    """In input_ids a collator has already replaced them; the labels say what they were."""
    model, rows = bert(**SIZE), padded([[1, 2, 3, 4], [5, 6]])
    labels = torch.full((2, 4), -100)
    labels[0, 1], labels[1, 0] = 2, 5
    rows["input_ids"][0, 1], rows["input_ids"][1, 0] = 0, 9
    batch = model_batch(rows | {"labels": labels}, "masked")
    expected = TokenBatch(torch.tensor([[1, 2, 3, 4], [5, 6, -1, -1]]), labels >= 0)
    assert all(map(torch.equal, batch[:2], expected[:2]))
    torch.testing.assert_close(model(batch).total, model(expected).total)


def test_tokens_and_next_tokens_are_rows_of_one_token_more() -> None:
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    following = torch.tensor([[2, 3, 7], [5, 6, 8]])
    assert model_batch((tokens, following), "text").tolist() == [[1, 2, 3, 7], [4, 5, 6, 8]]
    following[0, 0] = -1
    batch = model_batch([tokens, following], "text")
    assert batch.tokens.tolist() == [[1, 2, 3, 7], [4, 5, 6, 8]]
    assert batch.scored[:, 1:].tolist() == [[False, True, True], [True, True, True]]


@pytest.mark.parametrize("reads", ["text", "masked", "pairs", "labelled", "images"])
def test_a_batch_of_the_model_stays_as_it_is(reads: str) -> None:
    tokens = torch.ones(2, 3, dtype=torch.long)
    for batch in (tokens, TokenBatch(tokens, tokens > 0)):
        assert model_batch(batch, reads) is batch
    assert model_batch([tokens], reads) is tokens


def test_columns_that_say_nothing_new_are_left_out() -> None:
    ids = torch.tensor([[1, 2], [3, 4]])
    columns = {
        "token_type_ids": torch.zeros_like(ids),
        "position_ids": torch.arange(2),
        "special_tokens_mask": ids,
        "text": ["a", "b"],
    }
    assert torch.equal(model_batch(UserDict({"input_ids": ids, **columns}), "text"), ids)
    assert model_batch({"input_ids": [[1, 2], [3, 4]]}, "text").tolist() == ids.tolist()


def test_the_class_of_a_row_is_no_label_of_its_tokens() -> None:
    ids, label = torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1])
    for reads in ("text", "masked"):
        assert torch.equal(model_batch({"input_ids": ids, "label": label}, reads), ids)
    assert torch.equal(model_batch({"input_ids": ids, "labels": None, "label": label}, "labelled")[1], label)


def test_a_class_that_a_classifier_does_not_have_is_refused() -> None:
    model = bert_classifier(**SIZE, classes=2)
    with pytest.raises(IndexError, match="class 2 is out of range, expected 0 to 1; make classes larger"):
        model(model_batch(padded(ROWS) | {"labels": torch.tensor([0, 2, 1, 1])}, "labelled"))


# Refusals ------------------------------------------------------------------------------------------------------------

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
WRONG = [
    ({"ids": IDS}, "text", "the batch has no input_ids: got the columns ids; name the tokens input_ids"),
    ({"input_ids": IDS}, "images", "this model reads images and no tokens"),
    ({"input_ids": IDS}, "pairs", "the batch has no labels: got the columns input_ids, but a model of pairs needs"),
    ({"input_ids": IDS.float()}, "text", r"input_ids must be integers \[B, T\], got torch.float32 of shape \[2, 3\]"),
    ({"input_ids": list(IDS.T)}, "text", r"input_ids is a list of tensors, .* dataset.set_format\('torch'\)"),
    ({"input_ids": IDS, "attention_mask": IDS[:, :2]}, "text", r"attention_mask has shape \[2, 2\], but input_ids"),
    ({"input_ids": IDS, "token_type_ids": IDS}, "text", "token_type_ids, which this model does not read"),
    ({"input_ids": IDS, "position_ids": IDS}, "text", "position_ids, which this model does not read"),
    ({"input_ids": IDS, "labels": IDS[:, [1, 2, 2]]}, "text", "got the next tokens. Pass labels=input_ids"),
    ({"input_ids": IDS, "labels": 2 * IDS}, "text", "got other tokens. A collator needs mlm=False"),
    (
        {"input_ids": IDS, "labels": IDS},
        "labelled",
        "the labels of a classifier must be one whole number for each of 2",
    ),
    (
        {"input_ids": IDS, "labels": torch.tensor([0, -1])},
        "labelled",
        "the labels hold -1, expected 0 or more, or -100",
    ),
    ({"input_ids": IDS, "labels": IDS - 2}, "masked", "the labels hold -1, expected 0 or more, or -100 for no loss"),
    (
        {"input_ids": [[1, 2], [3]]},
        "text",
        r"input_ids must be numbers, in rows of one length: got \[\[1, 2\], \[3\]\]",
    ),
    ({"input_ids": IDS, "position_ids": "ab"}, "text", "position_ids must be numbers, in rows of one length: got 'ab'"),
    (b"a text", "text", r"a batch must hold tensors, such as token ids \[B, T\]: got b'a text'"),
    ([1, "a"], "masked", r"a batch must hold tensors, such as token ids \[B, T\]: got \[1, 'a'\]"),
    ((IDS, IDS), "text", "a second tensor that is not the first one shifted by one"),
    ((IDS, IDS[:, :2]), "text", "must be tokens and next tokens .* of equal shape"),
]


@pytest.mark.parametrize(("batch", "reads", "message"), WRONG)
def test_a_batch_that_would_change_its_meaning_is_refused_in_a_line(batch: Any, reads: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        model_batch(batch, reads)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250
