"""Numbers that go with kept keys are handed over in the precision of the keys, for every mechanism that has any."""

from typing import Any

import pytest
import torch

from kinformer.core import key_value_mechanism
from kinformer.core import kv_cache as cache
from kinformer.core.heads import HeadSizes, Keys, StateSpec
from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.laws.support.queries_and_keys import ROWS, TOKENS, WIDTH, draw_queries_and_keys
from kinformer.nn.mechanisms import shortened
from tests.discovered import discovered

SIZES = HeadSizes(2, 2, 2, WIDTH, WIDTH)
MADE = [(example.name, example.make) for example in discovered("mechanisms")]


def read_by(mechanism: Any, monkeypatch: pytest.MonkeyPatch) -> list[Keys]:
    """The keys that a step in bfloat16 reads from a state in float32, wherever a part asks its cache for them."""
    recorded: list[Keys] = []
    honest = cache.update_cache

    def noted(*arguments: Any) -> Any:
        keys_out = honest(*arguments)
        recorded.append(keys_out[0])
        return keys_out

    for module in (key_value_mechanism, shortened):
        monkeypatch.setattr(module, "update_cache", noted)
    queries, keys = draw_queries_and_keys(mechanism)
    state = mechanism.start(StateSpec(ROWS, TOKENS, torch.float32, torch.device("cpu")), SIZES)
    for at in (slice(0, TOKENS - 1), slice(TOKENS - 1, None)):
        q, k = queries.cut(at), keys.cut(at)
        q = q._replace(q=q.q.bfloat16(), extras={name: side.bfloat16() for name, side in q.extras.items()})
        extras = {name: side.bfloat16() for name, side in k.extras.items()}
        k = k._replace(k=k.k.bfloat16(), v=k.v.bfloat16(), extras=extras)
        recorded.clear()
        with torch.no_grad():
            ctx = Context(q.pos[:, 0], run=True, full=True, labels=q.labels)
            state = mechanism(q, k, state, ctx).state
    return recorded


def test_all_numbers_of_kept_keys_have_the_precision_of_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []
    for name, make in MADE:
        mechanism = make()
        if not isinstance(mechanism, Mechanism) or not mechanism.key_extras(SIZES):
            continue
        try:
            recorded = read_by(mechanism.bfloat16().eval(), monkeypatch)
        except NoState:
            continue
        finally:
            monkeypatch.undo()
        wrong = [
            keys for keys in recorded for x in (keys.k, keys.v, *keys.extras.values()) if x.dtype != torch.bfloat16
        ]
        assert not wrong, f"{name} reads kept numbers of another precision"
        judged += [name] * any(keys.extras for keys in recorded)
    assert len(judged) >= 5, judged
