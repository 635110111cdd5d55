"""EarlyExit: what later tokens read of those that left, chunks, what is not computed, and the loss of all exits."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from kinformer.adapt.confidence import Confidence
from kinformer.adapt.exits import BySequence, Confident, Multinomial
from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.layer import Context
from kinformer.core.state import leaves
from kinformer.depth.early_exit import EarlyExit, aligned
from kinformer.depth.stack import Stack
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.causal import Causal

D, DEPTH = 8, 4
POS = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3]])
CTX = Context(POS, run=True)


def blocks() -> list[PreNorm]:
    return [PreNorm(Attention(D, 2, Softmax(Causal())), MLP(D)) for _ in range(DEPTH)]


class Told(Confidence):
    """Sure after so many layers as a table says, by row and column."""

    def __init__(self, exits: Tensor):
        super().__init__()
        self.exits = exits

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        return (self.exits <= len(states)).to(states[-1].dtype)


def test_a_token_that_left_is_read_by_its_last_state(float64: None) -> None:
    """Every layer in full, but each token's state above its exit is that of its exit; heads of their own."""
    exits = torch.tensor([[2, 1, 4, 3, 1, 4], [1, 1, 4, 2, 3, 1]])
    layers, heads, x = blocks(), [LayerNorm(D) for _ in range(DEPTH)], torch.randn(2, 6, D)
    for head in heads:
        nn.init.normal_(head.weight)
    out = EarlyExit(layers, heads, Confident(Told(exits), 0.5))(x, None, CTX)
    h = torch.where((POS >= 0)[..., None], x, 0)
    y = torch.zeros_like(x)
    for n in range(DEPTH):
        new = layers[n](h, None, CTX).y
        for b in range(2):
            for t in range(6):
                if exits[b, t] == n + 1 and POS[b, t] >= 0:
                    y[b, t] = heads[n](new[b, t])
        h = torch.where((exits > n)[..., None], new, h)
    assert torch.allclose(out.y, y, atol=1e-13)
    assert torch.equal(out.aux["exit"].long(), torch.where(POS >= 0, exits, 0))


def test_nobody_leaving_is_the_stack(float64: None) -> None:
    layers, norm, x = blocks(), LayerNorm(D), torch.randn(2, 6, D)
    out = EarlyExit(layers, norm, Confident(Told(torch.full((2, 6), 9)), 0.5))(x, None, CTX)
    assert torch.equal(out.y[POS >= 0], Stack(layers, norm)(x, None, CTX).y[POS >= 0])


def test_layers_that_no_token_takes_are_filled_not_computed(float64: None) -> None:
    exits = torch.tensor([[2, 1, 2, 1, 1, 2], [1, 1, 2, 2, 1, 1]])
    stack, x = EarlyExit(blocks(), LayerNorm(D), Confident(Told(exits), 0.5)), torch.randn(2, 6, D)
    calls: list[int] = []
    for n, layer in enumerate(stack.layers):
        layer.layers[1].register_forward_hook(lambda *_, n=n: calls.append(n))
    found = {}
    for training in (False, True):
        calls.clear()
        out = stack.train(training)(x, stack.start(2, 6, dtype=x.dtype), CTX)
        found[training] = [out.y, out.aux["exit"], *(leaf for _, leaf in leaves(out.state))]
        assert calls == ([0, 1, 2, 3] if training else [0, 1])
    for ours, theirs in zip(found[False], found[True], strict=True):
        assert torch.equal(ours, theirs)


def test_the_choice_by_source_is_kept_between_chunks(float64: None) -> None:
    """The first chunk brings the source, as cross-attention's does; the next one goes on without."""
    rule = BySequence(D, DEPTH)
    nn.init.normal_(rule.choice.weight)
    stack, x, source = EarlyExit(blocks(), LayerNorm(D), rule), torch.randn(2, 6, D), torch.randn(2, 3, D)
    own = {"source": source, "source_pos": torch.arange(3).expand(2, 3)}
    whole = stack(x, None, Context(POS, True, **own))
    first = stack(x[:, :3], stack.start(2, 6, dtype=x.dtype), Context(POS[:, :3], True, **own))
    second = stack(x[:, 3:], first.state, Context(POS[:, 3:], True))
    joined = torch.cat([first.y, second.y], 1)
    assert torch.allclose(joined[POS >= 0], whole.y[POS >= 0], atol=1e-12)
    wanted = rule.log_q(source, own["source_pos"]).argmax(-1) + 1
    assert torch.equal(second.aux["exit"].long(), wanted[:, None].expand(2, 3))
    with pytest.raises(ValueError, match="got no source"):
        stack(x, None, CTX)


def test_every_exit_is_read_for_training(float64: None) -> None:
    layers, heads, x = blocks(), [LayerNorm(D) for _ in range(DEPTH)], torch.randn(2, 6, D)
    states, reads = EarlyExit(layers, heads, Multinomial(D, DEPTH)).every(x, CTX)
    for n in range(DEPTH):
        assert torch.equal(states[n], Stack(layers[: n + 1])(x, None, CTX).y)
        assert torch.equal(reads[n], heads[n](states[n]))


@pytest.mark.parametrize(
    ("weights", "w"), [("uniform", (1, 1, 1)), ("linear", (1, 2, 3)), ("sqrt", (1, 2**0.5, 3**0.5))]
)
def test_aligned_equals_its_equation(weights: str, w: tuple[float, ...], float64: None) -> None:
    logits, targets = [torch.randn(2, 4, 5) for _ in range(3)], torch.tensor([[0, 4, 2, -1], [3, -1, -1, -1]])
    total, count = 0.0, 0
    for b in range(2):
        for t in range(4):
            if targets[b, t] < 0:
                continue
            count += 1
            for one, weight in zip(logits, w, strict=True):
                total -= weight * float(one[b, t].log_softmax(-1)[targets[b, t]])
    assert float(aligned(logits, targets, weights)) == pytest.approx(total / sum(w) / count, rel=1e-12)


def test_another_number_of_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="one per layer: 2 came for 4 layers"):
        EarlyExit(blocks(), [LayerNorm(D), LayerNorm(D)], Multinomial(D, DEPTH))
