"""Claims about relative positions, distances and memories of segments, at small sizes and with planted faults."""

from typing import Any

import pytest
import torch
from pytest import MonkeyPatch

from kinformer.core.discover import modules
from kinformer.core.patterns.causal import Causal
from kinformer.lab.claims import (
    alibi_longer_rows,
    da_transformer_ranges,
    shaw_longer_words,
    transformer_xl_copy,
    transformer_xl_evaluation,
    transformer_xl_memory,
)
from kinformer.lab.claims.support.verdict import Claim
from kinformer.lab.claims.transformer_xl_memory import TextBits
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.data.text import TextData
from kinformer.members.gpt import gpt
from kinformer.members.transformer_xl import transformer_xl
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from tests.lab.claims.test_da_transformer_ranges import SEPARATE


def random_text(count: int = 1200) -> TextData:
    tokens = torch.randint(256, (count,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    return TextData("random", tokens, tokens, tokens)


def measured_perplexities(name: str, *_: Any) -> list[float]:
    return [8.0, 8.1, 8.2, 8.3] if name == "ALiBi" else [9.0, 14.0, 16.0, 20.0]


def measured_accuracies(position: str, *_: Any) -> list[float]:
    longer = [0.8, 0.7, 0.5] if position == "relative" else [0.4, 0.3, 0.2]
    return [1.0, 1.0, 0.95, *longer]


def ideal_copies(memory: int, gap: int, *_: Any) -> float:
    """Accuracies of models that use all that they can read."""
    return 1.0 if gap <= transformer_xl_copy.DEPTH * memory else 0.125


def positions_and_memory(monkeypatch: MonkeyPatch) -> dict[str, Claim]:
    """Each claim of this file, with measurements in place of trainings."""
    monkeypatch.setattr(alibi_longer_rows, "read_text", lambda where: random_text())
    monkeypatch.setattr(alibi_longer_rows, "perplexities", measured_perplexities)
    monkeypatch.setattr(shaw_longer_words, "accuracies", measured_accuracies)
    monkeypatch.setattr(transformer_xl_memory, "read_text", lambda where: random_text())
    monkeypatch.setattr(
        transformer_xl_memory, "measure_bits", lambda memory, *_: TextBits(2.9 if memory else 3.0, 3.0, 100)
    )
    monkeypatch.setattr(transformer_xl_copy, "train_on_copies", ideal_copies)
    monkeypatch.setattr(da_transformer_ranges, "train_and_measure", lambda *_: SEPARATE)
    quick_evaluation(monkeypatch)
    return {name: modules("claims")[name].claim((0, 1)) for name in NAMES}


def quick_evaluation(monkeypatch: MonkeyPatch) -> None:
    """Narrow models, counted operations in place of seconds, and a model that nobody trained."""
    monkeypatch.setattr(transformer_xl_evaluation, "read_text", lambda where: random_text())
    monkeypatch.setattr(transformer_xl_evaluation, "SIZES", {"d": 32, "depth": 1, "heads": 1})
    monkeypatch.setattr(transformer_xl_evaluation, "seconds", transformer_xl_evaluation.operations)
    monkeypatch.setattr(transformer_xl_evaluation, "trained_model", untrained)
    monkeypatch.setattr(transformer_xl_evaluation, "ROUNDS", 1)
    evaluation = transformer_xl_evaluation.claim
    monkeypatch.setattr(
        transformer_xl_evaluation, "claim", lambda seeds: evaluation(seeds, steps=0, lengths=(8, 16, 32))
    )


def untrained(seed: int, steps: int) -> LM:
    torch.manual_seed(seed)
    model = transformer_xl(**transformer_xl_evaluation.COMPARED)
    with torch.no_grad():
        for parameter in model.parameters():  # the biases u and v start at 0
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


NAMES = (
    "alibi_longer_rows",
    "da_transformer_ranges",
    "shaw_longer_words",
    "transformer_xl_copy",
    "transformer_xl_evaluation",
    "transformer_xl_memory",
)


def test_claims_hold_of_measurements_that_agree_with_them(monkeypatch: MonkeyPatch) -> None:
    assert {name: claim.verdict for name, claim in positions_and_memory(monkeypatch).items()} == dict.fromkeys(
        NAMES, "holds"
    )


@pytest.mark.parametrize(
    ("alibi", "sinusoidal"),
    [([8.0, 8.1, 8.5, 8.3], [9.0, 14.0, 16.0, 20.0]), ([8.0, 8.0, 8.0, 8.0], [9.0, 14.0, 19.0, 17.0])],
)
def test_alibi_needs_every_length_and_sinusoids_the_longest(
    alibi: list[float], sinusoidal: list[float], monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(alibi_longer_rows, "read_text", lambda where: random_text())
    monkeypatch.setattr(alibi_longer_rows, "perplexities", lambda name, *_: alibi if name == "ALiBi" else sinusoidal)
    assert alibi_longer_rows.claim((0, 1)).verdict == "does not hold"


def test_perplexities_are_those_of_each_length_and_of_equal_training(monkeypatch: MonkeyPatch) -> None:
    calls: list[int] = []

    def evaluate(model: Any, part: SplitTokens, length: int, limit: int) -> Any:
        calls.append(length)
        return Bits(length / 64)

    monkeypatch.setattr(alibi_longer_rows, "SIZES", {"d": 16, "depth": 1, "heads": 2})
    monkeypatch.setattr(alibi_longer_rows, "evaluate", evaluate)
    assert alibi_longer_rows.perplexities("ALiBi", 0, 1, random_text()) == [2.0, 4.0, 16.0, 256.0]
    assert calls == [64, 128, 256, 512]


class Bits:
    def __init__(self, value: float):
        self.value = value


@pytest.mark.prove
def test_alibi_does_not_hold_of_sinusoids_in_its_place(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(
        alibi_longer_rows.MODELS, "ALiBi", lambda: gpt(**alibi_longer_rows.SIZES, position="sinusoidal")
    )
    assert alibi_longer_rows.claim((0, 1)).verdict == "does not hold"


@pytest.mark.parametrize("fault", ["a dear memory", "a memory of earlier positions"])
def test_a_memory_that_is_dear_or_wrong_is_found(fault: str, monkeypatch: MonkeyPatch) -> None:
    quick_evaluation(monkeypatch)
    if fault == "a dear memory":  # a whole window for each token of a segment
        model = gpt(**transformer_xl_evaluation.SIZES)
        monkeypatch.setattr(
            transformer_xl_evaluation,
            "segment_call",
            lambda length: lambda: model.logits(torch.zeros(length, length, dtype=torch.long), last=True),
        )
    else:
        started = LM.start

        def restarted(self: LM, *sizes: Any, **named: Any) -> Any:
            state = started(self, *sizes, **named)
            return state._replace(now=state.now + 1)  # the first token stands at position 1

        monkeypatch.setattr(LM, "start", restarted)
    claim = transformer_xl_evaluation.claim((0, 1))  # type: ignore[call-arg]
    assert claim.verdict == "does not hold"
    exact = next(measure for measure in claim.measures if "dense" in measure.quantity)
    assert exact.verdict == ("holds" if fault == "a dear memory" else "does not hold")


def test_operations_of_a_window_are_those_of_its_maps_and_allowed_pairs(monkeypatch: MonkeyPatch) -> None:
    d, length = 16, 12
    monkeypatch.setattr(transformer_xl_evaluation, "SIZES", {"d": d, "depth": 2, "heads": 2})
    pairs = length * (length + 1) // 2
    maps, attention, head = 2 * 12 * d * d * length, 2 * 2 * d * pairs, 2 * 256 * d
    counted = transformer_xl_evaluation.operations(transformer_xl_evaluation.window_call(length))
    assert counted == pytest.approx(2 * (maps + attention) + head, rel=1e-3)


def test_each_token_of_a_segment_reads_as_many_keys_as_the_last_of_a_window() -> None:
    for length in (8, 16):
        model = transformer_xl(d=16, depth=1, heads=2, segment=length, memory=length, same_length=True)
        (pattern,) = (part.mechanism.pattern for part in model.modules() if isinstance(part, Attention))
        assert set(pattern.matrix(2 * length)[length:].sum(1).tolist()) == {length}
        assert int(Causal().matrix(length)[-1].sum()) == length


@pytest.mark.parametrize("fault", ["absolute positions in both", "nothing learnt"])
def test_relative_positions_must_lose_less_of_what_both_have_learnt(fault: str, monkeypatch: MonkeyPatch) -> None:
    def accuracies(position: str, *_: Any) -> list[float]:
        if fault == "nothing learnt":
            return [0.2, 0.2, 0.2, *([0.2] * 3 if position == "relative" else [0.1] * 3)]
        return measured_accuracies("sinusoidal")

    monkeypatch.setattr(shaw_longer_words, "accuracies", accuracies)
    assert shaw_longer_words.claim((0, 1)).verdict == "does not hold"


def test_words_of_training_are_reversed_and_at_most_as_long_as_said() -> None:
    lengths = set()
    for step in range(60):
        source, target = shaw_longer_words.draw_batch(step, 3)
        assert torch.equal(source[:, :-1].flip(1), target.tokens) and bool((source[:, -1] == ord("|")).all())
        lengths.add(target.tokens.shape[1])
    assert min(lengths) == shaw_longer_words.SHORTEST and max(lengths) == shaw_longer_words.LONGEST


def test_accuracies_are_measured_for_each_length_of_words(monkeypatch: MonkeyPatch) -> None:
    small = {**shaw_longer_words.SIZES, "d": 8, "depth": 1, "heads": 2, "hidden": 8}
    monkeypatch.setattr(shaw_longer_words, "SIZES", small)
    monkeypatch.setattr(shaw_longer_words, "TRIED", 8)
    for position in shaw_longer_words.MODELS:
        shares = shaw_longer_words.accuracies(position, 0, 1)
        assert len(shares) == len(shaw_longer_words.LENGTHS) and all(0 <= share < 0.6 for share in shares)


@pytest.mark.prove
def test_shaw_does_not_hold_of_sinusoids_in_its_place(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(shaw_longer_words.MODELS, "relative", shaw_longer_words.MODELS["sinusoidal"])
    assert shaw_longer_words.claim((0, 1), steps=20).verdict == "does not hold"


def test_a_memory_that_is_ignored_saves_no_bits(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_xl_memory, "read_text", lambda where: random_text())
    monkeypatch.setattr(transformer_xl_memory, "SIZES", {"d": 8, "depth": 1, "heads": 2, "segment": 16})
    monkeypatch.setattr(transformer_xl_memory, "JUDGED", 200)
    own, other = (transformer_xl_memory.measure_bits(memory, 0, 1, random_text()) for memory in (64, 0))
    assert own.parameters == other.parameters and own.segments != other.segments
    assert own.windows == pytest.approx(other.windows, abs=1e-3)  # a window of one segment has no memory
    monkeypatch.setattr(transformer_xl_memory, "MEMORIES", {"with memory": 0, "without memory": 0})
    assert transformer_xl_memory.claim((0, 1), steps=1).verdict == "does not hold"


@pytest.mark.parametrize("memory", [0, 3, 8])
def test_tokens_that_layers_read_back_are_those_of_the_pattern_s_closure(memory: int) -> None:
    model = transformer_xl(d=16, depth=2, heads=2, segment=4, memory=memory)
    patterns = [part.mechanism.pattern for part in model.modules() if isinstance(part, Attention)]
    reached = torch.eye(24)
    for pattern in patterns:
        reached = (reached @ pattern.matrix(24).float()).clamp_max(1)
    earliest = [min(reached[i].nonzero()[:, 0].tolist()) for i in range(24)]
    expected = min(i - earliest[i] for i in range(20, 24))
    assert expected >= 2 * memory
    assert transformer_xl_copy.least_reach(model, 4, 6) == expected


@pytest.mark.parametrize("fault", ["a memory of one layer", "no memory", "a vanilla model that reads on"])
def test_copies_must_reach_through_all_layers_of_the_memory_alone(fault: str, monkeypatch: MonkeyPatch) -> None:
    def copies(memory: int, gap: int, *_: Any) -> float:
        if fault == "a vanilla model that reads on":
            return 1.0
        return 1.0 if fault == "a memory of one layer" and gap <= memory else 0.125

    monkeypatch.setattr(transformer_xl_copy, "train_on_copies", copies)
    assert transformer_xl_copy.claim((0, 1)).verdict == "does not hold"


def test_copies_are_tested_after_a_training(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_xl_copy, "SIZES", {"d": 8, "depth": 1, "heads": 2, "segment": 4})
    monkeypatch.setattr(transformer_xl_copy, "TRIED", 16)
    assert 0 < transformer_xl_copy.train_on_copies(4, 5, 0, 1) < 0.4
