"""attend for anyone: with positions or without, any number of heads, and clear words for what does not fit."""

import math

import pytest
import torch

import kinformer
from kinformer.attend import attend, explain
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.multihead_attention import AttentionMask
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens
from tests.unhooked import refusals, unhooked

pytestmark = pytest.mark.usefixtures("float64")
B, H, T, S, K, V = 2, 4, 5, 9, 6, 3


def dense(q, k, v, allowed):
    """Pair by pair, key head h // (H / G), value head h // (H / U)."""
    y = torch.zeros(*q.shape[:3], v.shape[3])
    for b in range(q.shape[0]):
        for h in range(H):
            for i in range(q.shape[2]):
                at = [j for j in range(k.shape[2]) if allowed(b, h, i, j)]
                if at:
                    key, value = k[b, h * k.shape[1] // H], v[b, h * v.shape[1] // H]
                    logits = torch.stack([q[b, h, i] @ key[j] / math.sqrt(max(q.shape[3], 1)) for j in at])
                    y[b, h, i] = logits.softmax(0) @ value[at]
    return y


def qkv(groups=H, values=None, t=T, s=S, width=K):
    values = groups if values is None else values
    return torch.randn(B, H, t, width), torch.randn(B, groups, s, width), torch.randn(B, values, s, V)


def test_it_is_the_public_function():
    assert kinformer.attend is attend


def test_without_positions_queries_are_the_last_of_the_keys():
    q, k, v = qkv()
    actual = attend(q, k, v, pattern=Causal() & Band(3))
    expected = dense(q, k, v, lambda b, h, i, j: i + S - T - 3 <= j <= i + S - T)
    torch.testing.assert_close(actual.y, expected)
    pos = torch.arange(S).expand(B, 1, -1)
    same = attend(q, k, v, pattern=Causal() & Band(3), q_pos=pos[..., S - T :], k_pos=pos)
    torch.testing.assert_close(same.y, actual.y)
    torch.testing.assert_close(same.lse, actual.lse)


@pytest.mark.parametrize("pattern", [Causal(), Full()], ids=str)
def test_without_positions_as_many_queries_as_keys_read_like_with_them(pattern):
    """No mask is made then, and no lse: the fastest way must still be the same read."""
    q, k, v = qkv(t=S)
    pos = torch.arange(S).expand(B, 1, -1)
    expected = attend(q, k, v, pattern=pattern, q_pos=pos, k_pos=pos.clone(), impl="reference").y
    for lse in (True, False):
        torch.testing.assert_close(attend(q, k, v, pattern=pattern, lse=lse).y, expected)
    torch.testing.assert_close(attend(q, k, v, pattern=pattern, lse=False, impl="sdpa").y, expected)


SHAPES = [(B, S), (H, S), (B, 2, S), (B, 1, S + 1), (1, 1, S)]
MISFITS = [
    (((B, T, K), (B, H, S, K), (B, H, S, V)), "attend needs q"),
    (((B, H, T, K), (B, H, S, K), (B, H, S + 1, V)), "attend needs q"),
    (((B, H, T, K), (B + 1, H, S, K), (B, H, S, V)), "attend needs q"),
    (((B, H, T, K), (B, H, S, K + 1), (B, H, S, V)), "queries and keys have different widths"),
]


def refusal_messages() -> dict[str, list[str]]:
    q, k, v = (torch.zeros(B, H, S, width) for width in (K, K, V))
    square, pos = torch.zeros(H, H, S, K), torch.arange(S).expand(H, S)
    places = [(name, torch.zeros(shape, dtype=torch.long)) for shape in SHAPES for name in ("q_pos", "k_pos")]
    return {
        "positions": refusals([lambda name=name, pos=pos: attend(q, k, v, **{name: pos}) for name, pos in places]),
        "equal": refusals([lambda: attend(square, square, square, q_pos=pos, k_pos=pos[:, None])]),
        "shapes": refusals([lambda each=each: attend(*map(torch.zeros, each)) for each, _ in MISFITS]),
    }


def test_positions_of_another_shape_are_refused_with_advice():
    names = [name for _ in SHAPES for name in ("q_pos", "k_pos")]
    for text, name in zip(unhooked(f"{__name__}:{refusal_messages.__name__}")["positions"], names, strict=True):
        assert text.startswith(f"ValueError: {name} must be integers [B, 1, N]") and text.endswith(
            f"positions [B, N] as {name}[:, None]"
        )


def test_positions_without_a_head_axis_are_refused_where_batch_and_heads_are_equal():
    """Broadcast, they would be positions by head of every row: a wrong read without an error."""
    (text,) = unhooked(f"{__name__}:{refusal_messages.__name__}")["equal"]
    assert text.startswith("ValueError: q_pos must be integers") and f"of shape [{H}, {S}]; pass positions" in text
    q, pos = torch.randn(H, H, S, K), torch.arange(S).expand(H, S)
    attend(q, q, q, q_pos=pos[:, None], k_pos=pos[:, None])


def test_shapes_that_do_not_fit_are_refused():
    for text, (_, start) in zip(unhooked(f"{__name__}:{refusal_messages.__name__}")["shapes"], MISFITS, strict=True):
        assert text.startswith(f"ValueError: {start}")


def test_positions_by_head():
    q, k, v = qkv()
    q_pos, k_pos = torch.randint(0, 9, (B, H, T)), torch.stack([torch.randperm(S) for _ in range(B * H)]).view(B, H, S)
    actual = attend(q, k, v, pattern=Causal(), q_pos=q_pos, k_pos=k_pos)
    expected = dense(q, k, v, lambda b, h, i, j: bool(k_pos[b, h, j] <= q_pos[b, h, i]))
    torch.testing.assert_close(actual.y, expected)


@pytest.mark.parametrize(("groups", "values"), [(4, 4), (2, 2), (1, 1), (4, 1), (1, 4), (2, 4), (4, 2)])
def test_heads_of_keys_and_of_values_are_shared_apart(groups, values):
    q, k, v = qkv(groups, values)
    actual = attend(q, k, v, pattern=Causal())
    torch.testing.assert_close(actual.y, dense(q, k, v, lambda b, h, i, j: j <= i + S - T))


@pytest.mark.parametrize(("groups", "values", "message"), [(3, 1, "3 key heads"), (1, 3, "3 value heads")])
def test_heads_that_do_not_share_evenly_are_refused(groups, values, message):
    q, k, v = torch.randn(B, H, T, K), torch.randn(B, groups, S, K), torch.randn(B, values, S, V)
    with pytest.raises(ValueError, match=f"4 query heads cannot share {message} evenly"):
        attend(q, k, v)


def test_keys_of_no_width_are_read_evenly():
    """Value-only mechanisms: every score is 0."""
    q, k, v = qkv(width=0)
    actual = attend(q, k, v, pattern=Causal() & Band(2))
    torch.testing.assert_close(actual.y, dense(q, k, v, lambda b, h, i, j: i + S - T - 2 <= j <= i + S - T))
    torch.testing.assert_close(actual.lse, torch.full((B, H, T), math.log(3)))


def test_no_keys_and_no_queries():
    q, k, v = qkv(s=0)
    actual = attend(q, k, v, q_pos=torch.zeros(B, 1, T).long())
    assert actual.y.count_nonzero() == 0 and (actual.lse == -torch.inf).all()
    assert attend(q[:, :, :0], k, v).y.shape == (B, H, 0, V)


def test_a_context_narrows_widens_and_brings_labels():
    q, k, v = qkv(t=S)
    ids = torch.tensor([[0] * 4 + [1] * 5] * B)
    pos = torch.arange(S).expand(B, -1)
    ctx = Context(pos, only=Document(ids), also=Tokens(1), run=True, full=True)
    actual = attend(q, k, v, pattern=Causal() & Band(2), ctx=ctx, q_pos=ctx.by_head, k_pos=ctx.by_head)

    def allowed(b, h, i, j):
        return (i - 2 <= j <= i or j < 1) and bool(ids[b, i] == ids[b, j])

    torch.testing.assert_close(actual.y, dense(q, k, v, allowed))


def test_numbers_of_a_table_are_added_to_the_scores():
    q, k, v = qkv(t=S)
    table = torch.randn(B, 1, S, S)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(H // k.shape[1], 1), v.repeat_interleave(H // v.shape[1], 1), table
    )
    torch.testing.assert_close(attend(q, k, v, bias=AttentionMask(table.to(q.dtype))).y, expected.to(q.dtype))


def test_without_positions_those_of_the_context_count():
    q, k, v = qkv(t=S)
    real = torch.ones(B, S, dtype=torch.bool)
    real[0, 6:] = False
    ctx = Context.of_sequence(q.transpose(1, 2), real)
    torch.testing.assert_close(
        attend(q, k, v, ctx=ctx).y, dense(q, k, v, lambda b, h, i, j: bool(real[b, i] and real[b, j]))
    )
    q, k, v = qkv(t=T)
    cross = Context(torch.arange(T).expand(B, -1), source=torch.zeros(B, S, 1), source_pos=torch.where(real, 0, -1))
    torch.testing.assert_close(attend(q, k, v, ctx=cross).y, dense(q, k, v, lambda b, h, i, j: bool(real[b, j])))


def test_rows_name_the_batch_row_of_folded_queries():
    q, k, v = qkv(t=S)
    ids = torch.tensor([[0] * 4 + [1] * 5, [0] * 2 + [1] * 7])
    rows = torch.tensor([1, 0, 1])
    actual = attend(q[[0, 0, 1]], k[[0, 0, 1]], v[[0, 0, 1]], pattern=Document(ids), rows=rows)
    for n, (x, row) in enumerate(((0, 1), (0, 0), (1, 1))):
        expected = dense(q[[x]], k[[x]], v[[x]], lambda b, h, i, j, row=row: bool(ids[row, i] == ids[row, j]))
        torch.testing.assert_close(actual.y[[n]], expected)


def test_scale_and_bias():
    q, k, v = qkv(2, t=S)
    bias = ALiBi(H)
    actual = attend(q, k, v, pattern=Causal(), bias=bias, scale=0.3)
    distance = torch.arange(S)[:, None] - torch.arange(S)
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / H) for h in range(H)])
    logits = torch.einsum("bhtk,bhsk->bhts", q, k.repeat_interleave(2, 1)) * 0.3 - slopes[:, None, None] * distance
    weights = logits.masked_fill(distance < 0, -torch.inf).softmax(-1)
    torch.testing.assert_close(actual.y, weights @ v.repeat_interleave(2, 1))


