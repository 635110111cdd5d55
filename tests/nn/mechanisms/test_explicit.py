"""Explicit: RealFormer's equation by loops, scores handed up through a stack, and what a hidden matrix must not do."""

import inspect
import math
from collections.abc import Callable, Mapping
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.attention_output import merge
from kinformer.core.bias import Bias, ScoreFn, at
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context, PerPair, State, Want
from kinformer.core.mechanism import NoState
from kinformer.core.pair_map import PairMap
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.state import leaves, reset
from kinformer.laws import any_length, batch_mates, chunk, dtype, empty_rows, mutation, padding, peek, rows
from kinformer.laws.support.subject import Subject
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.biases.adaptive_span import AdaptiveSpan
from kinformer.nn.biases.relative import Relative
from kinformer.nn.biases.t5 import T5
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms import explicit
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.scores.residual import ResidualScores

pytestmark = pytest.mark.usefixtures("float64")

LAWS = (any_length, batch_mates, chunk, dtype, empty_rows, mutation, padding, peek, rows)
PATTERNS = [Causal(), Causal() & Band(3), Causal() & (Band(2) | Tokens((0, 4)))]


def realformer(*patterns: Pattern, heads: int = 2, **keywords: float) -> Stack:
    def block(pattern: Pattern) -> PreNorm:
        mechanism = Explicit(pattern, score=ResidualScores(**keywords), up=True)
        return PreNorm(Attention(QKV(16, heads), mechanism), MLP(16))

    return Stack([block(pattern) for pattern in patterns])


def rows_padded_differently(length: int) -> Tensor:
    """Three rows: no padding, padding after, padding before."""
    pos = torch.arange(length).repeat(3, 1)
    pos[1, length - 4 :] = -1
    pos[2] -= 3
    pos[2, :3] = -1
    return pos


def naive_realformer(stack: Stack, x: Tensor, pos: Tensor, pattern: Pattern) -> Tensor:
    """score_l(i, j) = q_i.k_j / sqrt(d_h) + score_(l-1)(i, j); softmax over the keys that i may read."""
    below: dict[tuple[int, int, int, int], Tensor] = {}
    for block in stack.layers:
        attention, mlp = block.layers
        z = block.norms[0](x)
        queries, keys = attention.projection(z, pos, z, pos)
        q, k, v = queries.q, keys.k, keys.v
        y = torch.zeros_like(v)
        for b, h, i in ((b, h, i) for b in range(len(x)) for h in range(q.shape[1]) for i in range(x.shape[1])):
            total, read = torch.zeros(()), torch.zeros(v.shape[-1])
            for j in range(x.shape[1]):
                score = q[b, h, i].dot(k[b, h, j]) / math.sqrt(q.shape[-1]) + below.get((b, h, i, j), 0.0)
                below[b, h, i, j] = score
                if min(pos[b, i], pos[b, j]) >= 0 and pattern(b, h, pos[b, i], pos[b, j]):
                    total, read = total + score.exp(), read + score.exp() * v[b, h, j]
            y[b, h, i] = read / total if total > 0 else read
        x = x + attention.aggregation(y, pos)
        x = x + mlp(block.norms[1](x), None, Context(pos)).y
    return x


def in_chunks(stack: Stack, x: Tensor, pos: Tensor, cuts: list[int]) -> tuple[Tensor, State]:
    state, done = stack.start(len(x), x.shape[1]), []
    for piece, piece_pos in zip(x.split(cuts, 1), pos.split(cuts, 1), strict=True):
        out = stack(piece, state, Context(piece_pos))
        state = out.state
        done.append(out.y)
    return torch.cat(done, 1), state


