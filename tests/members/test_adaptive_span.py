"""The member of adaptive spans: its keywords, how it starts, decodes, saves and shrinks."""

import math
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load, save
from kinformer.core.after_step import after_step
from kinformer.members.adaptive_span import adaptive_span
from kinformer.models.lm import LM
from kinformer.nn.biases.adaptive_span import AdaptiveSpan, DynamicSpan
from tests.cuts import agree_however_cut


def small(spans: str = "static", **keywords: object) -> LM:
    shape = {"d": 16, "depth": 2, "heads": 2, "segment": 5, "longest": 80, "ramp": 3, "vocab": 11}
    return adaptive_span(spans=spans, **{**shape, **keywords})  # type: ignore[arg-type]


def masks(model: LM) -> list:
    return [block.layers[0].mechanism.mask for block in model.body.layers]


@pytest.mark.parametrize("spans", ["static", "dynamic"])
@pytest.mark.parametrize("itself", [False, True])
def test_training_by_chunks_decoding_and_one_dense_call_agree(spans: str, itself: bool, float64: None) -> None:
    model = small(spans, longest=8, itself=itself)
    assert all(type(mask) is (AdaptiveSpan if spans == "static" else DynamicSpan) for mask in masks(model))
    agree_however_cut(model)


@torch.no_grad()
@pytest.mark.parametrize("spans", ["static", "dynamic"])
def test_its_penalty_is_the_sum_of_layers_mean_spans(spans: str) -> None:
    model = small(spans, penalty=0.5)
    for block in model.body.layers:
        if spans == "static":
            block.layers[0].mechanism.mask.span.fill_(0.25)
        else:
            block.layers[0].side.weight.zero_()
            block.layers[0].side.bias.fill_(math.log(0.25 / 0.75))
    out = model(torch.randint(0, 11, (2, 9)))
    assert float(out.parts["span"]) == pytest.approx(2 * 0.25 * 80, rel=1e-5)
    assert float(out.total) == pytest.approx(float(out.parts["nll"] + 0.5 * out.parts["span"]), rel=1e-6)


def test_layers_share_one_table_of_distances(tmp_path: Path) -> None:
    model = small()
    assert sum(name.endswith("biases.0.keys") for name, _ in model.named_parameters()) == 1
    for mask in masks(model):
        mask.span.data.fill_(0.9)
        mask.look()
    save(model, tmp_path)
    back, tokens = load(tmp_path), torch.randint(0, 11, (1, 90))
    assert [mask.reach for mask in masks(back)] == [mask.reach for mask in masks(model)] == [80, 80]
    assert torch.equal(back.logits(tokens).y, model.eval().logits(tokens).y)


def test_a_step_of_training_shrinks_what_is_kept() -> None:
    model = small().train()
    for mask in masks(model):
        mask.span.data.fill_(0.9)
        mask.look()
    assert model.start(1, 200).body[0][0].x.shape[1] == 80 + 4
    for mask in masks(model):
        mask.span.data.fill_(0.5)
    after_step(model, 0.5, {})
    assert model.start(1, 200).body[0][0].x.shape[1] == 64 + 4
    assert model.eval().start(1, 200).body[0][0].pos.shape[1] < 64 + 5


@torch.no_grad()
def test_its_first_loss_is_that_of_knowing_nothing() -> None:
    torch.manual_seed(0)
    nll = adaptive_span().train()(torch.randint(0, 256, (2, 65))).parts["nll"]
    assert float(nll) == pytest.approx(math.log(256), rel=0.1)


@torch.no_grad()
@pytest.mark.parametrize("spans", ["static", "dynamic"])
def test_nearest_counts_distances_as_the_paper_or_as_its_code(spans: str) -> None:
    for nearest in (0, 1):
        assert [mask.nearest for mask in masks(small(spans, nearest=nearest))] == [nearest] * 2
