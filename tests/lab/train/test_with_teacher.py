"""A model beside a teacher: its loss, what that trains, and the model that is saved."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kinformer as kf
from kinformer.checkpoint.checkpoint import load
from kinformer.core.model import Model
from kinformer.lab.train import loop
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.lora import LoRA
from kinformer.lab.train.lora_adapters import adapted
from kinformer.lab.train.progress import ProgressDisplay
from kinformer.lab.train.train import train
from kinformer.lab.train.with_teacher import TaughtModel, with_teacher
from kinformer.members.gpt import gpt
from kinformer.members.transformer_xl import transformer_xl
from tests.lab.train.runs import SMALL, Killed, KilledAt, lines, noise, same

pytestmark = pytest.mark.usefixtures("no_waiting")


def small(seed: int, depth: int = 2, dropout: float = 0.0) -> Any:
    torch.manual_seed(seed)
    return gpt(d=16, depth=depth, heads=2, length=12, dropout=dropout)


def states(model: Any, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the outputs of the two layers, computed layer by layer."""
    ctx = kf.Context.of_sequence(tokens)
    x = model.embedding(tokens) * model.scale
    x = x if model.position is None else x + model.position(ctx.pos)
    outputs = []
    for layer in model.body.layers:
        x = layer(x, None, ctx).y
        outputs.append(x)
    return model.head(x if model.body.norm is None else model.body.norm(x)), outputs