def test_an_executor_by_name_obeys_or_says_why_not():
    q, k, v = qkv(t=S)
    for keywords, reason in (
        ({}, r"returns no log-sum-exp \(lse\)"),
        ({"lse": False, "bias": ALiBi(H)}, "without a bias"),
    ):
        with pytest.raises(ValueError, match=f"impl='sdpa' cannot compute this call: .*{reason}; use impl='auto'"):
            attend(q, k, v, impl="sdpa", **keywords)
    with pytest.raises(ValueError, match="impl='flash' is not known; choose 'auto' or "):
        attend(q, k, v, impl="flash")
    assert attend(q, k, v, impl="sdpa", lse=False).lse is None


def test_explain_is_the_table_of_costs_and_reasons_the_cheapest_first():
    q, k, v = qkv(t=S)
    pos = torch.arange(S).expand(B, 1, -1)
    request = Request(Queries(q, pos), Keys(k, v, pos), Causal(), Product(), lse=True)
    table = explain(request)
    assert isinstance(table["sdpa"], Refusal) and "lse" in table["sdpa"].reason and table["reference"] > 0
    costs = [math.inf if isinstance(cost, Refusal) else cost for cost in explain(request.replace(lse=False)).values()]
    assert costs == sorted(costs) and explain(request.replace(lse=False))["sdpa"] < table["reference"]


