"""MultiTask: each row has the classes of its own task, whatever stands beside it, and what it refuses."""

import pytest
import torch

from kinformer.core.mechanism import NoState
from kinformer.members.camtl import camtl
from kinformer.models.multitask import MultiTask
from kinformer.nn.blocks.mab import MAB

SMALL = {"d": 8, "depth": 2, "heads": 2, "length": 9, "blocks": 3, "classes": (3, 2), "vocab": 11}
PADDED = torch.tensor([[-1, -1, 3, 4, 5], [6, 7, 8, -1, -1], [1, 2, 3, 4, 5]])
TASK, WANTED = torch.tensor([0, 1, 0]), torch.tensor([2, 3, 0])


def strong(**keywords: object) -> MultiTask:
    """With task embeddings and FiLM so large that a wrong task shows."""
    model = camtl.rebuild(**{**SMALL, **keywords}).eval()  # type: ignore[attr-defined]  # blocks are none of no upper layer
    for name, parameter in model.named_parameters():
        if ".bias." in name:
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("pool", ["mean", "first"])
@pytest.mark.parametrize("form", ["columns", "pairs"])
def test_padding_and_batch_mates_of_other_tasks_change_nothing(pool: str, form: str, float64: None) -> None:
    model = strong(pool=pool, form=form)
    together = model.scores(PADDED, TASK)
    alone = [model.scores(row[row >= 0][None], task[None]) for row, task in zip(PADDED, TASK, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone))
    assert (together == -torch.inf).tolist() == [
        [False] * 3 + [True] * 2,
        [True] * 3 + [False] * 2,
        [False] * 3 + [True] * 2,
    ]


def test_the_body_knows_the_task(float64: None) -> None:
    """A row told of another task is pooled to other numbers, and without layers that know it to the same."""
    for upper in (1, 0):
        model = strong(upper=upper)
        first, second = (model.read(PADDED, {"task": torch.full((3,), n)}).y for n in (0, 1))
        assert torch.allclose(first, second) is (upper == 0)


def test_the_loss_is_the_mean_over_rows_of_what_their_class_costs_in_their_task(float64: None) -> None:
    model = strong()
    costs = -model.scores(PADDED, TASK).log_softmax(-1)
    loss = model((PADDED, TASK, WANTED))
    torch.testing.assert_close(loss.total, (costs[0, 2] + costs[1, 3] + costs[2, 0]) / 3)
    assert loss.count == 3
    loss.total.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


def test_it_is_judged_by_all_rows_and_by_each_task() -> None:
    model = strong()
    predicted = model.scores(PADDED, TASK).argmax(-1)
    targets = torch.where(torch.tensor([True, True, False]), predicted, (predicted + 1) % 3)
    model.labels = ("kind: a", "kind: b", "kind: c", "parity: even", "parity: odd")
    totals = {name: (float(a), int(b)) for name, (a, b) in model.judge((PADDED, TASK, targets)).totals.items()}
    assert totals == {"accuracy": (2, 3), "accuracy of kind": (1, 2), "accuracy of parity": (1, 1)}


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match=r"classes\[1\]=1: give a whole number of at least 2"):
        MultiTask(11, 16, MAB(16, 2, cross=False), classes=(2, 1))
    with pytest.raises(ValueError, match="the number of tasks=0"):
        MultiTask(11, 16, MAB(16, 2, cross=False), classes=())
    with pytest.raises(IndexError, match="task 3 is out of range, expected 0 to 1; give MultiTask"):
        MultiTask(11, 16, MAB(16, 2, cross=False)).scores(PADDED, TASK + 2)
    with pytest.raises(NoState, match="use a causal member"):
        camtl(**SMALL).start(1, 4)  # type: ignore[arg-type]