@pytest.mark.parametrize("pattern", [*PATTERNS, Full()], ids=repr)
def test_realformer_is_its_equation(pattern: Pattern) -> None:
    stack, x, pos = realformer(pattern, pattern), torch.randn(3, 9, 16), rows_padded_differently(9)
    real, want = pos >= 0, naive_realformer(stack, x, pos, pattern)
    torch.testing.assert_close(stack(x, None, Context(pos)).y[real], want[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cuts", [[1] * 13, [5, 1, 7], [2, 8, 3], [13]], ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_a_stack_that_shares_scores_can_be_cut_anywhere(pattern: Pattern, cuts: list[int]) -> None:
    stack, x, pos = realformer(pattern, pattern, pattern), torch.randn(3, 13, 16), rows_padded_differently(13)
    whole = stack(x, None, Context(pos)).y
    real = pos >= 0
    y, state = in_chunks(stack, x, pos, cuts)
    torch.testing.assert_close(y[real], whole[real], rtol=0, atol=1e-12)
    # a row that is reset reads on as a fresh one does, beside rows that keep what they have
    state, fresh = reset(state, torch.tensor([False, True, False])), stack.start(3, 13)
    x, pos = torch.randn(3, 2, 16), torch.tensor([[13, 14], [0, 1], [10, 11]])
    after, alone = stack(x, state, Context(pos)).y, stack(x, fresh, Context(pos)).y
    torch.testing.assert_close(after[1], alone[1], rtol=0, atol=1e-12)
    assert not torch.allclose(after[0], alone[0])


def test_a_stack_that_shares_scores_does_not_peek_and_ignores_padding() -> None:
    stack, x, pos = realformer(Causal(), Causal()), torch.randn(3, 9, 16), rows_padded_differently(9)
    y = stack(x, None, Context(pos)).y
    for t in range(8):
        other = torch.cat([x[:, : t + 1], 1e3 * torch.randn(3, 8 - t, 16)], 1)
        torch.testing.assert_close(stack(other, None, Context(pos)).y[:, : t + 1], y[:, : t + 1], rtol=0, atol=1e-12)
    real = pos >= 0
    other = torch.where(real[..., None], x, 1e3 * torch.randn(3, 9, 16))
    torch.testing.assert_close(stack(other, None, Context(pos)).y[real], y[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.rpartition(".")[2])
def test_a_stack_that_shares_scores_keeps_the_laws(law: ModuleType) -> None:
    def make() -> Stack:
        return realformer(Causal() & Band(3), Causal() & Band(3))

    assert next(iter(law.judge(Subject(make(), make))), None) is None


def test_scores_from_below_matter_and_their_weights_are_used() -> None:
    x, pos = torch.randn(2, 6, 16), torch.arange(6).repeat(2, 1)
    layer = Attention(QKV(16, 2), Explicit(Causal(), score=ResidualScores(0.25, 0.75), up=True))
    assert layer.wants == (Want("scores", optional=True),) and layer.sends == {"scores"}
    alone = layer(x, None, Context(pos)).up["scores"]
    queries, keys = layer.projection(x, pos, x, pos)
    torch.testing.assert_close(alone.scores, queries.q @ keys.k.mT / math.sqrt(8))  # of forbidden pairs too
    assert torch.equal(alone.q_pos[:, 0], pos) and torch.equal(alone.k_pos[:, 0], pos)
    below = PerPair(torch.randn(2, 2, 6, 6), pos[:, None], pos[:, None])
    out = layer(x, None, Context(pos, below={"scores": below}))
    torch.testing.assert_close(out.up["scores"].scores, 0.25 * alone.scores + 0.75 * below.scores)
    assert not torch.allclose(out.y, layer(x, None, Context(pos)).y)


def test_nothing_goes_up_unless_asked_for() -> None:
    layer = Attention(QKV(16, 2), Explicit(Causal()))
    out = layer(torch.randn(1, 3, 16), None, Context(torch.arange(3)[None]))
    assert out.up == {} and out.state is None and layer.sends == frozenset() and layer.wants == ()


@pytest.mark.parametrize("pattern", [*PATTERNS, Full()], ids=repr)
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_without_parts_it_is_softmax(pattern: Pattern, key_heads: int) -> None:
    x, pos = torch.randn(3, 9, 16), rows_padded_differently(9)
    plain = Attention(QKV(16, 4, key_heads=key_heads), Softmax(pattern, scale=0.3))
    explicit = Attention(QKV(16, 4, key_heads=key_heads), Explicit(pattern, scale=0.3))
    explicit.load_state_dict(plain.state_dict())
    limits = Context(pos, only=Strided(2), also=Tokens(1))
    for ctx in (Context(pos), limits):
        torch.testing.assert_close(explicit(x, None, ctx).y, plain(x, None, ctx).y, rtol=0, atol=1e-12)


class Distance(Bias):
    """A bias with all that a bias may have: a score, a table of values, a side and a penalty."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 8))

    def bind(self, piece: Request) -> ScoreFn:
        weight, q_pos, k_pos = piece.queries.extras["weight"], piece.queries.pos, piece.keys.pos
        return lambda s, b, h, i, j: s + weight[b, h, i, 0] * (at(q_pos, b, h, i) - at(k_pos, b, h, j))

    def values(self, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
        return self.table, (q_pos[..., :, None] - k_pos[..., None, :]).abs()

    def query_extras(self, sizes: HeadSizes) -> dict[str, ExtraProjection]:
        return {"weight": ExtraProjection(1)}

    def aux(self, extras: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"weight": extras["weight"].square().mean()}


def test_a_bias_means_what_it_means_to_softmax() -> None:
    x, pos = torch.randn(3, 9, 16), rows_padded_differently(9)
    plain = Attention(QKV(16, 2), Softmax(Causal(), Distance()))
    explicit = Attention(QKV(16, 2), Explicit(Causal(), Distance()))
    explicit.load_state_dict(plain.state_dict())
    ours, theirs = explicit(x, None, Context(pos)), plain(x, None, Context(pos))
    torch.testing.assert_close(ours.y, theirs.y, rtol=0, atol=1e-12)
    assert ours.aux == theirs.aux and ours.aux.keys() == {"weight"}


@pytest.mark.parametrize(
    ("low", "high"), [(Causal() & Band(2), Causal() & Band(5)), (Causal() & Tokens((0, 4)), Causal() & Tokens((0, 2)))]
)
def test_decoding_with_two_patterns_is_refused(low: Pattern, high: Pattern) -> None:
    stack, x, pos = realformer(low, high), torch.randn(1, 9, 16), torch.arange(9)[None]
    stack(x, None, Context(pos))  # without a state each layer has scores of all keys
    with pytest.raises(ValueError, match="Give layers that share scores the same pattern"):
        in_chunks(stack, x, pos, [6, 3])


def test_the_cache_keeps_what_the_batch_adds() -> None:
    stack, x, pos = (
        realformer(Causal() & Band(1), Causal() & Band(1)),
        torch.randn(2, 8, 16),
        torch.arange(8).repeat(2, 1),
    )
    arguments = {"only": Causal(), "also": Tokens((0, 2))}
    state = stack.start(2, 8)
    first = stack(x[:, :5], state, Context(pos[:, :5], **arguments))
    rest = stack(x[:, 5:], first.state, Context(pos[:, 5:], **arguments))
    whole = stack(x, None, Context(pos, **arguments)).y
    torch.testing.assert_close(torch.cat([first.y, rest.y], 1), whole, rtol=0, atol=1e-12)
    assert not torch.allclose(whole[:, 5:], stack(x, None, Context(pos)).y[:, 5:])


def test_weights_are_dropped_in_training_alone() -> None:
    layer, x, pos = (
        Attention(QKV(16, 2), Explicit(Causal(), dropout=0.5)),
        torch.randn(2, 9, 16),
        torch.arange(9).repeat(2, 1),
    )
    y = layer(x, None, Context(pos)).y
    assert not torch.allclose(y, layer(x, None, Context(pos)).y)
    layer.eval()
    assert torch.equal(layer(x, None, Context(pos)).y, layer(x, None, Context(pos)).y)


def test_changed_weights_say_that_they_cannot_be_merged() -> None:
    q, pos = torch.randn(1, 2, 3, 8), torch.arange(3)[None, None]
    read = Explicit(Causal(), after=AddOne())(Queries(q, pos), Keys(q, q, pos), None, Context(pos[0])).y
    assert read.lse is None
    with pytest.raises(ValueError, match="argument 0 has no lse"):
        merge(read, read)


def test_a_pattern_that_reads_ahead_has_no_state() -> None:
    with pytest.raises(NoState, match="Causal"):
        Explicit(Full()).start(StateSpec(1, 4, torch.float64, torch.device("cpu")), HeadSizes(2, 2, 2, 8, 8))


class AddOne(PairMap):
    """The change that is most eager to give weight to forbidden keys."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return x + 1.0


def test_a_forbidden_pair_has_no_weight_whatever_after_does() -> None:
    pattern = Causal() & ~Band(0) & Band(3)
    x, pos = torch.randn(3, 9, 16, requires_grad=True), rows_padded_differently(9)
    layer = Attention(QKV(16, 2), Explicit(pattern, after=AddOne()), aggregation=Concat())
    y = layer(x, None, Context(pos)).y
    nothing = pos < 1  # padding, and position 0, which has no key before it
    assert nothing.sum() > 3 and (y[nothing] == 0).all() and (y[~nothing] != 0).all()
    gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients) and gradients[0].abs().sum() > 0
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x, None, Context(pos)).y[0].sum(-1), x.detach())
    reads = jacobian[:, 0].abs().sum(-1) > 0
    keys = pattern.matrix(9)
    assert torch.equal(reads, keys | torch.diag(keys.sum(1) > 1))  # of two keys or more, the query chooses


