"""EarlyExit: what later tokens read of those that left, chunks, who leaves, and what is not computed."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.choice import run_checkpointed
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.loss import Penalty
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth import active_rows as some_rows
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.depth.stack import Stack
from kinformer.nn.exits.by_sequence import BySequence
from kinformer.nn.exits.confidence import Confidence, Probe, SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.geometric import Geometric
from kinformer.nn.exits.multinomial import Multinomial
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV

D, DEPTH = 8, 4
POS = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3]])
CTX = Context(POS, run=True)


def blocks() -> list[PreNorm]:
    return [PreNorm(Attention(QKV(D, 2), Softmax(Causal())), MLP(D)) for _ in range(DEPTH)]


class Told(ExitRule):
    """Leaving after so many layers as a table says, by row and column; notes of how many tokens it is asked."""

    def __init__(self, exits: Tensor):
        super().__init__()
        self.exits, self.asked = exits, list[int]()

    def begin_call(self, state: State, ctx: Context, x: Tensor) -> Tensor:
        return self.exits

    def forward(
        self, states: Sequence[Tensor], ctx: Context, rule_state: State, head: Callable | None = None
    ) -> Tensor:
        assert len(states[-1]) == len(ctx.pos) == len(rule_state)
        self.asked.append(ctx.pos.numel())
        return rule_state <= len(states)


@pytest.mark.parametrize("has_shortcuts", [False, True])
def test_a_token_that_left_is_read_by_its_last_state(has_shortcuts: bool, float64: None) -> None:
    """Every layer in full, but each token's state above its exit is that of its exit; heads of their own.

    With shortcuts, the state above the exit is the one that they made.
    """
    exits = torch.tensor([[2, 1, 4, 3, 1, 4], [1, 1, 4, 2, 3, 1]])
    layers, heads, x = blocks(), [LayerNorm(D) for _ in range(DEPTH)], torch.randn(2, 6, D)
    for head in heads:
        nn.init.normal_(head.weight)
    shortcuts = [nn.Linear(D, D) for _ in range(DEPTH)] if has_shortcuts else None
    out = EarlyExit(layers, heads, Told(exits), shortcuts=shortcuts).eval()(x, None, CTX)
    h = torch.where((POS >= 0)[..., None], x, 0)
    y = torch.zeros_like(x)
    for n in range(DEPTH):
        new = layers[n](h, None, CTX).y
        for b in range(2):
            for t in range(6):
                if exits[b, t] == n + 1 and POS[b, t] >= 0:
                    y[b, t] = heads[n](new[b, t])
        h = torch.where((exits > n)[..., None], new, h if shortcuts is None else shortcuts[n](h))
    assert torch.allclose(out.y, y, atol=1e-13)
    assert torch.equal(out.aux["exit"].long(), torch.where(POS >= 0, exits, 0))


def test_nobody_leaves_where_nobody_is_sure_in_training_and_where_states_are_asked_for(float64: None) -> None:
    layers, norm, x = blocks(), LayerNorm(D), torch.randn(2, 6, D)
    names = tuple(str(n) for n in range(DEPTH))
    want = Stack(layers, norm)(x, None, CTX.replace(taps=names))
    for exits, training, taps in ((9, False, ()), (1, True, ()), (1, False, names)):
        stack = EarlyExit(layers, norm, Told(torch.full((2, 6), exits))).train(training)
        out = stack(x, None, CTX.replace(taps=taps))
        assert torch.equal(out.y[POS >= 0], want.y[POS >= 0])
        assert torch.equal(out.aux["exit"], torch.where(POS >= 0, 4.0, 0.0).to(x.dtype))
        for name in taps:
            assert torch.equal(out.taps[name][POS >= 0], want.taps[name][POS >= 0])


def counted(stack: EarlyExit) -> list[int]:
    """How many tokens each layer's feed-forward computes, from now on."""
    counts = [0] * DEPTH
    for n, layer in enumerate(stack.layers):

        def count(part: nn.Module, inputs: tuple, n: int = n) -> None:
            counts[n] += inputs[0].shape[0] * inputs[0].shape[1]

        layer.layers[1].register_forward_pre_hook(count)
    return counts


