"""Activation checkpointing: the same gradients for every member, and less kept."""

import inspect
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.discover import members
from kinformer.core.model import Model
from kinformer.core.state import detach
from kinformer.lab.train.activation_checkpointing import blocks, checkpointed
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.members.gpt import gpt
from kinformer.nn.depth.reversible import Reversible
from tests.lab.train import tiny

SIZES = {"d": 16, "depth": 2, "heads": 2, "dropout": 0.2}
WITHOUT = {"act_rnn", "lstm", "star_classifier", "star_transformer"}  # token to token; rounds of a centre and a ring


def small(name: str, **sizes: Any) -> Model:
    function = members()[name]
    parameters = inspect.signature(function).parameters
    keywords = {key: value for key, value in (SIZES | sizes).items() if key in parameters}
    return function.rebuild(**keywords).train()  # type: ignore[attr-defined]  # whether all of them count or not


def gradients(model: Model, recompute: bool, rows: int = 2, length: int = 20) -> tuple[dict[str, Tensor], int]:
    """Of a second chunk where a state is carried; and the bytes that are kept for the backward of it."""
    saved_bytes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved_bytes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(1)
    model.zero_grad()
    first, second = (model.sample(rows, length, seed) for seed in (0, 1))
    state = detach(model(first, model.start(rows, 2 * length)).state) if model.lanes else None
    with checkpointed(model) if recompute else nullcontext():
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(second, state, 0.5)
        loss.total.backward()
    result = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return result, sum(saved_bytes.values())


EVERY = sorted(set(members()) - WITHOUT)
LOWERED = ("gpt", "sac_encoder")  # autocast makes some of the numbers of the second wider than others
LONG = {member: [pytest.mark.prove] * (n % 3 > 0) for n, member in enumerate(EVERY)}


@pytest.mark.parametrize("name", [pytest.param(member, marks=marks) for member, marks in LONG.items()])
def test_gradients_are_the_same(name: str) -> None:
    model = small(name)
    assert blocks(model) or any(isinstance(part, Reversible) for part in model.modules())
    (whole, _), (recomputed, _) = gradients(model, False), gradients(model, True)
    assert whole.keys() == recomputed.keys() and all(torch.equal(whole[name], recomputed[name]) for name in whole)
    assert all("forward" not in vars(block) for block in model.modules())  # as it was


@pytest.mark.parametrize(
    "name", [pytest.param(member, marks=[pytest.mark.prove] * (member not in LOWERED)) for member in EVERY]
)
def test_gradients_are_the_same_in_bf16(name: str) -> None:
    model = small(name)
    with torch.autocast("cpu", torch.bfloat16):
        (whole, _), (recomputed, _) = gradients(model, False), gradients(model, True)
    assert whole.keys() == recomputed.keys() and all(torch.equal(whole[name], recomputed[name]) for name in whole)
    assert all(bool(value.isfinite().all()) for value in whole.values())


@pytest.mark.parametrize("name", ["gpt", "transformer", "transformer_xl", "universal_transformer", "longformer"])
def test_little_is_kept(name: str) -> None:
    model = small(name, depth=4)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    (_, whole), (_, recomputed) = gradients(model, False, 4, 64), gradients(model, True, 4, 64)
    assert recomputed - weights < (whole - weights) / 3


def test_what_has_no_blocks_says_so() -> None:
    for name in WITHOUT:
        with pytest.warns(UserWarning, match="has no blocks to recompute"), checkpointed(small(name)):
            pass


def test_a_training_is_the_same_with_it() -> None:
    def trained(recompute: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = gpt(**SIZES, length=8)
        train(model, tiny.text(), StepBudget(3), Settings(batch=2, length=8, valid_bytes=50, checkpointing=recompute))
        return model.state_dict()

    first, other = trained(False), trained(True)
    assert all(torch.equal(first[name], other[name]) for name in first)