def test_what_a_context_promises_says_nothing_of_other_positions():
    q, k, v = torch.randn(3, 1, 2, 6, 4).unbind()
    ctx = Context.of_sequence(torch.zeros(1, 6, 4))
    for pattern, at in ((Causal(), [3, 1, 0, 5, 2, 4]), (Full(), [0, 1, 2, 3, -1, -1])):
        pos = torch.tensor([[at]])
        arguments = {"pattern": pattern, "q_pos": pos, "k_pos": pos, "ctx": ctx}
        torch.testing.assert_close(attend(q, k, v, lse=False, **arguments).y, attend(q, k, v, **arguments).y)


def test_more_queries_than_keys_want_positions_unless_all_is_read():
    q, k = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 3, 4)
    assert attend(q, k, k).y.shape == (1, 2, 5, 4)
    with pytest.raises(ValueError, match="got 5 queries but only 3 keys; pass q_pos="):
        attend(q, k, k, pattern=Causal())


def test_a_pattern_s_subclass_is_read_as_itself():
    class Strict(Causal):
        def __call__(self, b, h, q, k):
            return torch.as_tensor(k < q)

    q, k, v = torch.randn(3, 1, 2, 6, 4).unbind()
    torch.testing.assert_close(attend(q, k, v, pattern=Strict(), lse=False).y, attend(q, k, v, pattern=Strict()).y)


def test_keys_and_queries_at_padding_may_be_no_numbers() -> None:
    """What real queries read of real keys, and its gradients, by a loop over the real ones alone."""
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    q_pos, k_pos = torch.tensor([[[-1, 0, 1, 2, -1]]]), torch.tensor([[[0, -1, 1, 2, -1]]])
    wild = [x.clone() for x in (q, k, v)]
    for x, pos in zip(wild, (q_pos, k_pos, k_pos), strict=True):
        x[:, :, pos[0, 0] < 0] = torch.tensor([math.nan, math.inf, -math.inf, 1e38])
        x.requires_grad_()
    real_q, real_k, real_v = (
        x.detach()[:, :, pos[0, 0] >= 0].requires_grad_()
        for x, pos in zip((q, k, v), (q_pos, k_pos, k_pos), strict=True)
    )
    weights = (real_q @ real_k.mT / 2).masked_fill(~Causal().matrix(3), -torch.inf).softmax(-1)
    want = weights @ real_v
    read = attend(*wild, q_pos=q_pos, k_pos=k_pos, pattern=Causal())
    torch.testing.assert_close(read.y[:, :, q_pos[0, 0] >= 0], want)
    gradients = torch.autograd.grad(read.y.sin().sum(), wild)
    expected = torch.autograd.grad(want.sin().sum(), [real_q, real_k, real_v])
    for mine, theirs, pos in zip(gradients, expected, (q_pos, k_pos, k_pos), strict=True):
        torch.testing.assert_close(mine[:, :, pos[0, 0] >= 0], theirs)
        assert not mine[:, :, pos[0, 0] < 0].any()
