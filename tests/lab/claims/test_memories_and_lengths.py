"""Claims about memories, spans and lengths: their data and measures, by loops; planted faults change verdicts."""

import math
from typing import Any

import pytest
import torch

from kinformer.core.discover import modules
from kinformer.lab.claims import (
    adaptive_span_layers,
    compressive_attention,
    compressive_functions,
    compressive_recall,
    memorizing_repeats,
    memorizing_stages,
    universal_lengths,
)
from kinformer.lab.claims.support import compressive_models, repeated_definitions
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim
from kinformer.lab.data.text import TextData
from kinformer.members.compressive_transformer import compressive_transformer
from kinformer.models.lm import LM

NAMES = (
    *("adaptive_span_layers", "compressive_attention", "compressive_functions", "compressive_recall"),
    *("memorizing_repeats", "memorizing_stages", "universal_lengths"),
)
ORDER = list(compressive_functions.FUNCTIONS)


def without_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace each training and its measurement by numbers at which every claim holds."""
    monkeypatch.setattr(compressive_functions, "read_text", lambda where: None)
    monkeypatch.setattr(compressive_functions, "build_with_equal_start", lambda seed, **keywords: keywords)
    monkeypatch.setattr(compressive_functions, "train_on_text", lambda model, *_: model)
    monkeypatch.setattr(compressive_functions, "measure_test_bits", lambda keywords, _: bits_of(keywords))
    monkeypatch.setattr(compressive_attention, "read_text", lambda where: TextData("none", *torch.zeros(3, 1)))
    monkeypatch.setattr(compressive_attention, "build_with_equal_start", lambda seed, **_: None)
    monkeypatch.setattr(compressive_attention, "train_on_text", lambda *_: None)
    monkeypatch.setattr(compressive_attention, "measure_test_bits", lambda *_: 2.0)
    monkeypatch.setattr(
        compressive_attention, "attention_by_slot", lambda *_: torch.tensor([3.0, 1.0, 4.0]).repeat_interleave(24)
    )
    monkeypatch.setattr(adaptive_span_layers, "read_text", lambda where: None)
    monkeypatch.setattr(adaptive_span_layers, "train_and_test", lambda name, *_: spans_of(name))
    monkeypatch.setattr(compressive_recall, "train_model", lambda compressed, *_: compressed)
    monkeypatch.setattr(compressive_recall, "recall", lambda compressed, gap: 0.25 + compressed / 32)
    monkeypatch.setattr(compressive_recall, "measure_range", lambda compressed, *_: 16 + 4 * compressed)
    for module in (memorizing_repeats, memorizing_stages):
        monkeypatch.setattr(module, "build", remembering)
        monkeypatch.setattr(module, "train_on_documents", lambda model, *_: model)
        monkeypatch.setattr(module, "far_bits", lambda sizes: 2.0 - sizes[-1] / 64 - len(sizes) / 100)
    monkeypatch.setattr(memorizing_repeats, "bits_by_distance", lambda _: torch.ones(repeated_definitions.LENGTH))
    monkeypatch.setattr(memorizing_stages, "far_bits", lambda sizes: 2.0 - len(set(sizes)) / 10)
    monkeypatch.setattr(universal_lengths, "train_model", lambda name, *_: name)
    monkeypatch.setattr(universal_lengths, "measure_shares", lambda name, _: shares_of(name))


def memories_and_lengths(monkeypatch: pytest.MonkeyPatch) -> dict[str, Claim]:
    """Each claim of this file, without its trainings."""
    without_training(monkeypatch)
    return {name: modules("claims")[name].claim((0, 1)) for name in NAMES}


def bits_of(keywords: dict[str, Any]) -> float:
    table = list(compressive_functions.FUNCTIONS.values())
    return 1.0 + (table.index(keywords) if keywords in table else 9) / 100


def spans_of(name: str) -> adaptive_span_layers.SpanResult:
    learned = name == adaptive_span_layers.LEARNED
    return adaptive_span_layers.SpanResult([[1.0], [2.0], [9.0]] if learned else [], 2.0, 1.0 if learned else 2.0)


def remembering(seed: int, memory: int, weights: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The sizes of the memories that a model had, the last one last."""
    return (*weights, memory)


