"""Rows with named columns: their labels and tokens are checked, and nothing is replaced or cut in silence."""

from typing import Any

import numpy
import pytest

from kinformer.core.model import Model
from kinformer.lab.data.as_data import as_data
from kinformer.members.bert_classifier import bert_classifier
from kinformer.members.gpt import gpt
from kinformer.members.transformer import transformer

SIZE = {"d": 8, "depth": 1, "heads": 2}
TEXTS = [f"this is text {n}, one of many" for n in range(40)]
LABELS = [n % 2 for n in range(40)]
TOKENS = [list(text.encode()) for text in TEXTS]


def decoder() -> Model:
    return gpt(**SIZE)


def classifier() -> Model:
    return bert_classifier(**SIZE, classes=2)


def table(labels: list[int], names: tuple[str, ...] = ("bad", "good"), begin: int = 0) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))})
    texts = TEXTS[begin : begin + len(labels)]
    return datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features)


# Labels --------------------------------------------------------------------------------------------------------------


def test_rows_of_a_test_split_without_labels_are_left_out() -> None:
    datasets = pytest.importorskip("datasets")
    splits = {"train": table(LABELS[:20]), "validation": table([1, 0], begin=20), "test": table([-1, -1, 0], begin=30)}
    with pytest.warns(UserWarning, match="2 rows have the label -1, which stands for an unknown class"):
        data = as_data(classifier(), datasets.DatasetDict(splits))
    assert [(bytes(text).decode(), data.labels[label]) for text, label in data.test] == [(TEXTS[32], "bad")]
    tokens = [{"input_ids": row, "label": label} for row, label in zip(TOKENS, [*LABELS[:-2], -1, -1], strict=True)]
    with pytest.warns(UserWarning, match="2 rows have the label -1"):
        batches = as_data(classifier(), tokens, length=64, batch=2)
    assert sum(len(labels) for _, labels in batches.validation_batches) == 2, "a twentieth of 38"


def test_numbers_of_validation_rows_are_the_classes_of_the_training_rows() -> None:
    rows = [{"text": "one more", "label": 1}, {"text": "and another", "label": 0}]
    data = as_data(classifier(), table(LABELS), rows)
    assert [data.labels[label] for _, label in data.valid] == ["good", "bad"]
    turned = as_data(classifier(), table(LABELS[:30]), table([0, 1], ("good", "bad"), 30))
    assert [turned.labels[label] for _, label in turned.valid] == ["good", "bad"], "names decide, not numbers"
    with pytest.raises(ValueError, match="row 1 of list of dicts has the label 2, expected 0 to 1, the number of a"):
        as_data(classifier(), table(LABELS), [{"text": "one", "label": 2}])


@pytest.mark.parametrize("kind", [int, float, numpy.int64, numpy.float32, numpy.bool_])
def test_a_label_is_any_number(kind: type) -> None:
    data = as_data(classifier(), [{"text": text, "label": kind(n)} for text, n in zip(TEXTS, LABELS, strict=True)])
    assert data.labels == (str(kind(0)), str(kind(1)))


def test_an_integer_of_numpy_is_the_number_of_a_class() -> None:
    data = as_data(classifier(), table(LABELS), [{"text": "one more", "label": numpy.int64(1)}])
    assert [data.labels[label] for _, label in data.valid] == ["good"]


def test_a_class_label_of_pairs_is_not_read() -> None:
    rows = table(LABELS).rename_columns({"text": "source"}).add_column("target", TEXTS[::-1])
    assert len(as_data(transformer(**SIZE, hidden=8), rows).train) > 30


def test_the_class_of_tokenised_rows_means_nothing_to_a_language_model() -> None:
    rows = [{"input_ids": row, "label": label} for row, label in zip(TOKENS, LABELS, strict=True)]
    expected = as_data(decoder(), [{"input_ids": row} for row in TOKENS]).fingerprint
    assert as_data(decoder(), rows).fingerprint == expected
    assert as_data(decoder(), [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]).fingerprint == (
        expected
    )


# Tokens --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "row", "message"),
    [
        (decoder, {"input_ids": numpy.array([1.5, 2.5])}, "input_ids of row 2 of list of dicts: got .*float64"),
        (decoder, {"input_ids": [[1, 2], [3]]}, "input_ids of row 2 .*, expected a list of integers"),
        (decoder, {"input_ids": [1, 2, 3], "attention_mask": [1, 1]}, "row 2 .* have different lengths"),
        (decoder, {"input_ids": [1, 2, 3], "labels": [1, 2]}, "row 2 .* have different lengths"),
        (decoder, {"input_ids": [1, 2, 3], "labels": 1}, "labels of row 2 .*: got 1, expected a list of integers"),
        (classifier, {"input_ids": [1, 2], "label": 0.7}, "label of row 2 .*: got 0.7, expected the number of a class"),
        (classifier, {"input_ids": [1, 2], "label": "good"}, "label of row 2 .*: got 'good', expected the number"),
        (classifier, {"input_ids": [1, 2], "label": None}, "label of row 2 .*: got None, expected the number"),
    ],
)
def test_a_row_of_tokens_without_a_clear_meaning_is_refused_with_its_number(
    model: Any, row: dict[str, Any], message: str
) -> None:
    first = {"input_ids": [1, 2], "attention_mask": [1, 1], "labels": [1, 2], "label": 0}
    with pytest.raises(ValueError, match=message) as caught:
        as_data(model(), [{name: first[name] for name in row}, row])
    assert "\n" not in str(caught.value)


def test_rows_without_tokens_are_left_out() -> None:
    rows = [{"input_ids": row, "labels": [-100] * 3 + row[3:]} for row in TOKENS[:8]]
    empty = {"input_ids": [7, 7], "attention_mask": [0, 0], "labels": [7, 7]}
    rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]
    batches = as_data(decoder(), rows, [empty, rows[0]], length=64)
    assert [batch.tokens.shape[0] for batch in batches.validation_batches] == [1]
    with pytest.raises(ValueError, match="no row of valid has tokens"):
        as_data(decoder(), rows, [empty], length=64)


def test_a_text_without_a_character_is_refused_as_in_a_file() -> None:
    with pytest.raises(ValueError, match="row 2 of list of dicts has an empty text; give both sides at least one"):
        as_data(classifier(), [{"text": "a", "label": "x"}, {"text": "", "label": "y"}])


# Validation data -----------------------------------------------------------------------------------------------------


def test_validation_data_has_columns_of_its_own() -> None:
    text = as_data(decoder(), TEXTS, [{"body": "another text"}])
    assert bytes(text.valid.tolist()).startswith(b"another text")
    with pytest.raises(ValueError, match="the validation data has no column input_ids: got text"):
        as_data(decoder(), [{"input_ids": row} for row in TOKENS], TEXTS)


@pytest.mark.parametrize("column", ["text", "input_ids"])
def test_of_validation_data_with_splits_only_the_one_for_validation_is_measured(column: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"text": TEXTS, "input_ids": TOKENS}[column]
    parts = {
        name: datasets.Dataset.from_dict({column: rows[slice(*ends)]})
        for name, ends in {"train": (0, 9), "validation": (9, 12), "test": (12, 20)}.items()
    }
    data = as_data(decoder(), parts["train"], datasets.DatasetDict(parts))
    assert len(data.begins["valid"]) == 3
    with pytest.raises(ValueError, match="valid has several splits and none for validation. Pass one of them"):
        as_data(decoder(), parts["train"], datasets.DatasetDict(train=parts["train"], test=parts["test"]))
