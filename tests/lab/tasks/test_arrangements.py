"""Rows of MQAR and of the tasks of MAD: places of queries, shares of noise, lengths of keys, and one dictionary."""

import re

import numpy
import pytest

from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.task import SPLITS, TaskData
from kinformer.lab.tasks.fuzzy_in_context_recall import FuzzyInContextRecall
from kinformer.lab.tasks.in_context_recall import InContextRecall
from kinformer.lab.tasks.memorization import Memorization
from kinformer.lab.tasks.mqar import Mqar
from kinformer.lab.tasks.noisy_in_context_recall import NOISE, NoisyInContextRecall
from kinformer.lab.tasks.selective_copying import SelectiveCopying

DRAWS = 2000


def texts(task: object, count: int = DRAWS) -> list[str]:
    rng = numpy.random.default_rng(4)
    return [task.row(rng).text.decode() for _ in range(count)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0])
def test_a_lone_query_of_mqar_comes_after_a_gap_of_the_power_law(power: float) -> None:
    gaps = [text.count(".") // 2 for text in texts(Mqar(3, 1, length=26, power=power))]
    likelihoods = [(gap + 1) ** (power - 1) for gap in range(10)]  # (26 - 2 * 3) / 2 places
    shares = numpy.bincount(gaps, minlength=10) / DRAWS
    assert shares == pytest.approx([each / sum(likelihoods) for each in likelihoods], abs=0.04)


def test_mqar_queries_every_key_once_in_random_order_and_fills_the_shortest_rows() -> None:
    orders = set()
    for text in texts(Mqar(3, length=12, keys=5), 300):
        listed, asked = text[:6], text[6:]
        assert len({*listed[::2]}) == 3 and sorted(asked[::2]) == sorted(listed[::2])
        orders.add(tuple(listed[::2].index(key) for key in asked[::2]))
    assert len(orders) == 6  # 3! orders of three keys


def test_mqar_with_64_pairs_has_64_keys_that_are_no_values() -> None:
    task = Mqar(64, length=256, values=29)
    pairs = [text[place : place + 2] for text in texts(task, 30) for place in range(0, 128, 2)]
    keys, values = ({*symbols} for symbols in zip(*pairs, strict=True))
    assert len(keys) == 64 and len(values) == 29 and not keys & values and "." not in keys | values


def test_all_keys_of_in_context_recall_occur_and_the_last_pair_is_an_answer() -> None:
    rng, beginnings = numpy.random.default_rng(0), set()
    for _ in range(200):
        row = InContextRecall(9, 5).row(rng)
        beginnings.add(row.text[::2][:2])
        assert {*row.text.decode()[::2]} == {*"abcde"} and len(row.answer) == 4
        assert row.text.endswith(row.pieces[-1][1]) and row.text[-2:-1] in row.text[:-2]
    assert len(beginnings) == 25  # two letters of five, equal ones too


def test_noise_has_its_share_its_symbols_and_any_place_before_the_last_pair() -> None:
    rows = texts(NoisyInContextRecall(8, 3, noise=0.5))
    is_noise = numpy.array([[letter.encode() in NOISE for letter in text] for text in rows])
    assert (is_noise.mean(axis=1) == 0.5).all() and not is_noise[:, -2:].any()
    assert is_noise[:, :-2].mean(axis=0) == pytest.approx([8 / 15] * 30, abs=0.04)
    assert {*"".join(rows)} == {*"abc", *"01234567", *NOISE.decode()}


def test_fuzzy_keys_and_values_have_every_length_and_every_key_occurs_as_often() -> None:
    pairings = set()
    for text in texts(FuzzyInContextRecall(6, 3), 300):
        pairs = re.findall(r"([a-z]+)(\d+)", text)
        assert sorted(len(key) for key, _ in {*pairs}) == [1, 1, 2, 2, 3, 3]
        assert sorted(len(value) for _, value in {*pairs}) == [1, 1, 2, 2, 3, 3]
        assert {pairs.count(pair) for pair in pairs} == {3}
        pairings |= {(len(key), len(value)) for key, value in pairs}
    assert len(pairings) == 9  # lengths of keys and values are independent


def test_letters_of_selective_copying_stand_anywhere_among_the_dots() -> None:
    rows = texts(SelectiveCopying(3, 8, dots=6))
    is_letter = numpy.array([[letter != "." for letter in text.split("|")[0]] for text in rows])
    assert (is_letter.sum(axis=1) == 3).all()
    assert is_letter.mean(axis=0) == pytest.approx([1 / 3] * 9, abs=0.04)


def test_the_dictionary_is_one_for_all_rows_and_splits_and_another_for_another_seed() -> None:
    def dictionary(dictionary: int, split: str) -> dict[str, str]:
        data = read_spec(f"task=memorization,entries=26,key_length=2,dictionary={dictionary}")
        assert isinstance(data, TaskData)
        pairs = [pair for row in getattr(data, split).rows(60) for pair in re.findall(r"(..)\?(.)", row.text.decode())]
        assert len({*pairs}) == len(dict(pairs)) == 26
        return dict(pairs)

    first = [dictionary(0, split) for split in SPLITS]
    assert first[0] == first[1] == first[2] != dictionary(1, "train")
    counts = [[*first[0].values()].count(digit) for digit in "01234567"]
    assert {*counts} == {3, 4}  # 26 entries of 8 digits
    assert Memorization(26, 2).chance_accuracy == 4 / 26
