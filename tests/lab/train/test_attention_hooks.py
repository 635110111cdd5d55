"""Reads that are observed: the same executors read as without an observer, and each read has the name of its layer."""

import pytest
import torch
from torch import nn

import kinformer as kf
from kinformer.attend import EXECUTORS, attend
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.layer import Context
from kinformer.core.request import Refusal, Request
from kinformer.lab.train.attention_hooks import layers_that_read


class SlowToEstimate:
    """An executor that calls itself the cheapest, and whose estimate takes an hour."""

    def __init__(self) -> None:
        self.estimates = 0

    def estimation_time(self, request: Request) -> float:
        return 3600.0

    def cost(self, request: Request) -> float | Refusal:
        self.estimates += 1
        return 0.0

    def read(self, request: Request) -> AttentionOutput:
        raise AssertionError("another executor reads before this estimate ends")


def test_an_estimate_that_takes_long_is_left_out_while_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, readers = SlowToEstimate(), list[str]()
    monkeypatch.setitem(EXECUTORS, "slow", slow)
    q = torch.randn(1, 2, 4, 8)
    with layers_that_read(nn.Identity(), lambda layer, executor, request: readers.append(executor)):
        attend(q, q, q)
    assert slow.estimates == 0 and readers and "slow" not in readers
    assert EXECUTORS["slow"] is slow


def test_a_layer_that_raises_gives_no_later_read_its_name() -> None:
    attention = kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal()))
    model, layers = nn.ModuleDict({"first": attention}), list[str]()
    x, pos, q = torch.randn(1, 4, 16), torch.arange(4)[None], torch.randn(1, 2, 4, 8)
    with layers_that_read(model, lambda layer, executor, request: layers.append(layer)):
        attention(x, None, Context(pos))
        handle = attention.register_forward_pre_hook(_refuse)
        with pytest.raises(ValueError, match="refused"):
            attention(x, None, Context(pos))
        handle.remove()
        attend(q, q, q)
    assert layers == ["first", ""]


def _refuse(module: nn.Module, args: object) -> None:
    raise ValueError("refused")