@pytest.mark.parametrize("has_shortcuts", [False, True])
def test_decoding_computes_the_tokens_that_remain_and_no_other(has_shortcuts: bool, float64: None) -> None:
    """A call with all rows, token after token: every layer is computed for those that go on; the result is the same."""
    exits = torch.tensor([[2, 1, 4, 3, 1, 4], [1, 1, 4, 2, 3, 1], [1, 4, 1, 1, 2, 2]])
    x, pos = torch.randn(3, 6, D), torch.arange(6).expand(3, 6)
    layers = blocks()
    shortcuts = [nn.Linear(D, D) for _ in range(DEPTH)] if has_shortcuts else None
    whole = EarlyExit(layers, LayerNorm(D), Told(exits), shortcuts=shortcuts).eval()
    want = whole(x, whole.start(3, 6), Context(pos, run=True))
    ys, state, counts = [], whole.start(3, 6), [0] * (DEPTH - 1)
    computed = counted(whole)
    for t in range(6):
        stack = EarlyExit(layers, LayerNorm(D), Told(exits[:, t : t + 1]), shortcuts=shortcuts).eval()
        out = stack(x[:, t : t + 1], state, Context(pos[:, t : t + 1], run=True))
        ys, state = [*ys, out.y], out.state
        for n, count in enumerate(stack.rule.asked):
            counts[n] += count
    assert counts == computed[:-1], "nor is the rule asked about another"
    assert computed == [int((exits > n).sum()) for n in range(DEPTH)] and sum(computed) < DEPTH * exits.numel()
    assert torch.allclose(torch.cat(ys, 1), want.y, atol=1e-12)
    for (_, ours), (_, theirs) in zip(leaves(state.layers), leaves(want.state.layers), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_layers_that_no_row_takes_are_filled_not_computed(float64: None) -> None:
    exits = torch.tensor([[2, 1, 2, 1, 1, 2], [1, 1, 2, 2, 1, 1], [1, 1, 1, 1, 1, 1]])
    stack, x = EarlyExit(blocks(), LayerNorm(D), Told(exits)).eval(), torch.randn(3, 6, D)
    ctx = Context(torch.cat([POS, POS[:1]]), run=True)
    computed = counted(stack)
    results = []
    for always in (1, DEPTH):  # the rows that remain, and all
        stack.always = always
        computed[:] = [0] * DEPTH
        out = stack(x, stack.start(3, 6, dtype=x.dtype), ctx)
        results.append([out.y, out.aux["exit"], *(leaf for _, leaf in leaves(out.state))])
        assert computed == ([18, 12, 0, 0] if always == 1 else [18] * DEPTH)
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-13)
    computed[:] = [0] * DEPTH
    assert torch.allclose(stack(x, None, ctx).y, results[1][0], atol=1e-13)


def test_limits_of_the_batch_s_rows_are_kept_where_some_rows_remain(float64: None) -> None:
    """A pattern that tells rows apart: the second row is computed alone, and is still the second."""
    exits = torch.tensor([[1] * 6, [4] * 6])
    stack, x = EarlyExit(blocks(), LayerNorm(D), Told(exits)).eval(), torch.randn(2, 6, D)
    ids = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    ctx = Context(torch.arange(6).expand(2, 6), run=True, only=Document(ids))
    own = Document(ids[1:])
    alone = EarlyExit(list(stack.layers), stack.heads[0], Told(exits[1:])).eval()
    want = alone(x[1:], None, Context(ctx.pos[1:], run=True, only=own))
    assert torch.allclose(stack(x, None, ctx).y[1:], want.y, atol=1e-13)
    inside = [PreNorm(Attention(QKV(D, 2), Softmax(Causal() & Document(ids))), MLP(D)) for _ in range(DEPTH)]
    stack = EarlyExit(inside, LayerNorm(D), Told(exits)).eval()
    alone = [PreNorm(Attention(QKV(D, 2), Softmax(Causal() & own)), MLP(D)) for _ in range(DEPTH)]
    for ours, theirs in zip(alone, inside, strict=True):
        ours.load_state_dict(theirs.state_dict())
    want = EarlyExit(alone, LayerNorm(D), Told(exits[1:])).eval()(x[1:], None, Context(ctx.pos[1:]))
    assert torch.allclose(stack(x, None, Context(ctx.pos, run=True)).y[1:], want.y, atol=1e-13)


