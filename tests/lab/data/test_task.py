"""Tasks as data: splits that share nothing, batches by seed and step, one form for each kind of model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.core.batch import TokenBatch
from kinformer.core.model import ACCURACY
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.task import SPLITS, TaskData, split_of
from kinformer.lab.train.evaluate import evaluate, evaluate_batches
from kinformer.lab.train.fit import fit
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.transformer import transformer
from kinformer.members.transformer_xl import transformer_xl

SMALL = {"d": 16, "depth": 1, "heads": 2}
OWN = """
from dataclasses import dataclass
from kinformer.core.task import Task, TaskRow

@dataclass(frozen=True)
class Twice(Task):
    most: int = 60

    @property
    def width(self):
        return 4

    def row(self, rng):
        n = int(rng.integers(self.most))
        return TaskRow([(b"%02d=" % n, b"%d" % (2 * n % 10))])
"""


def task(spec: str) -> TaskData:
    data = read_spec(f"task={spec}")
    assert isinstance(data, TaskData)
    return data


@pytest.mark.parametrize(
    "spec",
    [
        *("addition,digits=1", "copy,length=3,symbols=4", "recall,pairs=1", "listops,longest=12"),
        *("mqar,pairs=2,length=8,keys=3,values=2", "in_context_recall,pairs=5,keys=2,values=3"),
        *("noisy_in_context_recall,pairs=2,keys=1,values=2,noise=0.4", "memorization,entries=5,queries=3,values=2"),
        *("fuzzy_in_context_recall,keys=2,times=2,longest=2,letters=3,digits=2", "sequence_compression,length=3"),
        "selective_copying,length=2,dots=3,symbols=3",
    ],
)
def test_splits_share_no_question_and_rows_follow_the_seed(spec: str) -> None:
    """Of so few rows there are that every split has drawn most of its own."""
    data = task(spec)
    lots = {split: [getattr(data, split).rows(200, seed) for seed in (0, 1)] for split in SPLITS}
    questions = {split: {row.question for lot in entries for row in lot} for split, entries in lots.items()}
    assert sum(map(len, questions.values())) == len(set().union(*questions.values()))
    assert all(split_of(question) == split for split, entries in questions.items() for question in entries)
    assert lots["train"][0] == data.train.rows(200) != lots["train"][1]
    assert data.valid.rows(7) == lots["valid"][0][:7]
    assert data.train.rows(3, 0, 5) != data.train.rows(3, 0, 6)


def test_about_a_tenth_is_held_back_each_for_valid_and_test() -> None:
    splits = [split_of(b"%d" % n) for n in range(4000)]
    assert [splits.count(split) / 4000 for split in SPLITS] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


def test_each_kind_of_model_has_rows_in_its_form() -> None:
    data = task("recall,pairs=2,queries=2")
    batches = [data.stream(model, 3, 1, 0, 10_000) for model in (gpt(**SMALL), bert(**SMALL), transformer(**SMALL))]
    rows = data.train.rows(3, 0, 4)
    for reads in (0, 1):
        batch = batches[reads].at(4)
        assert isinstance(batch, TokenBatch) and batch.scored is not None
        assert [bytes(row) for row in batch.tokens.tolist()] == [row.text for row in rows]
        assert batch.scored.int().tolist() == [[0, 0, 0, 0, 0, 0, 1, 0, 1]] * 3
    source, target = batches[2].at(4)
    assert [bytes(row) for row in source.tolist()] == [row.question for row in rows]
    assert [bytes(row) for row in target.tokens.tolist()] == [row.answer for row in rows]
    valid = torch.cat([batch.tokens for batch in batches[0].validation_batches])
    assert [bytes(row) for row in valid.tolist()] == [row.text for row in data.valid.rows(512)]
    assert torch.equal(batches[0].at(3).tokens, data.stream(gpt(**SMALL), 3, 1, 0, 9).at(3).tokens)
    assert not torch.equal(batches[0].at(3).tokens, data.stream(gpt(**SMALL), 3, 1, 1, 9).at(3).tokens)


def test_rows_of_several_lengths_are_padded_behind() -> None:
    batch = task("listops").stream(gpt(**SMALL), 8, 1, 0, 500).at(0)
    lengths = (batch.tokens >= 0).sum(1)
    assert len(lengths.unique()) > 1
    for row, marks, length in zip(batch.tokens, batch.scored, lengths, strict=True):
        assert bool((row[:length] >= 0).all()) and marks.nonzero().tolist() == [[int(length) - 1]]


WRONG = {
    "recal": "there is no task 'recal'; the nearest is 'recall'",
    "recall,pair=3": "the task 'Recall' has no keyword 'pair'; the nearest is 'pairs'",
    "recall,pairs=x": "the keyword 'pairs' of 'Recall' must be int, got 'x'",
    "recall,pairs=60": "pairs=60: give a whole number from 1 to 52",
    "mine.py:Twice": "there is no file or folder mine.py",
}


@pytest.mark.parametrize("spec", WRONG)
def test_what_is_wrong_is_said_in_one_line(spec: str) -> None:
    with pytest.raises(ValueError) as caught:
        task(spec)
    assert str(caught.value) == WRONG[spec]


def test_too_few_rows_and_too_few_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Parity\(length=2\) has too few rows to split into train, valid, test"):
        fit(gpt(**SMALL), "task=parity,length=2", steps=1)
    with pytest.raises(
        ValueError, match="rows have 25 tokens, but this gpt has only 8 learned positions; give it length=25"
    ):
        fit(gpt(**SMALL, length=8), "task=copy", steps=1)


def test_a_task_of_one_s_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    data = task(f"{file}:Twice,most=50")
    assert (data.task.most, data.name) == (50, f"task={file}:Twice,most=50")  # type: ignore[attr-defined]
    assert fit(gpt(**SMALL), data, steps=1, batch=2).metric == ACCURACY
    with pytest.raises(ValueError, match="has no task 'Twic'; the nearest is 'Twice'"):
        task(f"{file}:Twic")


@pytest.mark.parametrize("make", [gpt, bert, transformer, transformer_xl])
def test_any_member_is_judged_by_accuracy(make: Callable) -> None:
    """And by nothing of it on a text, also where it learned a task last."""
    model = make(**SMALL)
    data = task("copy,length=3")
    history = fit(model, data, steps=2, batch=4, length=7)
    assert history.metric == ACCURACY == model.metric and 0 <= history.best.valid <= 1
    assert model.trained_length == 7
    batches = replace(data, valid=data.test).stream(model, 1, 1, 0, 40 * 7).validation_batches
    score = evaluate_batches(model, batches)
    assert (score.metric, score.count) == (ACCURACY, 120) and 0 <= score.extras["rows all right"] <= score.value
    if model.reads != "pairs":
        text = torch.arange(300, dtype=torch.int64).remainder(256).to(torch.uint8)
        assert evaluate(model, text, 7).metric == type(model).metric


def test_the_best_of_more_is_the_largest() -> None:
    from kinformer.lab.train.history import History, Point

    history = History(ACCURACY, [Point(n, 0.0, 0.0, value) for n, value in enumerate((0.2, 0.9, 0.4))])
    assert history.best.valid == 0.9


def test_rows_of_what_carries_a_state_begin_afresh() -> None:
    """Lanes would hand the state of one row to the next: a batch would not be read as by itself."""
    model = transformer_xl(**SMALL)
    assert model.lanes
    states, forward = [], model.forward

    def watched(batch: object, state: object = None, progress: float = 0.0) -> object:
        states.append(state)
        return forward(batch, state, progress)  # type: ignore[arg-type]

    model.forward = watched  # type: ignore[method-assign]
    fit(model, "task=copy,length=3", steps=3, batch=2)
    assert states == [None] * 3


def test_a_run_is_told_from_one_of_another_task(tmp_path: Path) -> None:
    model = gpt(**SMALL)
    fit(model, "task=copy,length=3", steps=2, batch=4, out=tmp_path)
    fit(gpt(**SMALL), "task=copy,length=3", steps=3, batch=4, out=tmp_path, resume=True)
    for other, message in (
        ("task=copy,length=4", "got length=4, expected length=3 in --data"),
        ("task=reverse,length=3", "got data=task=reverse,length=3, expected data=task=copy,length=3"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(gpt(**SMALL), other, steps=4, batch=4, out=tmp_path, resume=True)
    loaded = load(tmp_path)
    assert loaded.metric == ACCURACY and loaded.trained_length == 7