def test_the_state_is_a_cache_of_what_may_still_be_read() -> None:
    stack = realformer(Causal() & Band(3), Causal() & Band(3))
    _, state = in_chunks(stack, torch.randn(2, 11, 16), torch.arange(11).repeat(2, 1), [4, 7])
    places = [leaf for name, leaf in leaves(state) if name == "pos"]
    assert len(places) == 2
    # three that the next query reads beside its own, and room for that
    assert all(leaf.sort().values.tolist() == [[-1, 8, 9, 10]] * 2 for leaf in places)


class Fewer(PairMap):
    """Scores of one head out of those of many."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return x.sum(1, keepdim=True)


def test_the_mask_is_that_of_the_heads_that_come_out_of_before() -> None:
    """One head is left, the first: it reads under the first head's pattern."""
    layer = Attention(QKV(16, 2, key_heads=1), Explicit(Heads(Causal() & Band(1), Causal()), before=Fewer()), **ONE)
    jacobian = torch.autograd.functional.jacobian(
        lambda x: layer(x, None, Context(torch.arange(6)[None])).y[0].sum(-1), torch.randn(1, 6, 16)
    )
    reads = jacobian[:, 0].abs().sum(-1) > 0
    assert torch.equal(reads | torch.eye(6).bool(), (Causal() & Band(1)).matrix(6))