def test_the_choice_by_source_is_kept_between_chunks(float64: None) -> None:
    """The first chunk brings the source, as cross-attention's does; the next one goes on without."""
    rule = BySequence(D, DEPTH)
    nn.init.normal_(rule.choice.weight)
    stack, x, source = EarlyExit(blocks(), LayerNorm(D), rule).eval(), torch.randn(2, 6, D), torch.randn(2, 3, D)
    own = {"source": source, "source_pos": torch.arange(3).expand(2, 3)}
    whole = stack(x, None, Context(POS, True, **own))
    first = stack(x[:, :3], stack.start(2, 6, dtype=x.dtype), Context(POS[:, :3], True, **own))
    second = stack(x[:, 3:], first.state, Context(POS[:, 3:], True))
    joined = torch.cat([first.y, second.y], 1)
    assert torch.allclose(joined[POS >= 0], whole.y[POS >= 0], atol=1e-12)
    expected = rule.log_q(source, own["source_pos"]).argmax(-1) + 1
    assert torch.equal(second.aux["exit"].long(), expected[:, None].expand(2, 3))
    with pytest.raises(ValueError, match="got no source"):
        stack(x, None, CTX)


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
    rule = Told(torch.ones(2, 6, dtype=torch.long))
    layers, x = [*blocks()[:2], Reporting(), blocks()[0]], torch.randn(2, 6, D)
    stack, calls = EarlyExit(layers, LayerNorm(D), rule), []
    for n, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, n=n: calls.append(n))
    every = stack(x, None, CTX)
    assert calls == [0, 1, 2, 3]
    assert torch.equal(every.aux["2.told"] > 0, POS >= 0) and every.stats["2.counted"] == 1
    calls.clear()
    actual = stack.eval()(x, None, CTX)
    assert calls == [0, 1, 2]
    assert actual.aux.keys() == every.aux.keys() == {"2.told", "2.price", "exit"}
    assert actual.aux["2.price"] == 2 and not actual.aux["2.told"].any()


def test_a_softmax_response_reads_through_the_exit_s_norm_and_the_head_that_is_lent(float64: None) -> None:
    layers, norms = blocks(), [LayerNorm(D) for _ in range(DEPTH)]
    head, x = nn.Linear(D, 7), 3 * torch.randn(2, 6, D)
    for norm in norms:
        nn.init.normal_(norm.weight, std=4.0)
    lent = EarlyExit(layers, norms, ConfidenceThreshold(SoftmaxResponse(), 0.5)).eval()(x, None, CTX.replace(head=head))
    best = head(norms[0](layers[0](x, None, CTX).y)).softmax(-1).topk(2).values
    first = (best[..., 0] - best[..., 1] >= 0.5) & (POS >= 0)
    assert first.any() and not first.all()
    assert torch.equal(lent.aux["exit"] == 1, first)
    with pytest.raises(ValueError, match="no model provides one"):
        EarlyExit(layers, norms, ConfidenceThreshold(SoftmaxResponse(), 0.5)).eval()(x, None, CTX)


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
    for rule in (ConfidenceThreshold(Fickle(), 0.5), Told(torch.full((2, 6), 2))):
        stack, inputs = EarlyExit(layers, LayerNorm(D), rule).eval(), x.clone().requires_grad_()
        y = run_checkpointed(lambda z, stack=stack: stack(z, None, CTX).y, inputs)
        grads.append(torch.autograd.grad(y[POS >= 0].sin().sum(), inputs)[0])
    assert torch.equal(*grads)