def test_the_loss_is_the_sum_of_its_parts() -> None:
    student, teacher = small(0).double(), small(1).double()
    tokens = student.sample(2, 9, 0)
    view = with_teacher(student, teacher, logits=0.5, hidden=0.25, nll=2.0, temperature=3.0)
    loss = view(tokens)
    with torch.no_grad():
        (y, hidden), (taught, targets) = states(student, tokens[:, :-1]), states(teacher, tokens[:, :-1])
    nll = kl = distance = 0.0
    for n in range(2):
        for t in range(8):
            nll -= float(y[n, t].log_softmax(-1)[tokens[n, t + 1]]) / 16
            log_p, log_q = (taught[n, t] / 3).log_softmax(-1), (y[n, t] / 3).log_softmax(-1)
            kl += 9 * float((log_p.exp() * (log_p - log_q)).sum()) / 16
            for h, target in zip(hidden, targets, strict=True):
                distance += float((h[n, t] - target[n, t]).square().sum() / target[n, t].square().sum()) / 32
    expected = torch.tensor([nll, kl, distance, 2 * nll + 0.5 * kl + 0.25 * distance], dtype=torch.float64)
    values = torch.stack([loss.parts["nll"], loss.parts["logits"], loss.parts["hidden"], loss.total])
    torch.testing.assert_close(values, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("lora", [None, LoRA(2, train=("*.norms.1.*",))])
@pytest.mark.parametrize("layers", [None, ("0",)])
def test_each_loss_trains_what_it_declares(layers: Any, lora: Any) -> None:
    student, teacher = small(0), small(1)
    with adapted(student, lora, 0):
        for p in student.parameters():
            p.data.add_(0.1 * torch.randn_like(p))  # a change that is 0 gives its other factor no gradient
        view = with_teacher(student, teacher, hidden=1.0, layers=layers)
        loss, trained = view(student.sample(2, 9, 0)), [p for p in student.parameters() if p.requires_grad]
        declared = view.declared_losses()
        assert set(declared) == {"logits", "hidden"}
        for name, penalty in declared.items():
            slopes = torch.autograd.grad(loss.parts[name], trained, allow_unused=True, retain_graph=True)
            reached = {
                id(p) for p, g in zip(trained, slopes, strict=True) if g is not None and bool(g.abs().max() > 1e-9)
            }
            assert reached == {id(p) for p in penalty.trains} and reached
        assert len(declared["hidden"].trains) < len(declared["logits"].trains) or (layers is None and lora is not None)
        for text, penalty in zip(view.describe_losses(), declared.values(), strict=True):
            assert f"{sum(p.numel() for p in penalty.trains):,} weights" in text


def test_the_teacher_stays_and_the_checkpoint_is_the_students(tmp_path: Path) -> None:
    student, teacher, plain = small(0), small(1, dropout=0.5), small(0)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    view = with_teacher(student, teacher.train(), hidden=0.5)
    kf.fit(view, noise(), steps=3, lr=1e-2, batch=3, length=12, out=tmp_path, progress=False)
    assert not any(part.training for part in teacher.modules())
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert all(p.grad is None for p in teacher.parameters())
    for folder in (tmp_path, tmp_path / "best"):
        loaded = load(folder)
        assert same(loaded, student) and type(loaded) is type(plain) and loaded.trained_on == student.trained_on
    assert not same(student, plain) and {"logits", "hidden"} <= lines(tmp_path)[1]["parts"].keys()


def test_a_student_learns_its_teachers_predictions() -> None:
    student, teacher = small(0), small(1)
    view, tokens = with_teacher(student, teacher, nll=0.0), student.sample(3, 12, 5)
    start = float(view(tokens).parts["logits"].detach())
    train(view, noise(), StepBudget(30), replace(SMALL, lr=1e-2))
    assert float(view(tokens).parts["logits"].detach()) < 0.8 * start


def test_copies_and_evaluations_are_those_of_the_student() -> None:
    student, teacher = small(0), small(1)
    view, tokens = with_teacher(student, teacher), student.sample(2, 9, 0)
    copied = copy.deepcopy(view).double()
    assert type(copied) is type(student) and next(teacher.parameters()).dtype == torch.float32
    assert torch.equal(view.logits(tokens).y, student.logits(tokens).y)
    assert view.judge(tokens).totals == student.judge(tokens).totals
    assert isinstance(view, TaughtModel) and list(view.state_dict()) == list(student.state_dict())


def test_it_goes_on_to_the_same_weights_with_lora_and_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "EVERY", 0.0)
    text, teacher = noise(), small(1)
    settings = replace(SMALL, lora=2, precision="bf16", checkpointing=True)

    def trained(folder: Path, *stops: int) -> Model:
        for stop in (*stops, None):
            view = with_teacher(small(0, dropout=0.2), teacher, hidden=0.5)
            with nullcontext() if stop is None else pytest.raises(Killed):
                show = ProgressDisplay() if stop is None else KilledAt(stop)
                train(view, text, StepBudget(5), settings, folder=folder, show=show, resume=stop != (*stops, None)[0])
        return view

    whole, parts = trained(tmp_path / "whole"), trained(tmp_path / "parts", 2)
    assert same(parts, whole) and lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert same(load(tmp_path / "parts"), load(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: with_teacher(small(0), small(1), logits=0.0), "nothing to learn"),
        (lambda: with_teacher(small(0), small(1), temperature=0.0), "temperature"),
        (lambda: with_teacher(small(0), small(1, depth=1), hidden=1.0), "has 1 layers, but the student has 2"),
        (lambda: with_teacher(small(0), small(1), hidden=1.0, layers=("7",)), "no hidden state '7'"),
        (lambda: with_teacher(small(0), small(1), layers=("0",)), "layers= has no effect"),
        (lambda: with_teacher(small(0), gpt(d=16, depth=1, heads=2, vocab=9)), "the teacher has 9 tokens"),
        (lambda: with_teacher(with_teacher(small(0), small(1)), small(1)), "has a teacher already"),
        (lambda: (lambda model: with_teacher(model, model))(small(0)), "shares weights"),
        (lambda: with_teacher(transformer_xl(d=16, depth=1, heads=2), small(1)), "continues earlier rows"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class Notes(ProgressDisplay):
    """The notes of a training."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_training_shows_what_each_loss_trains() -> None:
    show, view = Notes(), with_teacher(small(0), small(1), logits=0.5, hidden=0.25)
    train(view, noise(), StepBudget(1), replace(SMALL, lora=LoRA(2)), show=show)
    lora, logits, hidden = show.notes
    assert lora.startswith("LoRA of rank 2 trains ")
    assert logits.startswith("the loss 'logits' with weight 0.5 trains ") and "lora_a" in logits
    assert hidden.startswith("the loss 'hidden' with weight 0.25 trains ")
