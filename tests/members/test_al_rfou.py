"""al_rfou: the paper's sizes, its keywords, its metric at the last position, and what it writes."""

import math
from typing import Any

import pytest
import torch

from kinformer.decoding.generate import generate
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.train.evaluate import evaluate
from kinformer.members.al_rfou import al_rfou
from kinformer.members.bert import bert
from kinformer.members.transformer_xl import transformer_xl
from kinformer.nn.blocks.positioned_block import PositionedBlock
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.positions.learned import Learned

TINY = {"d": 16, "depth": 3, "heads": 2, "length": 12, "vocab": 7}


@pytest.mark.parametrize(("depth", "training", "writing"), [(12, 44, 41), (64, 235, 219)])
def test_the_paper_s_models_have_their_millions_of_parameters(depth: int, training: int, writing: int) -> None:
    """Heads of each layer and each of two targets make the difference."""
    with torch.device("meta"):
        model = al_rfou(d=512, depth=depth, heads=8)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    heads = sum(size for name, size in sizes.items() if name.startswith(("further", "beneath")))
    assert (round(sum(sizes.values()) / 1e6), round((sum(sizes.values()) - heads) / 1e6)) == (training, writing)


def test_what_the_paper_varies_is_a_keyword() -> None:
    model = al_rfou(**TINY)
    assert all(isinstance(layer, PositionedBlock) and isinstance(layer.block, PostNorm) for layer in model.body.layers)
    assert len({id(layer.position.table.weight) for layer in model.body.layers}) == 3 and model.position is None
    assert (len(model.further), [len(heads) for heads in model.beneath]) == (1, [2, 2])
    assert (model.lower, model.everywhere, model.weight, model.body.norm) == (True, True, 0.5, None)
    model = al_rfou(**TINY, every_position=False, every_layer=False, targets=1, per_layer=False, norm="pre")
    assert not (model.lower or model.everywhere or len(model.further) or len(model.beneath))
    assert isinstance(model.position, Learned) and model.body.norm is not None
    model = al_rfou(**TINY, shared_head=True, targets=4, further=0.1, dropout=0.3, hidden=24, lower_schedule="linear")
    assert model.lower_schedule == "linear"
    assert (len(model.further), len(model.beneath), model.weight, model.dropout) == (3, 0, 0.1, 0.3)
    with pytest.raises(ValueError, match="^position='rotary' already acts in every layer"):
        al_rfou(d=16, heads=2, position="rotary")
    al_rfou(d=16, heads=2, position="rotary", per_layer=False)


@torch.no_grad()
def test_with_a_stride_of_1_each_byte_but_those_of_the_first_window_has_a_whole_window_before_it() -> None:
    """The paper's metric: windows one byte apart, of each the last prediction."""
    model, text = al_rfou(**TINY).double().eval(), torch.randint(0, 7, (40,))
    result = evaluate(model, text, 9, stride=1)
    total, log_p = 0.0, model.logits(text[None, :9]).y[0].log_softmax(-1)
    for t in range(9):
        total -= float(log_p[t, text[t + 1]]) / math.log(2)
    for first in range(1, 40 - 9):
        log_p = model.logits(text[None, first : first + 9]).y[0, -1].log_softmax(-1)
        total -= float(log_p[text[first + 9]]) / math.log(2)
    assert result.count == 39 and result.value == pytest.approx(total / 39, rel=1e-12)


@torch.no_grad()
def test_full_windows_alone_are_the_paper_s_metric_of_each_document() -> None:
    """Of each place with a whole window before it the last prediction of that window; of short documents none."""
    model, text = al_rfou(**TINY).double().eval(), torch.randint(0, 7, (40,))
    bits = []
    for begin, end in ((0, 16), (16, 21), (21, 31), (31, 40)):  # the third has one such place, the fourth none
        for at in range(begin + 9, end):
            log_p = model.logits(text[None, at - 9 : at]).y[0, -1].log_softmax(-1)
            bits.append(-float(log_p[text[at]]) / math.log(2))
    result = evaluate(model, SplitTokens(text, torch.tensor([0, 16, 21, 31])), 9, stride=1, full=True)
    assert result.count == len(bits) == 8 and result.value == pytest.approx(sum(bits) / 8, rel=1e-12)
    half = evaluate(model, text, 9, full=True)  # windows half of their length apart: the last four of each
    assert half.count == 39 - 5
    for case, keywords, message in (
        (model, {"length": 12}, "none of its documents has a token after a whole window of 12"),
        (transformer_xl(d=8, depth=1, heads=2, segment=4, memory=4), {"length": 4}, "full needs windows that overlap"),
        (bert(d=8, depth=1, heads=2), {"length": 4}, "full needs windows that overlap"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(case, text[:11], full=True, **keywords)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"every_layer": False, "shared_head": True}, "shared_head=true has no effect with every_layer=false"),
        ({"further": -1.0}, "^further=-1.0"),
        ({"targets": 1, "further": 0.9}, "further=0.9 has no effect with targets=1"),
    ],
)
def test_refusals_name_its_own_keywords(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        al_rfou(**TINY, **wrong)


def test_it_writes_the_same_with_and_without_a_state() -> None:
    model, prompt = al_rfou(**TINY).double(), torch.tensor([[3, 1, 4], [-1, 1, 5]])
    rows = generate(model, prompt, 8, temperature=0)
    assert torch.equal(rows, generate(model, prompt, 8, temperature=0, recompute=True))
