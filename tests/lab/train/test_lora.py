"""LoRA: against loops over its equation, merged wherever a model is saved, and resumed bit for bit."""

import copy
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import kinformer as kf
from kinformer.checkpoint.checkpoint import load
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.core.model import Model
from kinformer.lab.train import loop
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.lora import LoRA
from kinformer.lab.train.lora_adapters import adapted, adapter_tensors, merged, restore_adapters
from kinformer.lab.train.lora_linear import LoRALinear
from kinformer.lab.train.progress import ProgressDisplay
from kinformer.lab.train.settings import ADAPTING, FINE_TUNING, Settings
from kinformer.lab.train.start_record import ResumeError
from kinformer.lab.train.train import train
from kinformer.members.gpt import gpt
from kinformer.members.llama import llama
from kinformer.members.transformer_xl import transformer_xl
from tests.lab.train.runs import SMALL, Killed, KilledAt, lines, noise, same
from tests.unhooked import unhooked

pytestmark = pytest.mark.usefixtures("no_waiting")
ATTENTION = "body.layers.{}.layers.0.{}.weight"


def small(dropout: float = 0.0) -> Model:
    torch.manual_seed(0)
    return gpt(d=16, depth=2, heads=2, length=12, dropout=dropout)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def randomise(model: nn.Module) -> None:
    """Give each change of a model numbers, as training does."""
    for name, p in model.named_parameters():
        if name.endswith("lora_b"):
            p.data.normal_(generator=torch.Generator().manual_seed(len(name)))


def test_a_linear_map_computes_the_equation() -> None:
    torch.manual_seed(0)
    linear, widths, rank, scale = nn.Linear(5, 6).double(), (3, 1, 2), 2, 0.7
    LoRALinear.adapt(linear, rank, scale, widths, torch.Generator().manual_seed(1))
    assert isinstance(linear, LoRALinear)
    linear.lora_b.data.normal_()
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    expected = torch.empty(2, 3, 6, dtype=torch.float64)
    map_of_row = [0, 0, 0, 1, 2, 2]
    matrix = linear.base.detach().clone()
    for row in range(6):
        for column in range(5):
            for r in range(rank):
                a = linear.lora_a[map_of_row[row] * rank + r, column]
                matrix[row, column] += scale * float(linear.lora_b[row, r].detach()) * float(a.detach())
    for n in range(2):
        for t in range(3):
            for row in range(6):
                y = float(linear.bias[row].detach())
                for column in range(5):
                    y += float(matrix[row, column]) * float(x[n, t, column])
                expected[n, t, row] = y
    torch.testing.assert_close(linear(x), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(linear.weight, matrix, rtol=1e-12, atol=1e-12)


def test_gradients_equal_those_of_the_merged_matrix() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(5, 6, bias=False).double()
    LoRALinear.adapt(linear, 2, 1.5, (2, 4), torch.Generator())
    assert isinstance(linear, LoRALinear)
    linear.lora_b.data.normal_()
    x, weights = torch.randn(3, 5, dtype=torch.float64), [linear.lora_a, linear.lora_b]
    by_call = torch.autograd.grad(linear(x).sin().sum(), weights)
    by_matrix = torch.autograd.grad((x @ linear.weight.T).sin().sum(), weights)
    for one, other in zip(by_call, by_matrix, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layers", ["attention", "all"])
def test_the_first_step_computes_the_model_itself(layers: Any) -> None:
    model = small()
    tokens, before = model.sample(2, 12, 0), values(model)
    y = model.logits(tokens).y
    with adapted(model, LoRA(2, layers=layers), 0):
        assert torch.equal(model.logits(tokens).y, y)
    assert type(model.body.layers[0].layers[0].projection.qkv) is nn.Linear
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())


def test_only_changes_of_the_rank_are_trained() -> None:
    model, lora = small().double(), LoRA(2, train=("*.norms.0.*", "body.layers.1.layers.1.up.bias"))
    names = {name for name in values(model) if ".norms.0." in name} | {"body.layers.1.layers.1.up.bias"}
    before = values(model)
    train(model, noise(), StepBudget(3), replace(SMALL, lora=lora))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    matrices = {ATTENTION.format(n, part) for n in range(2) for part in ("projection.qkv", "aggregation.linear")}
    assert len(names) > 2 and changed == matrices | names
    for name in matrices:
        for change in (model.state_dict()[name] - before[name]).split(16):  # queries, keys and values
            assert torch.linalg.matrix_rank(change, rtol=1e-9) == 2


def test_all_layers_are_adapted_but_no_tied_head() -> None:
    model = small()
    plan = LoRA(1, layers="all").plan(model)
    assert {name.split(".")[-1] for name in plan.linears} == {"qkv", "linear", "up", "down"}
    assert plan.trained == 2 * (3 * 16 + 48 + 16 + 16 + 2 * (16 + 64))
    assert f"{plan.trained:,} weights" in str(plan) and f"{sum(p.numel() for p in model.parameters()):,}" in str(plan)
    with adapted(model, LoRA(1, layers="all"), 0):
        assert plan.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_a_weight_that_is_trained_in_full_gets_no_adapter() -> None:
    model, name = small(), ATTENTION.format(0, "projection.qkv")
    with adapted(model, LoRA(1, train=(name,)), 0):
        assert model.get_parameter(name).requires_grad
        assert sum(isinstance(part, LoRALinear) for part in model.modules()) == 3


def test_frozen_weights_stay_frozen() -> None:
    model, frozen = small(), ATTENTION.format(0, "projection.qkv")
    model.get_parameter(frozen).requires_grad_(False)
    before = values(model)
    train(model, noise(), StepBudget(2), replace(SMALL, lora=LoRA(2)))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    others = {ATTENTION.format(n, part) for n in range(2) for part in ("projection.qkv", "aggregation.linear")}
    assert changed == others - {frozen} and not model.get_parameter(frozen).requires_grad
    model.requires_grad_(False)
    for lora in (LoRA(2), LoRA(2, layers="all")):
        with pytest.raises(ValueError, match="got frozen weights in its .*layers, expected") as error:
            kf.fit(model, noise(), steps=1, lora=lora, batch=3, length=12, progress=False)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"cannot train '\*.norms.0.\*': got frozen weights") as error:
        LoRA(2, train=("*.norms.0.*",)).plan(model)
    assert "\n" not in str(error.value)


