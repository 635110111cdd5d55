"""Claims about relative positions, distances and memories of segments, at small sizes and with planted faults."""

from typing import Any

import pytest
import torch
from pytest import MonkeyPatch

from kinformer.core.discover import modules
from kinformer.lab.claims import alibi_longer_rows
from kinformer.lab.claims.support.verdict import Claim
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.data.text import TextData
from kinformer.members.gpt import gpt


def random_text(count: int = 1200) -> TextData:
    tokens = torch.randint(256, (count,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    return TextData("random", tokens, tokens, tokens)


def measured_perplexities(name: str, *_: Any) -> list[float]:
    return [8.0, 8.1, 8.2, 8.3] if name == "ALiBi" else [9.0, 14.0, 16.0, 20.0]


def positions_and_memory(monkeypatch: MonkeyPatch) -> dict[str, Claim]:
    """Each claim of this file, with measurements in place of trainings."""
    monkeypatch.setattr(alibi_longer_rows, "read_text", lambda where: random_text())
    monkeypatch.setattr(alibi_longer_rows, "perplexities", measured_perplexities)
    return {name: modules("claims")[name].claim((0, 1)) for name in NAMES}


NAMES = ("alibi_longer_rows",)


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
