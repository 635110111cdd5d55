"""The temporal range: against which earlier token, once it is another one, still changes an output."""

from typing import Any

import pytest
import torch

from kinformer.core.discover import find_member
from kinformer.core.memory import MemoryCost
from kinformer.lab.cost.temporal_range import TemporalRange, remembered_by_layer, temporal_range
from kinformer.nn.attention import Attention

SIZES = {"d": 8, "depth": 2, "heads": 2, "vocab": 5}
XL = {"segment": 4, "memory": 4}


def build(name: str, **keywords: Any) -> Any:
    torch.manual_seed(0)
    model = find_member(name)(**SIZES | keywords)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.6)
        for part in model.modules():
            if hasattr(part, "span") and hasattr(part, "look"):
                part.span.copy_(torch.tensor([0.1, 0.42]))
                part.look()
        for part in model.modules():
            if isinstance(part, Attention) and part.side is not None:
                part.side.bias.fill_(40.0)  # dynamic spans, all as long as they may be
    return model.eval()


@torch.no_grad()
def by_trial(model: Any, begin: int, end: int) -> list[int]:
    """For each position from begin on how far back the first token stands whose change changes the output there."""
    row = torch.randint(0, 5, (end,))
    variants = row.repeat(end, 1)
    variants[torch.arange(end), torch.arange(end)] = (row + 1) % 5  # row i has another token at position i
    want, actual = model.logits(row[None]).y, torch.cat([model.logits(chunk).y for chunk in variants.split(16)])
    changed = ((actual - want).abs().amax(-1) > 1e-13).to(torch.uint8)  # [change position]
    return [place - int(changed[:, place].argmax()) for place in range(begin, end)]


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("transformer_xl", XL),
        ("transformer_xl", {"segment": 4, "memory": 3, "depth": 3}),
        ("transformer_xl", {"segment": 3, "memory": 5}),
        ("gtrxl", {"segment": 4, "memory": 2}),
        ("compressive_transformer", {**XL, "compressed": 2, "rate": 2, "compression": "mean"}),
        ("compressive_transformer", {**XL, "compressed": 4, "rate": 2, "compression": "conv", "count": "tokens"}),
        ("adaptive_span", {"segment": 4, "longest": 9, "ramp": 2}),
        ("adaptive_span", {"segment": 4, "longest": 5, "ramp": 2, "spans": "dynamic"}),
        ("memorizing_transformer", {"segment": 3, "memory": 6, "k": 6, "local": "segments"}),
        ("memorizing_transformer", {"segment": 3, "memory": 9, "k": 9, "layer": 1, "depth": 3}),
        ("gpt", {"pattern": "Causal() & Band(3)", "position": "rotary"}),
        ("gpt", {"pattern": "Causal() & (Strided(3) & Band(6) | Band(1))", "position": "rotary"}),
    ],
)
def test_it_is_the_furthest_token_that_changes_an_output(name: str, keywords: dict[str, Any], float64: None) -> None:
    model = build(name, **keywords)
    span = temporal_range(model)
    assert span is not None and span.exact
    period = keywords.get("segment", 3)
    begin = -(-span.most // period) * period + period
    trial = by_trial(model, begin, begin + 2 * period)
    assert (span.least, span.most) == (min(trial), max(trial))


@pytest.mark.parametrize(("memory", "compressed", "rate"), [(4, 4, 2), (8, 6, 4), (12, 0, 2)])
def test_it_is_that_of_the_papers_before_a_segment(memory: int, compressed: int, rate: int) -> None:
    """m N for a Transformer-XL, (m + c m_cm) N for a compressive one, whose scores are L^2 + L (m + m_cm)."""
    memory_sizes = {"segment": 4, "memory": memory, "depth": 3}
    xl = temporal_range(find_member("transformer_xl")(**SIZES | memory_sizes))
    assert xl == TemporalRange(3 * memory, 3 * memory + 3)
    model = find_member("compressive_transformer")(**SIZES | memory_sizes, compressed=compressed, rate=rate)
    assert temporal_range(model) == TemporalRange(
        3 * (memory + rate * compressed), 3 * (memory + rate * compressed) + 3
    )
    (part,) = set(remembered_by_layer(model).values())
    assert part == MemoryCost(4, memory, compressed) and part.pairs == 16 + 4 * (memory + compressed)


def test_a_bound_is_told_as_one(float64: None) -> None:
    """Three slots of two tokens are kept of segments of four: their oldest token lies within the bound."""
    keywords = {**XL, "compressed": 3, "rate": 2, "compression": "mean"}
    model = build("compressive_transformer", **keywords)
    span = temporal_range(model)
    assert span is not None and not span.exact and max(by_trial(model, 36, 40)) <= span.most


HEADLESS = ("lstm", "average_attention")


@pytest.mark.parametrize("name", ["gpt", "lstm", "average_attention", "linear_transformer", "bert", "transformer"])
def test_what_reads_a_whole_row_has_none(name: str) -> None:
    model = find_member(name)(**{key: SIZES[key] for key in SIZES if key != "heads" or name not in HEADLESS})
    assert temporal_range(model) is None and not remembered_by_layer(model)
