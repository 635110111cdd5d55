"""as_data: what users of other libraries have as data is trained on, or refused in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from kinformer.core.batch import TokenBatch
from kinformer.core.model import Model
from kinformer.lab.data.as_data import as_data
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.labelled import LabelledData
from kinformer.lab.data.pairs import PairData
from kinformer.lab.data.text import TextData
from kinformer.lab.data.token_ids import TokenIdData
from kinformer.lab.train.fit import fit
from kinformer.members.bert import bert
from kinformer.members.bert_classifier import bert_classifier
from kinformer.members.gpt import gpt
from kinformer.members.image_transformer import image_transformer
from kinformer.members.transformer import transformer

SIZE = {"d": 8, "depth": 1, "heads": 2}
TEXTS = [f"this is text {n}, one of many" for n in range(150)]
TOKENS = [list(text.encode()) for text in TEXTS]
LABELS = [n % 2 for n in range(150)]


def decoder(**keywords: Any) -> Model:
    return gpt(**SIZE, **keywords)


def pairs_model() -> Model:
    return transformer(**SIZE, hidden=8)


def classifier() -> Model:
    return bert_classifier(**SIZE, classes=2)


def hub() -> Any:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets


# Paths ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [str, Path])
def test_a_path_is_read_in_the_form_that_the_model_reads(form: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("a text of some length. " * 40)
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} and one\t{n + 1}\n" for n in range(60)))
    (tmp_path / "labels.tsv").write_text("".join(f"{'ab'[n % 2]}\ttext {n}\n" for n in range(60)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/one.txt").write_text("another text, which is as long. " * 40)
    text = as_data(decoder(), form(tmp_path / "novel.txt"))
    assert isinstance(text, TextData) and text.name == f"text={tmp_path}/novel.txt"
    assert bytes(text.train.tolist()).startswith(b"a text of")
    folder = as_data(bert(**SIZE), form(tmp_path / "folder"), form(tmp_path / "novel.txt"))
    assert bytes(folder.valid.tolist()).startswith(b"a text of") and not len(folder.test)
    assert isinstance(as_data(pairs_model(), form(tmp_path / "pairs.tsv")), PairData)
    assert isinstance(as_data(classifier(), form(tmp_path / "labels.tsv")), LabelledData)


def test_a_specification_is_read_as_on_a_command_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text of some length. " * 40)
    assert as_data(decoder(), f"text={tmp_path}/text").name == f"text={tmp_path}/text"
    assert as_data(decoder(), "task=copy,length=4").name == "task=copy,length=4"


@pytest.mark.parametrize("text", ["a word " * 1000, "a line\n" * 10])
def test_a_text_in_place_of_a_path_is_refused_in_a_short_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"data is a text of .* characters, .* Pass \[text\], a list") as caught:
        as_data(decoder(), text)
    assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)


# Data sets and lists -------------------------------------------------------------------------------------------------


def test_a_data_set_of_texts_is_read_as_documents() -> None:
    data = as_data(decoder(), hub().Dataset.from_dict({"text": TEXTS}))
    documents = sum(map(len, data.begins.values()))
    assert isinstance(data, TextData) and documents == 150 and 90 <= len(data.begins["train"]) < 150
    (renamed,) = (hub().Dataset.from_dict({"body": TEXTS, "stars": LABELS}),)
    assert as_data(decoder(), renamed).fingerprint == data.fingerprint


def test_the_splits_of_a_data_set_are_kept() -> None:
    rows = {"train": TEXTS[:100], "validation": TEXTS[100:120], "test": TEXTS[120:]}
    data = hub().DatasetDict({name: hub().Dataset.from_dict({"text": texts}) for name, texts in rows.items()})
    read = as_data(decoder(), data)
    assert [len(read.begins[name]) for name in ("train", "valid", "test")] == [100, 20, 30]
    other = as_data(decoder(), data["train"], data["validation"])
    assert [len(other.begins[name]) for name in ("train", "valid")] == [100, 20]


def test_a_list_of_texts_is_a_data_set() -> None:
    assert as_data(decoder(), TEXTS).fingerprint == as_data(decoder(), [{"text": text} for text in TEXTS]).fingerprint
    assert len(as_data(bert(**SIZE), TEXTS[:-20], TEXTS[-20:]).begins["valid"]) == 20


def test_a_data_set_of_tokens_is_read_without_its_padding() -> None:
    width = max(map(len, TOKENS))
    padded = [row + [0] * (width - len(row)) for row in TOKENS]
    masks = [[1] * len(row) + [0] * (width - len(row)) for row in TOKENS]
    data = as_data(decoder(), hub().Dataset.from_dict({"input_ids": padded, "attention_mask": masks}))
    plain = as_data(decoder(), [{"input_ids": row, "labels": row} for row in TOKENS])
    assert isinstance(data, TokenIdData) and data.fingerprint == plain.fingerprint
    assert sum(len(getattr(data, split)) for split in ("train", "valid", "test")) == sum(map(len, TOKENS))
    assert data.vocab == 122 and data.metric(decoder()).name == "bits per token"


def test_rows_with_labels_of_their_own_become_batches() -> None:
    rows = [{"input_ids": row, "labels": [-100] * 8 + row[8:]} for row in TOKENS]
    data = as_data(decoder(), rows, batch=4, length=64, seed=3)
    batch = data.at(0)
    assert isinstance(batch, TokenBatch) and not batch.scored[:, 1:8].any() and batch.scored[:, 8:20].all()
    assert torch.equal(batch.tokens, as_data(decoder(), rows, batch=4, length=64, seed=3).at(0).tokens)
    measured = sum(len(part.tokens) for part in data.validation_batches)
    assert measured == round(len(rows) * 0.05)
    with pytest.warns(UserWarning, match=r"rows have more than 17 tokens and are cut; give a larger length"):
        assert as_data(decoder(), rows, length=16).at(0).tokens.shape[1] == 17


def test_texts_and_labels_of_a_data_set_are_classified_by_name() -> None:
    datasets = hub()
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    data = as_data(classifier(), datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS}, features=features))
    assert isinstance(data, LabelledData) and data.labels == ("bad", "good")
    tokens = as_data(classifier(), datasets.Dataset.from_dict({"input_ids": TOKENS, "label": LABELS}), batch=2)
    assert [part.shape[0] for part in tokens.at(0)] == [2, 2]


def test_pairs_of_a_data_set_are_texts_or_tokens() -> None:
    texts = as_data(pairs_model(), hub().Dataset.from_dict({"source": TEXTS, "target": TEXTS[::-1]}))
    assert isinstance(texts, PairData) and bytes(texts.train[0][0]).decode() in TEXTS
    tokens = as_data(pairs_model(), [{"input_ids": row, "labels": row[::-1]} for row in TOKENS], length=64)
    source, target = tokens.at(0)
    row = [token for token in source[0].tolist() if token >= 0]
    assert target[0].tolist()[: len(row)] == row[::-1]
    with pytest.raises(ValueError, match="no pair has at most 4 tokens on each side"), pytest.warns(UserWarning):
        as_data(pairs_model(), [{"input_ids": row, "labels": row} for row in TOKENS], length=4)


# Loaders and batches -------------------------------------------------------------------------------------------------


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """What DataCollatorForLanguageModeling(mlm=False) gives."""
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows])
    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask == 1, ids, -100)}


def loader(shuffle: bool = True) -> DataLoader:
    rows: Any = [{"input_ids": row} for row in TOKENS]
    return DataLoader(rows, batch_size=50, shuffle=shuffle, collate_fn=collate)


def test_a_loader_of_dicts_gives_rows_with_padding() -> None:
    model, before = decoder(), torch.get_rng_state()
    as_data(model, loader(), loader()).at(2)
    assert torch.equal(before, torch.get_rng_state())
    data = as_data(decoder(), loader(), loader(shuffle=False))
    rows = [[token for token in row.tolist() if token >= 0] for step in range(3) for row in data.at(step)]
    assert sorted(rows) == sorted(TOKENS) and rows != TOKENS
    assert torch.equal(data.at(1), as_data(decoder(), loader(), loader()).at(1))
    assert [len(batch) for batch in data.validation_batches] == [50, 50, 50]


def test_without_validation_data_the_first_batches_of_a_loader_are_measured() -> None:
    with pytest.warns(UserWarning, match="no validation data: the first 3 batches of the training data are measured"):
        data = as_data(decoder(), loader(shuffle=False))
    assert torch.equal(data.validation_batches[0], data.at(0))


def test_other_iterables_and_functions_give_batches_too() -> None:
    batches = [batch for batch in loader(shuffle=False)]
    rows = torch.randint(256, (6, 9))
    for data in (batches, tuple(batches), iter(batches)):
        assert torch.equal(as_data(decoder(), data).at(4), as_data(decoder(), batches).at(1))
    assert torch.equal(
        as_data(decoder(), lambda step: batches[step], batches[:1]).at(2), as_data(decoder(), batches).at(2)
    )
    pairs = as_data(decoder(), [(rows[:, :-1], rows[:, 1:])])
    assert torch.equal(pairs.at(0), rows)
    tensors = as_data(decoder(), DataLoader(TensorDataset(rows), batch_size=6), [rows])
    assert torch.equal(tensors.at(0), rows)


def test_token_ids_are_a_text() -> None:
    ids = torch.randint(300, (500,))
    data = as_data(decoder(), ids)
    assert isinstance(data, TokenIdData) and torch.equal(torch.cat([data.train, data.valid, data.test]).long(), ids)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [450, 25, 25]
    assert as_data(decoder(), ids.numpy().astype(numpy.uint16)).fingerprint == data.fingerprint
    valid = as_data(decoder(), ids[:400], ids[400:])
    assert torch.equal(valid.valid.long(), ids[400:]) and len(as_data(decoder(), ids.view(5, 100)).begins["train"]) == 5


# Refusals ------------------------------------------------------------------------------------------------------------


def wrong() -> dict[str, tuple[type[Exception], Callable[[], Any]]]:
    rows = torch.randint(256, (6, 9))
    unformatted = DataLoader([{"input_ids": [1, 2, 3]}] * 4, batch_size=2)  # type: ignore[arg-type]
    return {
        "there is no file or folder nov.txt; give the path of a file or folder, or text=PATH": (
            FileNotFoundError,
            lambda: as_data(decoder(), "nov.txt"),
        ),
        "there is no kind of data 'txt'; the nearest is 'text'": (ValueError, lambda: as_data(decoder(), "txt=novel")),
        "wrong data for fit: got None, expected a path, .*; this gpt reads text": (
            TypeError,
            lambda: as_data(decoder(), None),
        ),
        "wrong data for fit: got {'input_ids'": (TypeError, lambda: as_data(decoder(), {"input_ids": rows})),
        r"data is <Tensor torch.float32 \[6, 9\]>, expected token ids": (
            ValueError,
            lambda: as_data(decoder(), rows.float()),
        ),
        r"data is a Dataset of PyTorch: wrap it as DataLoader\(data, batch_size=16\)": (
            TypeError,
            lambda: as_data(decoder(), TensorDataset(rows)),
        ),
        "valid must be data of the same kind": (ValueError, lambda: as_data(decoder(), "text=stdlib", valid=[rows])),
        "valid= has no effect on Batches": (ValueError, lambda: as_data(decoder(), Batches([rows]), valid=[rows])),
        "the data has no column source: got the columns text. Rename one": (
            ValueError,
            lambda: as_data(pairs_model(), TEXTS),
        ),
        "the column of texts is unknown: got the columns a, b, expected text or input_ids": (
            ValueError,
            lambda: as_data(decoder(), [{"a": text, "b": text} for text in TEXTS]),
        ),
        "row 2 of the data has no column 'text', but row 1 has": (
            ValueError,
            lambda: as_data(decoder(), [{"text": "a"}, {"body": "b"}]),
        ),
        "input_ids is a list of tensors, one for each position": (
            ValueError,
            lambda: as_data(decoder(), unformatted, [rows]).at(0),
        ),
        "data is a DataFrame of pandas: pass datasets.Dataset.from_pandas": (
            TypeError,
            lambda: as_data(decoder(), pytest.importorskip("pandas").DataFrame({"text": TEXTS})),
        ),
        "the field 'text' of row 1 of list of dicts is not a text: got NoneType. Name another .* leave such rows out": (
            ValueError,
            lambda: as_data(decoder(), [{"text": None, "more": "a"}]),
        ),
        "leaves 0 bytes of .*; all copies of a document are in one split: give more documents that differ": (
            ValueError,
            lambda: fit(decoder(), ["the same text"] * 50, steps=1),
        ),
        "has a DistributedSampler, but fit itself shares each batch": (
            ValueError,
            lambda: as_data(
                decoder(),
                DataLoader(
                    TensorDataset(rows),
                    sampler=torch.utils.data.DistributedSampler(TensorDataset(rows), num_replicas=2, rank=0),
                ),
            ),
        ),
        "has the token id -1, expected 0 or more; leave padding out by attention_mask": (
            ValueError,
            lambda: as_data(decoder(), rows - rows - 1),
        ),
    }


@pytest.mark.parametrize("message", list(wrong()))
def test_data_without_a_clear_meaning_is_refused_in_a_line(message: str) -> None:
    kind, call = wrong()[message]
    with pytest.raises(kind, match=message) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_data_set_that_the_model_cannot_read_is_refused() -> None:
    rows = hub().Dataset.from_dict({"text": TEXTS})
    with pytest.raises(ValueError, match="a streaming data set without a validation split"):
        as_data(decoder(), rows.to_iterable_dataset())
    with pytest.raises(ValueError, match="this image_transformer reads images, but got a data set of rows"):
        as_data(image_transformer(**SIZE), rows)
    with pytest.raises(ValueError, match="has the splits a, b, expected train, validation and test. Pass one of them"):
        as_data(decoder(), hub().DatasetDict({"a": rows, "b": rows}))


# fit -----------------------------------------------------------------------------------------------------------------


def test_fit_trains_on_them_and_a_resumed_loader_goes_on_with_the_same_batches(tmp_path: Path) -> None:
    def trained(*parts: int) -> Model:
        torch.manual_seed(0)
        model, out = decoder(dropout=0.2), tmp_path / "-".join(map(str, parts))
        for steps in parts:
            fit(model, loader(), valid=loader(), steps=steps, out=out, resume=steps > parts[0], schedule="constant")
        return model

    whole, cut = trained(5), trained(2, 5)
    for (name, weight), (_, same) in zip(whole.named_parameters(), cut.named_parameters(), strict=True):
        assert torch.equal(weight, same), name


def test_a_loss_with_labels_is_measured_in_bits_per_token() -> None:
    rows = [{"input_ids": row, "labels": [-100] * 8 + row[8:]} for row in TOKENS]
    history = fit(decoder(vocab=300), rows, steps=2, batch=4, length=64)
    assert history.metric.name == "bits per token" and history.metric.better == "less" and 5 < history.best.valid < 10
    assert fit(decoder(), torch.randint(256, (500,)), steps=1, batch=2, length=16).metric.name == "bits per token"


def test_columns_and_streams_of_data_sets_are_read() -> None:
    rows = hub().Dataset.from_dict({"text": TEXTS})
    read = as_data(decoder(), rows["text"])
    assert read.fingerprint == as_data(decoder(), TEXTS).fingerprint
    stream = rows.to_iterable_dataset()
    streamed = as_data(decoder(), stream.map(lambda row: {"text": row["text"].upper()}), rows)
    upper = as_data(decoder(), [text.upper() for text in TEXTS], TEXTS)
    assert streamed.fingerprint == upper.fingerprint
    splits = hub().IterableDatasetDict(
        {"train": stream.map(lambda row: {"text": row["text"].upper()}), "validation": stream}
    )
    assert len(as_data(decoder(), splits).valid) == sum(len(text) + 1 for text in TEXTS)


def test_a_loader_of_a_stream_is_trained_on_in_turn() -> None:
    stream = hub().Dataset.from_dict({"input_ids": [row[:8] for row in TOKENS[:6]]}).to_iterable_dataset()
    batches = DataLoader(stream.with_format("torch"), batch_size=2)
    data = as_data(decoder(), batches, [torch.tensor([TOKENS[0]])])
    assert torch.equal(data.at(4), torch.tensor([row[:8] for row in TOKENS[2:4]]))  # the second epoch


def test_arguments_without_effect_are_refused() -> None:
    rows = [torch.tensor([row]) for row in TOKENS[:2]]
    with pytest.raises(ValueError, match="length= has no effect on batches that are ready, such as a DataLoader"):
        fit(decoder(), rows, steps=1, length=8)
    with pytest.raises(ValueError, match=r"a function of the step, which leaves no validation data. Give valid="):
        fit(decoder(), lambda step: rows[0], steps=1)
    with pytest.raises(ValueError, match="has a column target, which is not read; name the labels labels"):
        fit(decoder(), [{"input_ids": rows[0], "target": rows[0]}], steps=1)