ONE = {"aggregation": Concat()}


def test_attention_that_is_changed_does_not_tell_where_it_went() -> None:
    """`received_attention` would be of the scores before they were changed."""
    q, pos = torch.randn(1, 2, 3, 8), torch.arange(3)[None, None]
    bundles = Queries(q, pos), Keys(q, q, pos)
    plain, ctx = Explicit(Causal()), Context(pos[0])
    assert torch.allclose(
        plain.received_attention(*bundles, plain(*bundles, None, ctx).y, ctx).sum(), torch.tensor(3.0)
    )
    for changed in (Explicit(Causal(), before=AddOne()), Explicit(Causal(), after=AddOne())):
        with pytest.raises(ValueError, match="cannot report how much attention each key received"):
            changed.received_attention(*bundles, changed(*bundles, None, ctx).y, ctx)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, -1.0), (0.0, 1.0), (1.0, 0.0)], ids=str)
def test_a_stack_with_spans_gives_no_nan_whatever_the_weights(weights: tuple[float, float]) -> None:
    """Spans make scores of -inf, and the block above weighs them."""

    def block(z: float) -> PreNorm:
        span = AdaptiveSpan(2, 8, ramp=1.0, itself=z > 0, start=z)
        return PreNorm(Attention(QKV(16, 2), Explicit(Causal(), span, score=ResidualScores(*weights), up=True)))

    stack, x = Stack([block(z) for z in (3.0, 0.0, 5.0)]), torch.randn(2, 9, 16, requires_grad=True)
    out = stack(x)
    assert out.up["0.scores"].scores.isneginf().any() and not out.up["0.scores"].scores.isposinf().any()
    gradients = torch.autograd.grad(out.y.square().sum(), [x, *stack.parameters()], allow_unused=True)
    assert out.y.isfinite().all() and all(g is None or g.isfinite().all() for g in gradients)


