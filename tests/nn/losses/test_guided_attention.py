"""Guided attention: a loop after the paper's equation, what training does to guided heads, its weight over time."""

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.core.loss import FadingWeight
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.guided_attention import GUIDES, guided_attention
from kinformer.nn.attention import Attention
from kinformer.nn.losses.guided_attention import GuidedAttention
from kinformer.nn.mechanisms.regularised import Regularised
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV


def layer(pattern: Pattern, *guides: str | None, over: str = "sum") -> Attention:
    torch.manual_seed(0)
    mechanism = GuidedAttention(tuple(None if name is None else GUIDES[name] for name in guides), over)  # type: ignore[arg-type]
    width = 14 if len(guides) == 7 else 12
    return Attention(QKV(width, len(guides)), Regularised(Softmax(pattern), mechanism)).double().train()


@pytest.mark.parametrize("pattern", [Full(), Causal()])
@pytest.mark.parametrize("over", ["sum", "mean"])
@torch.no_grad()
def test_it_is_the_distance_from_the_patterns(pattern: Pattern, over: str) -> None:
    names = ("next", "period", None, "first", "first", "next", "first")
    part, x = layer(pattern, *names, over=over), torch.randn(2, 6, 14).double()
    labels = torch.tensor([[0, 2, 0, 0, 2, 1], [0, 0, 0, 0, 0, 0]])
    ctx = Context.of_sequence(x, torch.tensor([[True] * 6, [True] * 4 + [False] * 2])).replace(
        labels={"segment": labels}
    )
    penalty = part(x, None, ctx).aux["guided_attention"]
    queries, keys = part.projection.queries_and_keys(x, ctx.pos)
    for b, length in ((0, 6), (1, 4)):
        for i in range(length):
            total, readable = 0.0, [j for j in range(length) if pattern == Full() or j <= i]
            for h, name in enumerate(names):
                marked = {
                    "next": [j for j in readable if j == i + 1],
                    "period": [j for j in readable if labels[b, j] == 2],
                    "first": [0],
                    None: [],
                }[name]
                scores = torch.stack([queries.q[b, h, i] @ keys.k[b, h, j] for j in readable]) / 2**0.5
                p = torch.tensor([1 / len(marked) if j in marked else 0.0 for j in readable]).double()
                square = (scores.softmax(0) - p).square().sum().item()
                if over == "mean" and name is not None:
                    total += square / len(readable) / names.count(name)
                elif marked:
                    total += square
            assert penalty[b, i].item() == pytest.approx(total, abs=1e-12)


@pytest.mark.prove
def test_guided_heads_come_to_look_at_their_patterns_and_a_free_one_does_not() -> None:
    """A layer that is told positions learns four patterns from the loss alone."""
    torch.manual_seed(0)
    part, x = layer(Full(), "next", "previous", "first", None), torch.randn(1, 8, 12).double().expand(4, -1, -1)
    optimiser, ctx = torch.optim.Adam(part.parameters(), 0.02), Context.of_sequence(x)
    for _ in range(150):
        optimiser.zero_grad()
        part(x, None, ctx).aux["guided_attention"].mean().backward()
        optimiser.step()
    queries, keys = part.projection.queries_and_keys(x, ctx.pos)
    a = (queries.q[0] @ keys.k[0].mT / 3**0.5).softmax(-1)
    on = [a[0].diagonal(1).mean(), a[1].diagonal(-1).mean(), a[2][:, 0].mean()]
    assert min(on).item() > 0.8 > a[3].max().item()


def test_the_weight_stays_and_then_falls_in_a_line() -> None:
    fading = FadingWeight(2.0, 0.6)
    assert [fading.weight_at(p) for p in (0.0, 0.6, 0.8, 1.0)] == pytest.approx([2.0, 2.0, 1.0, 0.0])
    assert FadingWeight(3.0, 1.0).weight_at(1.0) == 3.0 and FadingWeight(3.0, 0.0).weight_at(0.5) == 1.5
    model = guided_attention(d=12, depth=2, heads=4, alpha=2.0, hold=0.5, vocab=64).train()
    tokens = torch.randint(0, 64, (2, 12))
    early, late = (model(tokens, progress=progress) for progress in (0.25, 0.75))
    for loss, weight in ((early, 2.0), (late, 1.0)):
        parts = {name: value.item() for name, value in loss.parts.items()}
        assert loss.total.item() == pytest.approx(parts["nll"] + weight * parts["guided_attention"], rel=1e-5)


def test_what_is_wrong_is_told() -> None:
    with pytest.raises(ValueError, match="must contain a pattern or a label for at least one head"):
        GuidedAttention((None, None))
    with pytest.raises(ValueError, match="guides has 1 entries, but the layer has 2 heads"):
        Attention(QKV(12, 2), Regularised(Softmax(Full()), GuidedAttention((GUIDES["first"],))))(torch.randn(1, 3, 12))
    with pytest.raises(ValueError, match='guide 2 is a value of the label "segment", but the batch has no such label'):
        layer(Full(), "period")(torch.randn(1, 3, 12).double())
    with pytest.raises(ValueError, match="hold"):
        guided_attention(hold=1.5)