def test_weights_of_a_frozen_model_that_are_not_frozen_are_trained_in_full() -> None:
    model, name = small(), "body.layers.1.layers.1.up.bias"
    model.requires_grad_(False)
    model.get_parameter(name).requires_grad_(True)
    before = values(model)
    train(model, noise(), StepBudget(2), replace(SMALL, lora=LoRA(2, train=("*.up.bias",))))
    assert {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])} == {name}
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [name]


def test_a_knn_lm_is_not_trained() -> None:
    model = kf.convert(llama(d=16, depth=1, heads=2, key_heads=1), "knn_lm")
    before = values(model)
    with pytest.raises(ValueError, match="got frozen weights"):
        kf.fit(model, noise(), steps=1, lora=2, batch=3, length=12, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("layers", ["attention", "all"])
def test_maps_inside_a_mechanism_are_not_adapted(layers: Any) -> None:
    model = transformer_xl(d=16, depth=2, heads=2)
    inside = [name for name, part in model.named_modules() if ".mechanism." in name and type(part) is nn.Linear]
    names = set(LoRA(1, layers=layers).plan(model).linears)
    kinds = {"qkv", "linear", *(("up", "down") if layers == "all" else ())}
    assert inside and names.isdisjoint(inside) and {name.rpartition(".")[2] for name in names} == kinds


@pytest.mark.parametrize("count", range(3))
@pytest.mark.parametrize("allocation", ["torch.empty", "torch.Tensor.new_zeros"])
def test_a_failure_half_way_leaves_the_model_as_it_was(
    allocation: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small()
    model.get_parameter("embedding.weight").requires_grad_(False)
    before, owner, name = values(model), *allocation.rsplit(".", 1)
    flags = [p.requires_grad for p in model.parameters()]
    module: Any = torch if owner == "torch" else Tensor
    whole, calls = getattr(module, name), []

    def fail(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        if len(calls) > count:
            raise MemoryError("no memory")
        return whole(*arguments, **keywords)

    with monkeypatch.context() as patch, pytest.raises(MemoryError), ExitStack() as stack:
        patch.setattr(module, name, fail)
        stack.enter_context(adapted(model, LoRA(2), 0))
    assert len(calls) == count + 1 and not any(isinstance(part, LoRALinear) for part in model.modules())
    assert model.state_dict().keys() == before.keys() and flags == [p.requires_grad for p in model.parameters()]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_reads_rows_of_the_matrix_sees_the_change() -> None:
    model = llama(d=16, depth=1, heads=4, key_heads=2, vocab=11)
    qkv = model.body.layers[0].layers[0].projection
    x, pos = torch.randn(1, 5, 16), torch.arange(5)[None]
    with adapted(model, LoRA(3), 0):
        randomise(model)
        whole, apart = qkv.queries_and_keys(x, pos), (qkv.queries(x, pos), qkv.keys(x, pos))
        torch.testing.assert_close(whole[0].q, apart[0].q)
        torch.testing.assert_close(whole[1].v, apart[1].v)
        inside = model.logits(model.sample(1, 9, 0)).y
        with merged(model):
            assert not any("lora" in name for name in model.state_dict())
            torch.testing.assert_close(model.logits(model.sample(1, 9, 0)).y, inside)
        assert torch.equal(model.logits(model.sample(1, 9, 0)).y, inside)
        copied = copy.deepcopy(model)
        assert torch.equal(copied.logits(model.sample(1, 9, 0)).y, inside)
    torch.testing.assert_close(model.logits(model.sample(1, 9, 0)).y, inside)
    assert any(isinstance(part, LoRALinear) for part in copied.modules())


def compiled_differences() -> list[float]:
    """The largest differences of the loss and of its gradients between a compiled model and the model."""
    model = llama(d=16, depth=1, heads=2, key_heads=1, vocab=11)
    tokens, results = model.sample(2, 9, 0), []
    with adapted(model, LoRA(2), 0):
        randomise(model)
        for call in (model, torch.compile(model, backend="aot_eager")):
            model.zero_grad()
            loss = call(tokens).total
            loss.backward()
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            assert len(gradients) == 4 and all(bool(gradient.any()) for gradient in gradients)
            results.append([loss.detach(), *gradients])
    return [float((one - other).abs().max()) for one, other in zip(*results, strict=True)]


def test_a_compiled_model_computes_the_same() -> None:
    assert max(unhooked(f"{__name__}:{compiled_differences.__name__}")) < 1e-5


def test_every_saved_model_is_a_plain_one(tmp_path: Path) -> None:
    model = small()
    names = set(model.state_dict())
    kf.fit(model, noise(), steps=4, lora=2, lr=0.1, batch=3, length=12, out=tmp_path, measures=2, progress=False)
    tokens = model.sample(2, 12, 0)
    for folder in (tmp_path, tmp_path / "best"):
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            assert set(file.keys()) <= names
    assert same(load(tmp_path), model) and torch.equal(load(tmp_path).logits(tokens).y, model.eval().logits(tokens).y)
    assert not torch.equal(small().logits(tokens).y, model.logits(tokens).y)


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bf16", "checkpointing": True}, {"lora": LoRA(3, 1.0, "all", ("embedding.weight",))}]
)
def test_it_goes_on_to_the_same_weights_and_lines(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "EVERY", 0.0)
    text, settings = noise(), replace(SMALL, lora=2, **changes) if "lora" not in changes else replace(SMALL, **changes)

    def trained(folder: Path, *stops: int) -> Model:
        for stop in (*stops, None):
            model = small(dropout=0.2)
            with nullcontext() if stop is None else pytest.raises(Killed):
                show = ProgressDisplay() if stop is None else KilledAt(stop)
                train(model, text, StepBudget(6), settings, folder=folder, show=show, resume=stop != (*stops, None)[0])
        return model

    whole, parts = trained(tmp_path / "whole"), trained(tmp_path / "parts", 2, 5)
    assert same(parts, whole) and lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert same(load(tmp_path / "parts"), load(tmp_path / "whole")) and not same(whole, small(dropout=0.2))


def test_a_run_resumes_only_with_the_same_adapters(tmp_path: Path) -> None:
    text = noise()
    train(small(), text, StepBudget(2), replace(SMALL, lora=2), folder=tmp_path)
    for settings in (SMALL, replace(SMALL, lora=3), replace(SMALL, lora=LoRA(2, layers="all"))):
        with pytest.raises(ResumeError, match="lora|rank|layers"):
            train(small(), text, StepBudget(4), settings, folder=tmp_path, resume=True)
    model = small()
    with adapted(model, LoRA(2), 0):
        tensors = adapter_tensors(model)
        del tensors[next(name for name in tensors if name.endswith("lora_b"))]
        with pytest.raises(CheckpointError, match="another adapter"):
            restore_adapters(model, tensors)


def test_the_rate_is_higher_than_of_all_weights() -> None:
    assert Settings(lora=4).lr == ADAPTING > FINE_TUNING and Settings(lora=4).fine_tuning().lr == ADAPTING
    assert Settings(lora=LoRA(4), lr=1e-3).lr == 1e-3 and Settings(lora=4).adapters == LoRA(4, alpha=8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LoRA(0), "wrong rank: got 0"),
        (lambda: LoRA(2, alpha=-1.0), "wrong alpha"),
        (lambda: LoRA(2, layers="head"), "wrong layers: got 'head'"),  # type: ignore[arg-type]
        (lambda: Settings(lora=True), "wrong lora: got True"),
        (lambda: LoRA(2, train=("*.nothing",)).plan(small()), "name of no parameter"),
        (lambda: LoRA(2).plan(kf.lstm(d=8, depth=1)), "nothing to adapt"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
