"""Claims about Reformer's hash rounds and its shared queries and keys: what they measure, by loops."""

from typing import Any

import pytest
import torch

from kinformer.lab.claims import reformer_rounds, reformer_shared_qk
from kinformer.lab.claims.support.verdict import Claim
from kinformer.lab.data.text import TextData
from kinformer.lab.tasks.copy import Copy
from kinformer.members.reformer import reformer
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.lsh import LSH
from kinformer.nn.projections.shared_qk import SharedQK


def rounds_by_table(model: Any, rounds: Any, rows: int) -> list[float]:
    return [0.9, 0.97, 0.99, 0.991]


def hashing_and_sharing(monkeypatch: pytest.MonkeyPatch) -> dict[str, Claim]:
    """Each claim of this file, without its trainings."""
    monkeypatch.setattr(reformer_rounds, "train_reformer", lambda *_: None)
    monkeypatch.setattr(reformer_rounds, "accuracy_by_rounds", rounds_by_table)
    monkeypatch.setattr(reformer_shared_qk, "read_text", lambda where: None)
    monkeypatch.setattr(reformer_shared_qk, "train_decoder", lambda form, seed, *_: [(1, 3.0), (2, 2.0 + seed / 1e3)])
    return {"reformer_rounds": reformer_rounds.claim((0, 1)), "reformer_shared_qk": reformer_shared_qk.claim((0, 1))}


def test_claims_hold_of_what_they_describe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {x.verdict for x in hashing_and_sharing(monkeypatch).values()} == {"holds"}


def test_evaluation_uses_the_number_of_rounds_that_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reformer_rounds, "TASK", Copy(4, 4))
    model = reformer(**{**reformer_rounds.SIZES, "d": 8, "heads": 2}, rounds=2, length=9).eval()
    (layer,) = (part for part in model.modules() if isinstance(part, LSH))
    read: list[int] = []
    layer.hash.register_forward_hook(lambda _, inputs, buckets: read.append(buckets.shape[-1]))
    shares = reformer_rounds.accuracy_by_rounds(model, (1, 3, 8), 20)
    assert set(read) == {1, 3, 8} and read == sorted(read) and all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize(
    "shares",
    [
        pytest.param([0.99] * 4, id="rounds without effect"),
        pytest.param([0.9, 0.99, 0.99, 0.97], id="a fall"),
        pytest.param([0.1, 0.2, 0.3, 0.4], id="nothing learned"),
    ],
)
def test_rounds_that_do_not_help_are_seen(shares: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reformer_rounds, "train_reformer", lambda *_: None)
    monkeypatch.setattr(reformer_rounds, "accuracy_by_rounds", lambda *_: shares)
    assert reformer_rounds.claim((0, 1)).verdict == "does not hold"


@pytest.mark.prove
def test_a_reformer_that_evaluates_with_its_training_rounds_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LSH, "eval_rounds", property(lambda self: self.hash.rounds, lambda self, rounds: None))
    monkeypatch.setattr(reformer_rounds, "TESTED", 64)
    assert reformer_rounds.claim((0, 1), steps=250).verdict == "does not hold"


def test_shared_keys_are_their_queries_at_length_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a loop over the first layer: what a token reads, and with which weights."""
    monkeypatch.setattr(reformer_shared_qk, "SIZES", {"d": 8, "depth": 2, "heads": 2, "length": 9, "vocab": 11})
    model = reformer_shared_qk.build_decoder("shared").eval()
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    results: list[Any] = []
    layers[0].mechanism.register_forward_hook(lambda _, inputs, out: results.append((inputs[:2], out.y.y)))
    model.logits(torch.randint(11, (1, 6)))
    ((queries, keys), y) = results[0]
    for head in range(2):
        q, v = queries.q[0, head], keys.v[0, head]
        for i in range(1, 6):
            scores = torch.stack([q[i] @ q[j] / q[j].norm() / 4**0.5 for j in range(i)])
            torch.testing.assert_close(y[0, head, i], scores.softmax(0) @ v[:i])
    assert all(part.projection.matrix("q")[0] is part.projection.matrix("k")[0] for part in layers)
    separate = reformer_shared_qk.build_decoder("separate")
    assert not any(isinstance(part, SharedQK) for part in separate.modules())


def test_shared_keys_that_cost_bits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(form: str, seed: int, *_: Any) -> list[tuple[int, float]]:
        return [(1, 2.0 + seed / 1e3 + 0.05 * (form == "shared"))]

    monkeypatch.setattr(reformer_shared_qk, "read_text", lambda where: None)
    monkeypatch.setattr(reformer_shared_qk, "train_decoder", worse)
    assert reformer_shared_qk.claim((0, 1)).verdict == "does not hold"


def test_a_decoder_with_shared_keys_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reformer_shared_qk, "SIZES", {"d": 8, "depth": 1, "heads": 2, "length": 16})
    monkeypatch.setattr(reformer_shared_qk, "LENGTH", 16)
    tokens = torch.randint(256, (400,), dtype=torch.uint8)
    (*_, (step, bits)) = reformer_shared_qk.train_decoder("shared", 0, 2, TextData("random", tokens, tokens, tokens))
    assert step == 2 and 6 < bits < 12