def test_parts_of_the_wrong_kind_are_refused() -> None:
    for keywords, words in (
        ({"score": AddOne()}, "score is .*AddOne.*; give a score"),
        ({"before": ResidualScores()}, "before is .*ResidualScores.*; give a PairMap"),
        ({"after": ResidualScores()}, "after is .*ResidualScores.*; give a PairMap"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ):
        explicit = Explicit.__new__(Explicit)
        with pytest.raises(ValueError, match=f"(?s)^{words}"):
            inspect.unwrap(Explicit.__init__)(explicit, Causal(), **keywords)


class DecayedSum(PairMap):
    """Adds to each score those of the query before: it may not be read in blocks."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return x + F.pad(x, (0, 0, 1, 0))[:, :, :-1]


WAYS: dict[str, Callable[[], Explicit]] = {
    "plain": lambda: Explicit(Causal() & Band(9)),
    "biased": lambda: Explicit(Causal(), Relative(4, 5)),
    "talking": lambda: Explicit(Causal() & (Band(2) | Tokens(3)), T5(4), before=MixHeads(4, 6), after=MixHeads(6, 2)),
}


def read_of(mechanism: Explicit, x: list[Tensor]) -> list[Tensor]:
    q, k, v = x
    ctx = Context(torch.arange(q.shape[2]).expand(len(q), -1), run=True)
    out = mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y
    total = out.y.sin().sum() + (0 if out.lse is None else out.lse.cos().sum())
    gradients = torch.autograd.grad(total, [*x, *mechanism.parameters()])
    return [out.y, *([] if out.lse is None else [out.lse]), *gradients]


@pytest.mark.parametrize("method", WAYS)
def test_blocks_of_queries_change_nothing_and_hold_no_whole_matrix(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = WAYS[method]()
    x = [torch.randn(2, heads, 50, 4, requires_grad=True) for heads in (4, 2, 2)]
    whole, sizes, whole_method = read_of(mechanism, x), [], Explicit._read_with_scores

    def watched(self: Explicit, request: Request) -> tuple:
        sizes.append(request.queries.q.shape[2])
        return whole_method(self, request)

    monkeypatch.setattr(Explicit, "_read_with_scores", watched)
    monkeypatch.setattr(explicit, "PAIRS", 1)
    for ours, theirs in zip(read_of(mechanism, x), whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert max(sizes) == 16 and sum(sizes) == 2 * 50  # once more in the backward


@pytest.mark.parametrize(
    "mechanism",
    [Explicit(Causal(), up=True), Explicit(Causal(), before=DecayedSum()), Explicit(Causal(), after=DecayedSum())],
    ids=["up", "before", "after"],
)
def test_scores_that_are_handed_on_or_hang_together_are_made_at_once(
    mechanism: Explicit, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = [torch.randn(1, 2, 40, 4, requires_grad=True) for _ in range(3)]
    whole = read_of(mechanism, x)
    monkeypatch.setattr(explicit, "PAIRS", 1)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(read_of(mechanism, x), whole, strict=True))