def test_only_to_remember_gives_the_same_state(float64: None) -> None:
    exits = torch.tensor([[2, 1, 4, 3, 1, 4], [1, 1, 4, 2, 3, 1]])
    stack, x = EarlyExit(blocks(), LayerNorm(D), Told(exits)).eval(), torch.randn(2, 6, D)
    want = stack(x, stack.start(2, 6), CTX).state
    actual = stack(x, stack.start(2, 6), CTX.replace(remember=True)).state
    for (_, ours), (_, theirs) in zip(leaves(actual), leaves(want), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_another_number_of_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="one per layer: got 2 heads for 4 layers"):
        EarlyExit(blocks(), [LayerNorm(D), LayerNorm(D)], Multinomial(D, DEPTH))


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (lambda: Geometric(D, 9), r"^Geometric\(8, 9\) does not fit 4 layers of width 8\. Pass Geometric\(8, 4\)$"),
        (lambda: Geometric(D, 2, shared=False), r"^Geometric\(8, 2\) does not fit"),
        (lambda: Geometric(D, 9, shared=False), r"^Geometric\(8, 9\) does not fit"),
        (lambda: Geometric(6, DEPTH), r"^Geometric\(6, 4\) does not fit"),
        (lambda: Geometric(D, DEPTH, threshold=(0.5, 0.5)), r"^got 2 thresholds for 4 layers\. Pass 3"),
        (lambda: Multinomial(D, 9), r"^Multinomial\(8, 9\) does not fit"),
        (lambda: Multinomial(D, 2), r"^Multinomial\(8, 2\) does not fit"),
        (lambda: BySequence(6, DEPTH), r"^BySequence\(6, 4\) does not fit"),
        (lambda: ConfidenceThreshold(Probe(6), 0.5), r"^Probe\(6\) does not fit the states: got width 8, expected 6"),
        (lambda: ConfidenceThreshold(Probe(D), (0.5,) * 2), r"^got 2 thresholds for 4 layers\. Pass 3"),
        (lambda: ConfidenceThreshold(Probe(D), (0.5,) * 4), r"^got 4 thresholds for 4 layers\. Pass 3"),
    ],
)
def test_a_rule_made_for_other_layers_is_refused(rule: Callable[[], ExitRule], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EarlyExit(blocks(), LayerNorm(D), rule())


@pytest.mark.parametrize("shared", [True, False])
def test_a_rule_made_for_these_layers_is_taken(shared: bool) -> None:
    rules = (Geometric(D, DEPTH, shared=shared, threshold=(0.5,) * 3), ConfidenceThreshold(Probe(D), (0.5,) * 3))
    for layers, rule in (*((blocks(), rule) for rule in rules), (blocks()[:1], Geometric(D, 1, shared=shared))):
        exits = EarlyExit(layers, LayerNorm(D), rule).eval()(torch.randn(2, 6, D), None, CTX).aux["exit"]
        assert bool((exits[CTX.pos >= 0] >= 1).all()) and bool((exits <= len(layers)).all())


def test_some_rows_are_read_the_same_in_a_copy_and_sublayer_by_sublayer(
    float64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits = torch.tensor([[2, 1, 4], [1, 1, 4], [1, 4, 1], [3, 2, 1]])
    layers, x, pos = blocks(), torch.randn(4, 3, D), torch.arange(3).expand(4, 3)
    results = []
    for copied in (0, 1000):
        monkeypatch.setattr(some_rows, "COPIED", copied)
        state, ys = EarlyExit(layers, LayerNorm(D), Told(exits)).start(4, 3), []
        for t in range(3):
            stack = EarlyExit(layers, LayerNorm(D), Told(exits[:, t : t + 1])).eval()
            out = stack(x[:, t : t + 1], state, Context(pos[:, t : t + 1], run=True))
            ys, state = [*ys, out.y], out.state
        results.append([*ys, *(leaf for _, leaf in leaves(state))])
    for first, other in zip(*results, strict=True):
        assert torch.allclose(first, other, atol=1e-13)
