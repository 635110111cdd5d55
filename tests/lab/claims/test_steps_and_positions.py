"""Claims about decoding steps, stored memory and shifted positions: what they measure, by formulas and loops."""

import cmath
from functools import partial
from typing import Any

import pytest
import torch

from kinformer.core.discover import modules
from kinformer.lab.claims import linear_transformer_steps, multi_query_cache, reformer_memory, rope_shift
from kinformer.lab.claims.support.decoding_steps import measure_steps
from kinformer.lab.claims.support.verdict import Claim
from kinformer.lab.cost.saved_bytes import saved_bytes
from kinformer.members.gpt import gpt
from kinformer.members.multi_query import multi_query
from kinformer.members.reformer import reformer
from kinformer.models.lm import LM

SMALL: dict[str, dict[str, Any]] = {  # sizes at which each claim holds
    "linear_transformer_steps": {"lengths": (4, 16)},
    "multi_query_cache": {"lengths": (16, 8, 400), "batch": 16},
    "reformer_memory": {"depths": (2, 4)},
    "rope_shift": {"steps": 5},
}
CHEAP = [name for name in SMALL if name != "rope_shift"]  # without a training


def measure(name: str) -> Claim:
    claim: Claim = modules("claims")[name].claim((0, 1), **SMALL[name])
    return claim


def steps_and_positions() -> dict[str, Claim]:
    """Each claim of this file at small sizes."""
    return {name: measure(name) for name in SMALL}


@pytest.mark.parametrize("name", SMALL)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def storing(**sizes: Any) -> LM:
        return reformer_memory.plain(reformer(**sizes))

    def absolute(position: str, **sizes: Any) -> LM:
        return gpt(position="sinusoidal", **sizes)

    monkeypatch.setattr(linear_transformer_steps, "linear_transformer", gpt)
    monkeypatch.setattr(multi_query_cache, "multi_query", partial(multi_query, key_heads=multi_query_cache.HEADS))
    monkeypatch.setattr(reformer_memory, "reformer", storing)
    monkeypatch.setattr(rope_shift, "gpt", absolute)
    monkeypatch.setattr(rope_shift, "fit", lambda *_, **__: None)
    assert measure(name).verdict == "does not hold"


@pytest.mark.parametrize("name", CHEAP)
def test_the_claim_holds_without_it(name: str) -> None:
    assert measure(name).verdict == "holds"


def test_the_state_of_a_step_grows_by_the_keys_and_values_of_its_tokens() -> None:
    sizes: dict[str, Any] = {"d": 16, "depth": 3, "heads": 2, "vocab": 11}
    costs = measure_steps({"gpt": lambda: gpt(**sizes)}, (0,), (5, 12), 11, batch=2)
    (short, long), (less, more) = costs.state_bytes["gpt"][0], costs.work["gpt"][0]
    a_token = 3 * (2 * 16 * 4 + 8)  # in each layer keys and values in float32, and a position
    assert long - short == 2 * 7 * a_token
    assert more > less
    assert costs.errors["gpt"][0] < 1e-12


def test_the_bound_of_rotary_products_is_the_mean_of_partial_sums() -> None:
    distances = torch.tensor([0, 1, 7, 50])
    for distance, bound in zip(distances.tolist(), rope_shift.decay_bound(8, distances).tolist(), strict=True):
        turns = [cmath.exp(1j * distance * 10000 ** (-2 * n / 8)) for n in range(4)]
        assert bound == pytest.approx(sum(abs(sum(turns[:n])) for n in range(1, 5)) / 4)


def test_a_shift_changes_what_absolute_positions_say() -> None:
    tokens = torch.randint(11, (2, 9))
    rotary, absolute = (gpt(d=16, depth=1, heads=2, vocab=11, position=name) for name in ("rotary", "sinusoidal"))
    assert rope_shift.shift_error(rotary, tokens, 0) == 0
    assert rope_shift.shift_error(rotary.double(), tokens, 1000) < 1e-10
    assert rope_shift.shift_error(absolute, tokens, 1000) > 1e-4


def test_a_plain_copy_stores_every_layer_and_has_the_same_gradients() -> None:
    model = reformer(d=16, depth=3, heads=2, buckets=4, local=4, length=16, vocab=11, dropout=0.2)
    tokens = torch.randint(11, (2, 12))
    assert saved_bytes(reformer_memory.plain(model), tokens) > 2 * saved_bytes(model, tokens)
    assert reformer_memory.gradient_error(model, tokens, 0) < 1e-10
    stored, other = (reformer_memory.gradients(model, tokens, seed) for seed in (0, 1))
    assert any(not torch.equal(stored[name], other[name]) for name in stored), "dropout has a seed"
