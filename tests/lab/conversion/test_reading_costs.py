"""Costs of long rows: the memory of each length is that of its own state, and no longer one exists."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import kinformer as kf
from kinformer.core.state import leaves
from kinformer.lab.conversion import reading_costs as module
from kinformer.lab.conversion.reading_costs import reading_costs, state_bytes

LENGTHS, OTHERS = (24, 48, 96), 10**9


class Accounts:
    """Accounts of the memory that the states of a model take, in place of the system's.

    Other models take OTHERS bytes, and reading takes none.

    model: the model.
    """

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.tensors, self.peak, self.can_restart = list[int](), dict[int, Any](), 0, True
        self.weights = sum(p.numel() * p.element_size() for p in model.parameters())
        start, logits = model.start, model.logits

        def counted_start(batch: int, length: int, **keywords: Any) -> Any:
            state = start(batch, length, **keywords)
            if keywords.get("device") != torch.device("meta"):
                self.started.append(length)
                self.count(state)
            return state

        def counted_logits(tokens: Tensor, state: Any, **keywords: Any) -> Any:
            out = logits(tokens, state, **keywords)
            self.count(out.state)
            return out

        object.__setattr__(model, "start", counted_start)
        object.__setattr__(model, "logits", counted_logits)
        monkeypatch.setattr(module, "resident", lambda device: self.now())
        monkeypatch.setattr(module, "restart_peak", self.restart)
        monkeypatch.setattr(module, "peak_resident", lambda device: self.peak)

    def count(self, state: Any) -> None:
        for _, leaf in leaves(state):
            storage = leaf.untyped_storage()
            self.tensors[storage.data_ptr()] = weakref.ref(leaf), storage.nbytes()
        self.peak = max(self.peak, self.now())

    def now(self) -> int:
        return OTHERS + self.weights + sum(size for tensor, size in self.tensors.values() if tensor() is not None)

    def restart(self, device: torch.device) -> bool:
        self.peak = self.now()
        return self.can_restart


def llama(pattern: str | None = None) -> Any:
    torch.manual_seed(0)
    more = {} if pattern is None else {"pattern": pattern}
    return kf.llama(d=16, depth=2, heads=4, key_heads=2, vocab=19, **more)


def test_the_memory_of_a_length_is_that_of_the_weights_and_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    expected = [state_bytes(model.start(1, length)) for length in LENGTHS]
    accounts, fractions = Accounts(model, monkeypatch), list[float]()
    costs = reading_costs(model, 60.0, LENGTHS, fractions.append)
    assert [cost.state for cost in costs] == expected and len(set(expected)) == 3
    for cost, size in zip(costs, expected, strict=True):
        # positions are a new tensor after each token, so two of them exist for a moment
        assert accounts.weights + size <= cost.memory < accounts.weights + 1.1 * size, cost
    assert accounts.started == [module.STEPS, *LENGTHS]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0


def test_no_state_is_allocated_for_a_length_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    accounts = Accounts(model, monkeypatch)
    costs = reading_costs(model, 0.0, LENGTHS)
    assert accounts.started == [module.STEPS, LENGTHS[0]]
    assert costs[0].reading and costs[0].writing and costs[0].memory
    for cost in costs[1:]:
        assert cost.state > 0 and (cost.reading, cost.writing, cost.memory) == (None, None, None)


def test_a_state_of_constant_size_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = llama("Causal() & Band(7)"), 0
    accounts = Accounts(model, monkeypatch)
    logits = model.logits

    def counted(tokens: Tensor, *arguments: Any, **keywords: Any) -> Any:
        nonlocal read
        read += tokens.shape[1]
        return logits(tokens, *arguments, **keywords)

    object.__setattr__(model, "logits", counted)
    costs = reading_costs(model, 60.0, LENGTHS)
    assert len({cost.state for cost in costs}) == 1 and accounts.started == [module.STEPS, LENGTHS[0]]
    assert read == module.STEPS + LENGTHS[-1] and all(cost.writing for cost in costs)


def test_there_is_no_memory_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    Accounts(model, monkeypatch).can_restart = False
    costs = reading_costs(model, 60.0, LENGTHS)
    assert all(cost.memory is None and cost.writing for cost in costs)


def test_a_model_reads_the_row_once_in_order_for_each_length() -> None:
    model, calls = llama(), list[tuple[int, list[int]]]()
    logits, start, row = model.logits, model.start, model.sample(1, LENGTHS[-1], 0)[0].tolist()

    def counted_start(batch: int, length: int, **keywords: Any) -> Any:
        calls.append((length, []))
        return start(batch, length, **keywords)

    def counted(tokens: Tensor, *arguments: Any, **keywords: Any) -> Any:
        calls[-1][1].extend(tokens[0].tolist())
        return logits(tokens, *arguments, **keywords)

    object.__setattr__(model, "start", counted_start)
    object.__setattr__(model, "logits", counted)
    reading_costs(model, 60.0, LENGTHS)
    assert [call for call in calls if call[1]][1:] == [(length, row[:length]) for length in LENGTHS]


def test_a_state_that_the_meta_device_cannot_make_is_measured_all_the_same() -> None:
    model = llama()
    expected, start = [state_bytes(model.start(1, length)) for length in LENGTHS], model.start

    def fail_on_meta(batch: int, length: int, **keywords: Any) -> Any:
        if keywords:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        return start(batch, length)

    object.__setattr__(model, "start", fail_on_meta)
    assert [cost.state for cost in reading_costs(model, 60.0, LENGTHS)] == expected
