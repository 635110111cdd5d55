"""AuxiliaryLM: its loss from the paper's sentences, what each part of it teaches, and what writing reads."""

import pytest
import torch
from torch import nn

from kinformer.core.batch import TokenBatch
from kinformer.core.layer import Context
from kinformer.models.auxiliary_lm import AuxiliaryLM
from kinformer.nn.depth.stack import Stack
from kinformer.nn.norms.layer import LayerNorm
from tests.nn.depth.test_early_exit import DEPTH, D, blocks

BATCH = torch.tensor([[3, 1, 4, 1, 5, 2, 6], [-1, -1, 2, 6, 5, 3, -1]])


def build(**keywords: object) -> AuxiliaryLM:
    norm = LayerNorm(D)
    nn.init.normal_(norm.weight)
    return AuxiliaryLM(7, D, Stack(blocks(), norm), **keywords)  # type: ignore[arg-type]


@torch.no_grad()
def naive(model: AuxiliaryLM, rows: list[list[int]], progress: float) -> tuple[float, int]:
    """The sum of all losses, a row, a layer, a target and a position at a time, and how many next tokens there are."""
    total, count = 0.0, 0
    for row in rows:
        tokens = torch.tensor(row)
        x = model.embedding(tokens[None, :-1])
        ctx = Context(torch.arange(len(row) - 1)[None], run=True)
        for layer in range(1, DEPTH + 1):
            if layer < DEPTH and (not model.lower or progress >= layer / (2 * DEPTH)):
                continue
            falls = layer < DEPTH and model.lower_schedule == "linear"
            share = 1 - progress / (layer / (2 * DEPTH)) if falls else 1.0
            h = model.body.norm(Stack(model.body.layers[:layer])(x, None, ctx).y[0])
            own = list(model.beneath[layer - 1]) if layer < DEPTH and len(model.beneath) else None
            heads = [model.head, *model.further] if own is None else own
            for k, head in enumerate(heads, 1):
                places = range(len(row) - k)
                for t in places if model.everywhere else list(places)[-1:]:
                    cost = -float(head(h[t]).log_softmax(-1)[row[t + k]])
                    total += share * (cost if k == 1 else model.weight * cost)
        count += len(row) - 1 if model.everywhere else 1
    return total, count


ROWS = [[int(token) for token in row if token >= 0] for row in BATCH]


@pytest.mark.parametrize("progress", [0.0, 0.2, 0.5])
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"targets": 4, "weight": 0.3},
        {"shared": True, "targets": 3},
        {"lower_schedule": "linear"},
        {"lower": False, "tie": False},
        {"targets": 1, "everywhere": False},
        {"targets": 3, "everywhere": False},
    ],
)
def test_the_loss_is_that_of_the_paper_s_sentences(keywords: dict, progress: float, float64: None) -> None:
    model = build(**keywords)
    total, count = naive(model, ROWS, progress)
    loss = model(BATCH, None, progress)
    assert int(loss.count) == count
    assert float(loss.total.detach()) == pytest.approx(total / count, rel=1e-12)
    assert float(sum(loss.parts.values()).detach()) == pytest.approx(total / count, rel=1e-12)


@pytest.mark.parametrize("everywhere", [True, False])
def test_no_target_lies_in_another_document_nor_where_nothing_is_scored(everywhere: bool, float64: None) -> None:
    model, row = build(targets=3, everywhere=everywhere), torch.tensor([[3, 1, 4, 1, 5, 2, 6, 0]])
    documents = TokenBatch(row, None, torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2]]))
    total, count = naive(model, [row[0, :3].tolist(), row[0, 3:].tolist()], 0.2)
    loss = model(documents, None, 0.2)
    assert float(loss.total.detach()) == pytest.approx(total / count, rel=1e-12) and int(loss.count) == count
    scored = TokenBatch(row, torch.arange(8)[None] == 4)
    loss = model(scored, None, 1.0)
    assert int(loss.count) == 1 and float(loss.parts["further"].detach()) == 0


def test_what_each_loss_teaches(float64: None) -> None:
    """A layer that has stopped teaches neither its heads nor what lies beneath; the last always does."""
    model = build()
    for progress, taught in ((0.0, [True, True, True]), (0.2, [False, True, True]), (0.5, [False, False, False])):
        model.zero_grad()
        model(BATCH, None, progress).total.backward()
        assert [heads[0].weight.grad is not None for heads in model.beneath] == taught
        assert all(layer.layers[1].up.weight.grad.any() for layer in model.body.layers)
        assert model.further[0].weight.grad.any()


@torch.no_grad()
def test_writing_and_measuring_read_the_last_layer_s_next_token_alone(float64: None) -> None:
    model = build(targets=3).eval()
    want, bits = model.logits(BATCH[:, :-1]).y, model.judge(BATCH).totals["bits per byte"]
    for head in (*model.further, *(head for heads in model.beneath for head in heads)):
        head.weight.fill_(float("nan"))
    assert torch.equal(model.logits(BATCH[:, :-1]).y, want)
    assert torch.equal(model.judge(BATCH).totals["bits per byte"][0], bits[0])


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"targets": 0}, "^targets=0: give"),
        ({"weight": -0.5}, "^weight=-0.5"),
        ({"lower": False, "lower_schedule": "linear"}, "^lower_schedule='linear' has no effect with lower=False"),
        ({"lower": False, "shared": True}, "^shared=True has no effect with lower=False; leave it out$"),
    ],
)
def test_what_cannot_be_is_refused(keywords: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(**keywords)
