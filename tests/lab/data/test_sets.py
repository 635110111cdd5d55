"""Sets: what is made up and what an .npz holds, splits by elements, a training, and one line for what is wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.lab.data import sets
from kinformer.lab.data.sets import GeneratedSets, SetData, StoredSets, read, set_key
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.task import split_of
from kinformer.lab.train.fit import fit
from kinformer.lab.train.start_record import fingerprint
from kinformer.members.set_transformer import set_transformer
from tests.lab.data.test_images_series import idx
from tests.lab.train import tiny
from tests.unhooked import process

TINY: dict[str, Any] = {"d": 16, "depth": 1, "heads": 2}


def read_sets(spec: str) -> SetData:
    data = read_spec(spec)
    assert isinstance(data, SetData) and isinstance(data.train, GeneratedSets)
    return data


def test_maxima_are_the_largest_of_sets_of_every_size() -> None:
    data = read_sets("sets=maximum,most=4")
    elements, marks, right = data.train.draw(200)
    assert data.keywords == {"inputs": 1, "answer": "number"} and elements.shape == (200, 4, 1)
    assert set((marks >= 0).sum(1).tolist()) == {1, 2, 3, 4} and 0 <= elements.min() and elements.max() <= 1
    assert torch.equal(elements.masked_fill((marks < 0)[..., None], -1).amax((1, 2)), right)


def test_counts_are_of_the_vectors_that_differ() -> None:
    data = read_sets("sets=unique,least=3,most=5,inputs=2,noise=0")
    elements, marks, right = data.valid.draw(100)
    assert data.keywords == {"inputs": 2, "answer": "count"}
    for vectors, mark, count in zip(elements, marks, right, strict=True):
        assert len(vectors[mark >= 0].unique(dim=0)) == count and 3 <= (mark >= 0).sum() <= 5
    assert set(right.tolist()) == {1, 2, 3, 4, 5}
    assert len(elements[marks >= 0].unique(dim=0)) == right.sum()  # each set has vectors of its own
    near, marks, _ = read_sets("sets=unique,noise=0.01").train.draw(8)
    assert len(near[marks >= 0].unique(dim=0)) == (marks >= 0).sum()  # and noise tells copies apart


def test_what_always_the_same_answer_scores() -> None:
    right = read_sets("sets=unique").train.first_sets(512)[2]
    share = max((right == n).float().mean() for n in right.unique())
    assert f"always the same answer scores {float(share):.3f}" in read_sets("sets=unique").describe_sample(
        "valid", 0, 1 << 16
    )
    numbers = read_sets("sets=maximum")
    off = (numbers.train.first_sets(512)[2] - torch.linspace(0, 1, 1001)[:, None]).abs().mean(1)
    assert abs(numbers.constant_answer_score - float(off.min())) < 1e-3


def test_pictures_are_those_of_their_split(tmp_path: Path) -> None:
    idx(tmp_path, 300)
    data = read_sets(f"sets=pictures,images={tmp_path},least=2,most=3")
    of = {}
    for split in ("train", "valid", "test"):
        elements, marks, right = getattr(data, split).draw(40)
        assert elements.shape[2] == data.inputs == 12 and elements.max() <= 1 and set(right.tolist()) <= {1, 2, 3}
        of[split] = {tuple(element) for element in elements[marks >= 0].tolist()}
    assert not of["train"] & of["valid"]
    with pytest.raises(ValueError, match="^sets=pictures needs images"):
        read("pictures")


def test_draws_are_of_their_step_and_a_set_is_of_one_split_in_any_order(tmp_path: Path) -> None:
    idx(tmp_path, 300)
    data = read_sets(f"sets=pictures,images={tmp_path},least=1,most=2")
    want = data.train.draw(5, 1, 7)
    assert all(torch.equal(a, b) for a, b in zip(want, data.train.draw(5, 1, 7), strict=True))
    assert want[0].tolist() != data.train.draw(5, 1, 8)[0].tolist()
    for split in ("train", "valid"):
        elements, marks, _ = getattr(data, split).draw(8)
        for vectors, mark in zip(elements.numpy(), marks.numpy(), strict=True):
            real = vectors[mark >= 0]
            assert split_of(set_key(real)) == split_of(set_key(real[::-1])) == split


def test_too_few_sets_to_split_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(sets, "TRIED", 3)
    monkeypatch.setattr(sets, "split_of", lambda of: "train")
    with pytest.raises(ValueError, match="has too few sets to split into train, valid, test: no set of valid in 3"):
        read_sets("sets=maximum").valid.draw(1)


def trained(folder: str) -> list[Any]:
    """In a process of its own: what a training of forty steps says, and whether what is kept says the same."""
    torch.manual_seed(0)
    model = set_transformer(**TINY, inducing=None, norm="none")
    history = fit(model, "sets=maximum,most=3", steps=40, batch=32, lr=1e-2, measures=2, out=folder)
    elements, marks, _ = read_sets("sets=maximum,most=3").valid.first_sets(4)
    same = torch.equal(load(folder).eval().predict(elements, marks), model.eval().predict(elements, marks))
    return [history.metric.name, history.best.valid, same]


def test_it_trains_is_kept_and_measured(tmp_path: Path, capsys: Any) -> None:
    folder = str(tmp_path / "run")
    metric, error, same = process().call(f"{__name__}:{trained.__name__}", folder)
    assert metric == "absolute error" and same
    assert error < 0.12  # always to say the median is off by 0.2
    assert run(["evaluate", folder, "--data", "sets=maximum,most=3", "--bytes", "60"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["predictions", "20"] in rows and rows[2][:2] == ["absolute", "error"]
    assert rows[3][:4] == ["always", "the", "same", "answer"] and rows[3][4].startswith("0.2")
    assert run(["evaluate", folder, "--data", "sets=unique"]) == 2
    assert "has inputs=4, but this set_transformer has 1; give inputs=4" in capsys.readouterr().err


def arrays(path: Path, **changed: Any) -> str:
    rng = numpy.random.default_rng(0)
    elements, sizes = rng.random((60, 4, 2)), rng.integers(1, 5, 60)
    whole = {"elements": elements, "sizes": sizes, "answers": sizes.astype(float), **changed}
    numpy.savez(path, **{name: value for name, value in whole.items() if value is not None})
    return f"sets={path}"


def test_a_split_without_sets_is_refused(tmp_path: Path) -> None:
    """Of two sets one is learned from and one is measured."""
    rng = numpy.random.default_rng(0)
    data = read_spec(arrays(tmp_path / "a.npz", elements=rng.random((2, 4, 2)), sizes=None, answers=numpy.ones(2)))
    assert isinstance(data, SetData) and isinstance(data.test, StoredSets)
    assert [len(lot.answers) for lot in (data.train, data.valid, data.test) if isinstance(lot, StoredSets)] == [1, 1, 0]
    model = set_transformer(**TINY, inputs=2)
    assert len(data.stream(model, 1, 1, 0, 100).validation_batches) == 1
    with pytest.raises(ValueError, match=r"a\.npz has no sets in this split; choose another split, or give more sets$"):
        replace(data, valid=data.test).stream(model, 1, 1, 0, 100)


def test_sets_of_a_file(tmp_path: Path) -> None:
    data = read_spec(arrays(tmp_path / "a.npz"), answer="count")
    assert (
        isinstance(data, SetData)
        and isinstance(data.train, StoredSets)
        and data.keywords == {"inputs": 2, "answer": "count"}
    )
    lots = (data.train, data.valid, data.test)
    assert sum(len(lot.answers) for lot in lots if isinstance(lot, StoredSets)) == 60 and "by the SHA-256" in data.split
    assert torch.equal((data.train.marks >= 0).sum(1).float(), data.train.answers)
    order = numpy.random.default_rng(1).permutation(4)
    whole = read_spec(arrays(tmp_path / "b.npz", sizes=None))
    other = numpy.random.default_rng(0).random((60, 4, 2))[:, order]
    turned = read_spec(arrays(tmp_path / "c.npz", elements=other, sizes=None))
    assert isinstance(whole, SetData) and isinstance(turned, SetData)
    assert isinstance(whole.valid, StoredSets) and isinstance(turned.valid, StoredSets)
    assert torch.equal(whole.valid.elements[:, order], turned.valid.elements)  # a set is of its split in any order
    assert fingerprint(whole) != fingerprint(data)
    model = set_transformer(**TINY, inputs=2, answer="count")
    assert fit(model, data, steps=2, batch=8, measures=1).metric.name == "accuracy"


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    for changed, says in (
        ({"answers": None}, "lacks arrays: got elements, sizes, expected answers too"),
        ({"elements": numpy.zeros((60, 4))}, "numbers in elements"),
        ({"answers": numpy.zeros(59)}, "numbers in elements"),
        ({"sizes": numpy.zeros(60, int)}, "has invalid sizes: got 0 to 0, expected 1 to 4 elements"),
        ({"sizes": numpy.full(60, 5)}, "has invalid sizes: got 5 to 5, expected 1 to 4 elements"),
        ({"elements": numpy.full((60, 4, 2), numpy.nan)}, "a number that is not finite"),
        ({"elements": numpy.arange(480.0).reshape(60, 4, 2) * 1e300}, "a number that is not finite in float32"),
        ({"answers": numpy.full(60, 1e39)}, "a number that is not finite in float32"),
        ({"elements": numpy.zeros((60, 4, 2)), "sizes": None}, "has only one distinct set"),
        ({"elements": numpy.full((60, 4, 2), "a")}, "numbers in elements"),
    ):
        spec = arrays(bad, **changed)
        with pytest.raises(ValueError, match=says) as caught:
            read_spec(spec)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="answers that are not integers from 0 on"):
        read_spec(arrays(bad, answers=numpy.full(60, 0.5)), answer="count")
    bad.write_bytes(b"nonsense")
    for spec, says in (
        (f"sets={bad}", r"is not a \.npz of arrays, or is damaged"),
        ("sets=maximun", "there is no problem 'maximun' of sets; the nearest is 'maximum'"),
        ("sets=maximum,size=3", "has no keyword 'size'"),
        ("sets=maximum,answer=count", "only answers of the kind number; leave out answer="),
        ("sets=maximum,most=0", "most=0: give a whole number"),
        ("sets=unique,least=11", "least=11: give a whole number from 1 to 10"),
    ):
        with pytest.raises(ValueError, match=says):
            read_spec(spec)
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        read_spec("sets=none.npz")
    text = tmp_path / "some.txt"
    text.write_text("some words, " * 400)
    for model, data, says in (
        (
            tiny.classifier(),
            "sets=maximum",
            "this classifier reads labelled text, but got sets; give labelled=FILE.tsv",
        ),
        (set_transformer(**TINY), f"text={text}", "this set_transformer reads sets, but got a text; give sets=maximum"),
        (
            set_transformer(**TINY, answer="count"),
            "sets=maximum",
            "has answer=number, but this set_transformer has count",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            fit(model, data, steps=1)
