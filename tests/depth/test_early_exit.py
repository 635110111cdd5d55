"""EarlyExit: what later tokens read of those that left, chunks, what is not computed, and the loss of all exits."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.choice import recomputed
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.loss import Penalty
from kinformer.core.state import leaves
from kinformer.depth.early_exit import EarlyExit
from kinformer.depth.stack import Stack
from kinformer.exits.confidence import Confidence, SoftmaxResponse
from kinformer.exits.rules import BySequence, Confident, Multinomial
from kinformer.feedforward.mlp import MLP
from kinformer.losses.aligned import aligned
from kinformer.mechanisms.softmax import Softmax
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.causal import Causal
from kinformer.projections.qkv import QKV

D, DEPTH = 8, 4
POS = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3]])
CTX = Context(POS, run=True)


def blocks() -> list[PreNorm]:
    return [PreNorm(Attention(QKV(D, 2), Softmax(Causal())), MLP(D)) for _ in range(DEPTH)]


class Told(Confidence):
    """Sure after so many layers as a table says, by row and column."""

    def __init__(self, exits: Tensor):
        super().__init__()
        self.exits = exits

    def forward(self, states: Sequence[Tensor], head: Callable | None = None) -> Tensor:
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
    reads, out = EarlyExit(layers, heads, Multinomial(D, DEPTH)).every(x, CTX.but(taps=("0", "1", "2", "3")))
    for n in range(DEPTH):
        assert torch.equal(out.taps[f"{n}"], Stack(layers[: n + 1])(x, None, CTX).y)
        assert torch.equal(reads[n], heads[n](out.taps[f"{n}"]))
    assert torch.equal(out.y, reads[-1])


class Reporting(Layer):
    """Adds 1, reports a value per token and a penalty, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.d, self.price = D, nn.Parameter(torch.tensor(2.0))

    def penalties(self) -> dict[str, Penalty]:
        return {"price": Penalty((self.price,))}

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        aux = {"told": torch.ones_like(x[..., 0]), "price": self.price}
        return Out(x + 1, state, aux, {}, {"counted": torch.ones(())})


def test_a_layer_above_every_exit_keeps_what_it_reports(float64: None) -> None:
    """All leave after the first layer; the last but one reports. Training and evaluation name the same, of the same."""
    rule = Confident(Told(torch.ones(2, 6, dtype=torch.long)), 0.5)
    layers, x = [*blocks()[:2], Reporting(), blocks()[0]], torch.randn(2, 6, D)
    stack, calls = EarlyExit(layers, LayerNorm(D), rule), []
    for n, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, n=n: calls.append(n))
    want = stack(x, None, CTX)
    assert calls == [0, 1, 2, 3]
    calls.clear()
    got = stack.eval()(x, None, CTX)
    assert calls == [0, 1, 2]
    assert got.aux.keys() == want.aux.keys() == {"2.told", "2.price", "exit"} and got.stats.keys() == want.stats.keys()
    assert got.aux["2.price"] == 2 and not got.aux["2.told"].any()
    assert torch.equal(got.y, want.y)
    reads, every = stack.every(x, CTX)
    assert every.aux["2.told"].all() and every.stats["2.counted"] == 1 and len(reads) == DEPTH


def test_a_softmax_response_reads_through_the_exit_s_norm_and_the_head_that_is_lent(float64: None) -> None:
    layers, norms = blocks(), [LayerNorm(D) for _ in range(DEPTH)]
    head, x = nn.Linear(D, 7), 3 * torch.randn(2, 6, D)
    for norm in norms:
        nn.init.normal_(norm.weight, std=4.0)
    lent = EarlyExit(layers, norms, Confident(SoftmaxResponse(), 0.5))(x, None, CTX.but(head=head))
    reads, _ = EarlyExit(layers, norms, Multinomial(D, DEPTH)).every(x, CTX)
    best = head(reads[0]).softmax(-1).topk(2).values
    first = (best[..., 0] - best[..., 1] >= 0.5) & (POS >= 0)
    assert first.any() and not first.all()
    assert torch.equal(lent.aux["exit"] == 1, first)
    with pytest.raises(ValueError, match="no model lends one"):
        EarlyExit(layers, norms, Confident(SoftmaxResponse(), 0.5))(x, None, CTX)


def test_exits_are_those_of_the_forward_where_a_layer_is_computed_again(float64: None) -> None:
    """A confidence that says something else the second time does not change who left."""

    class Fickle(Confidence):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, states: Sequence[Tensor], head: Callable | None = None) -> Tensor:
            self.calls += 1
            return torch.full_like(states[-1][..., 0], float(self.calls == 2))

    layers, x = blocks(), torch.randn(2, 6, D)
    grads = []
    for rule in (Confident(Fickle(), 0.5), Confident(Told(torch.full((2, 6), 2)), 0.5)):
        stack, given = EarlyExit(layers, LayerNorm(D), rule), x.clone().requires_grad_()
        y = recomputed(lambda z, stack=stack: stack(z, None, CTX).y, given)
        grads.append(torch.autograd.grad(y[POS >= 0].sin().sum(), given)[0])
    assert torch.equal(*grads)


def test_only_to_remember_gives_the_same_state(float64: None) -> None:
    exits = torch.tensor([[2, 1, 4, 3, 1, 4], [1, 1, 4, 2, 3, 1]])
    stack, x = EarlyExit(blocks(), LayerNorm(D), Confident(Told(exits), 0.5)), torch.randn(2, 6, D)
    want = stack(x, stack.start(2, 6), CTX).state
    got = stack(x, stack.start(2, 6), CTX.but(remember=True)).state
    for (_, ours), (_, theirs) in zip(leaves(got), leaves(want), strict=True):
        assert torch.equal(ours, theirs)


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
    found, number = aligned(logits, targets, weights)
    assert number == count and float(found) == pytest.approx(total / sum(w), rel=1e-12)


def test_another_number_of_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="one per layer: 2 came for 4 layers"):
        EarlyExit(blocks(), [LayerNorm(D), LayerNorm(D)], Multinomial(D, DEPTH))