def shares_of(name: str) -> universal_lengths.LengthShares:
    share = 0.9 if name == universal_lengths.UNIVERSAL else 0.5
    return universal_lengths.LengthShares(
        [share] * len(universal_lengths.LENGTHS), [0.0] * len(universal_lengths.LENGTHS)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_number_changes_the_verdict(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_training(monkeypatch)
    result = {
        "adaptive_span_layers": (
            "train_and_test",
            lambda name, *_: spans_of("fixed")._replace(spans=[[9.0], [2.0], [1.0]]),
        ),
        "compressive_attention": ("attention_by_slot", lambda *_: torch.tensor([1.0, 3.0, 4.0]).repeat_interleave(24)),
        "compressive_functions": ("measure_test_bits", lambda keywords, _: -bits_of(keywords)),
        "compressive_recall": ("measure_range", lambda compressed, *_: 16 + 4 * compressed + (compressed > 0)),
        "memorizing_repeats": ("far_bits", lambda sizes: 1.0 + sizes[-1] / 64 - len(sizes) / 100),
        "memorizing_stages": ("far_bits", lambda sizes: 1.0 + len(set(sizes)) / 10),
        "universal_lengths": ("measure_shares", lambda *_: shares_of(universal_lengths.PLAIN)),
    }[name]
    module = modules("claims")[name]
    assert module.claim((0, 1)).verdict == "holds"
    monkeypatch.setattr(module, *result)
    assert module.claim((0, 1)).verdict == "does not hold"


def test_all_compressions_start_from_the_same_other_weights() -> None:
    models = [
        compressive_models.build_with_equal_start(1, **keywords)
        for keywords in compressive_functions.FUNCTIONS.values()
    ]
    first, *others = (model.state_dict() for model in models)
    shared = [name for name in first if ".memory." not in name]
    assert shared and all(torch.equal(first[name], other[name]) for other in others for name in shared)
    assert set(first) - set(shared), "a convolution has weights"
    assert not torch.equal(first[shared[0]], compressive_models.build_with_equal_start(2).state_dict()[shared[0]])


def test_attention_to_slots_is_the_mean_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressive_attention, "MEASURED", 2)
    monkeypatch.setattr(compressive_attention, "ROWS", 2)
    model = compressive_models.build_with_equal_start(0).eval()
    text = torch.randint(256, (2 * 7 * 24,))
    slots = compressive_attention.attention_by_slot(model, text)
    assert slots.shape == (72,) and float(slots.sum()) == pytest.approx(1)
    # at the start all scores are nearly equal: query n reads 48 states and its segment up to itself
    for place in (0, 10, 23):
        expected = sum(1 / (48 + n + 1) for n in range(place, 24)) / 24
        assert float(slots[48 + place]) == pytest.approx(expected, rel=0.05)
    assert compressive_attention.by_bucket(torch.arange(72.0))[:2] == [1.5, 5.5]


@pytest.mark.parametrize("compressed", [16, 0])
def test_the_range_is_that_of_the_formula(compressed: int) -> None:
    with seeded(0):
        model = compressive_transformer(**compressive_recall.SIZES, compressed=compressed).eval()
    expected = compressive_recall.DEPTH * (compressive_recall.MEMORY + compressive_recall.RATE * compressed)
    assert compressive_recall.measure_range(model, 96, 0) == expected
    for layer in model.body.modules():
        if hasattr(layer, "compression"):
            for weight in layer.compression.parameters():
                weight.data.zero_()
    blind = compressive_recall.measure_range(model, 96, 0)
    assert blind == 2 * compressive_recall.MEMORY, "compressed memories without content add nothing"


def test_questions_ask_for_the_values_of_definitions() -> None:
    tokens, asked = compressive_recall.questions(50, 8, 3)
    for row, marks in zip(tokens.tolist(), asked.tolist(), strict=True):
        values = {token // 4: token % 4 for token in row[:8:2]}
        assert (
            len(values) == 4
            and row[1:8:2] == [compressive_recall.DOT] * 4
            and row[8:16] == [compressive_recall.DOT] * 8
        )
        names, answers = row[16::2], row[17::2]
        assert sorted(name - 16 for name in names) == [0, 1, 2, 3]
        assert [answer - 20 for answer in answers] == [values[name - 16] for name in names]
        assert [n for n, mark in enumerate(marks) if mark] == [17, 19, 21, 23]


def test_repeats_follow_definitions_at_their_distance() -> None:
    values, names = repeated_definitions.VALUES, repeated_definitions.NAMES
    tokens, distance = repeated_definitions.documents(50, 3)
    for row, distances in zip(tokens.tolist(), distance.tolist(), strict=True):
        defined = {token // values: place for place, token in enumerate(row[:names])}
        for place in range(names, len(row), 2):
            name = row[place] - names * values
            assert row[place + 1] - names * (values + 1) == row[defined[name]] % values
            assert distances[place] == 0 and distances[place + 1] == place - defined[name]
    assert not distance[:, :names].any()


def test_bits_of_repeats_are_means_over_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_definitions, "TESTED", 4)
    model = repeated_definitions.build(0, 16).eval()
    tokens, distance = repeated_definitions.documents(4, 9_999)
    logits = model.logits(tokens).y.detach().double()
    bits: dict[int, list[float]] = {}
    for row, place in (distance > 0).nonzero().tolist():
        nll = -logits[row, place - 1].log_softmax(-1)[tokens[row, place]] / math.log(2)
        bits.setdefault(int(distance[row, place]), []).append(float(nll))
    means = repeated_definitions.bits_by_distance(model)
    for n, mean in enumerate(means.tolist()):
        assert math.isnan(mean) if n not in bits else mean == pytest.approx(sum(bits[n]) / len(bits[n]), rel=1e-4)
    far = [value for n, of in bits.items() for value in of if n >= repeated_definitions.FAR]
    assert repeated_definitions.far_bits(model) == pytest.approx(sum(far) / len(far), rel=1e-4)
    other = repeated_definitions.build(1, 64, model)
    assert all(torch.equal(weight, other.state_dict()[name]) for name, weight in model.state_dict().items())


def test_words_are_copied_or_reversed() -> None:
    for problem in universal_lengths.PROBLEMS:
        words, answers = universal_lengths.pairs(problem, 40, (2, 5), 1)
        sizes = set()
        for word, answer in zip(words.tolist(), answers.tolist(), strict=True):
            letters = [letter for letter in word if letter >= 0]
            assert word == letters + [-1] * (5 - len(letters))
            assert answer[: len(letters)] == (letters if problem == "copy" else letters[::-1])
            assert answer[len(letters) :] == [-1] * (5 - len(letters))
            sizes.add(len(letters))
        assert sizes == {2, 3, 4, 5}


def test_shorter_spans_need_fewer_flops() -> None:
    def flops(longest: int) -> float:
        model = adaptive_span_layers.adaptive_span(
            d=16, depth=1, heads=2, segment=64, longest=longest, spans="x < 1000"
        )
        assert isinstance(model, LM)
        return adaptive_span_layers.flops_per_token(model)

    assert flops(64) < flops(256)
