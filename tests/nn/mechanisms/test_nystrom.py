"""Nystrom attention by loops from its equations, its pseudo-inverse by what one must be, and what it never makes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.attend import attend
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.document import Document
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.landmarks import ThroughLandmarks
from kinformer.nn.mechanisms.nystrom import Nystrom, NystromIdentity, pseudo_inverse
from kinformer.nn.mechanisms.nystrom_published import PublishedNystrom
from kinformer.nn.mechanisms.value_conv import ValueConv
from kinformer.nn.projections.qkv import QKV
from tests.nn.mechanisms.test_highest_scores import Largest

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K, V = 2, 2, 11, 4, 3
PADDED = torch.tensor([[-1, -1, 0, 1, 2, 3, 4, 5, 6, -1, -1], list(range(T))])


def bundles(pos: Tensor, k_pos: Tensor | None = None, groups: int = H) -> tuple[Queries, Keys, Context]:
    source = {} if k_pos is None else {"source": torch.zeros(B, k_pos.shape[1], 1), "source_pos": k_pos}
    ctx = Context(pos, run=True, **source)  # type: ignore[arg-type]
    key_pos = ctx.by_head if k_pos is None else ctx.source_by_head
    count = key_pos.shape[2]
    keys = Keys(torch.randn(B, groups, count, K), torch.randn(B, groups, count, V), key_pos, own=k_pos is None)
    return Queries(torch.randn(B, H, pos.shape[1], K), ctx.by_head), keys, ctx


def cuts(mechanism: ThroughLandmarks, count: int) -> list[list[int]]:
    """Which tokens of a row each landmark is the mean of."""
    if isinstance(mechanism, NystromIdentity):
        return [list(range(at, min(at + mechanism.size, count))) for at in range(0, count, mechanism.size)]
    assert isinstance(mechanism, Nystrom)
    segments: list[list[int]] = [[] for _ in range(min(mechanism.landmarks, count))]
    for t in range(count):
        segments[t * len(segments) // count].append(t)
    return segments


def weights(q: Tensor, k: Tensor) -> Tensor:
    """A softmax for each line; queries and keys each divided by the fourth root of their width, as the paper has it."""
    q, k = q / K**0.25, k / K**0.25
    lines = [torch.stack([(query @ other).exp() for other in k]) for query in q]
    return torch.stack([line / line.sum() for line in lines])


def inverse(mechanism: ThroughLandmarks, a: Tensor) -> Tensor:
    if isinstance(mechanism, NystromIdentity):
        return torch.linalg.inv(a + torch.eye(len(a)))
    assert isinstance(mechanism, Nystrom)
    z = a.T / (max(a.sum(0).tolist()) * max(a.sum(1).tolist()))
    for _ in range(mechanism.iterations):
        eye = torch.eye(len(a))
        z = z / 4 @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z)))
    return z


def loop(mechanism: ThroughLandmarks, q: Tensor, k: Tensor, v: Tensor, kernel: Tensor | None) -> Tensor:
    """One row, one head, no padding."""
    q_mean = torch.stack([q[at].mean(0) for at in cuts(mechanism, len(q))])
    k_mean = torch.stack([k[at].mean(0) for at in cuts(mechanism, len(k))])
    f, a, b = weights(q, k_mean), weights(q_mean, k_mean), weights(q_mean, k)
    y = f @ inverse(mechanism, a) @ b @ v
    if isinstance(mechanism, Nystrom) and len(k) <= mechanism.landmarks:
        y = weights(q, k) @ v
    for i in range(len(q) if kernel is not None else 0):
        for n, w in enumerate(kernel):
            at = i + n - len(kernel) // 2
            if 0 <= at < len(v):
                y[i] = y[i] + w * v[at]
    return y


FORMS = {
    "paper": lambda: Nystrom(3),
    "skip": lambda: Nystrom(4, iterations=2, skip=ValueConv(H, 5)),
    "as many landmarks as tokens of one row": lambda: Nystrom(7),
    "more landmarks than tokens": lambda: Nystrom(20, skip=ValueConv(H, 3)),
    "identity": lambda: NystromIdentity(3),
    "identity, every token": lambda: NystromIdentity(1),
}


@pytest.mark.parametrize("groups", [H, 1])
@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_real_tokens_read_what_the_equation_says(form: str, groups: int) -> None:
    mechanism = FORMS[form]()
    queries, keys, ctx = bundles(PADDED, groups=groups)
    output = mechanism(queries, keys, None, ctx).y
    assert output.lse is None
    for b, h in ((b, h) for b in range(B) for h in range(H)):
        at, g = PADDED[b] >= 0, h * groups // H
        skip = getattr(mechanism, "skip", None)
        kernel = None if skip is None else skip.weight[h]
        want = loop(mechanism, queries.q[b, h, at], keys.k[b, g, at], keys.v[b, g, at], kernel)
        torch.testing.assert_close(output.y[b, h, at], want)
        assert not output.y[b, h, ~at].any()


@pytest.mark.parametrize(("tokens", "source"), [(11, 5), (4, 11), (2, 9)])
@torch.no_grad()
def test_a_source_of_another_length_is_read(tokens: int, source: int) -> None:
    mechanism = Nystrom(3)
    pos, k_pos = (torch.arange(n).expand(B, -1).clone() for n in (tokens, source))
    k_pos[0, -2:] = -1
    queries, keys, ctx = bundles(pos, k_pos)
    output = mechanism(queries, keys, None, ctx).y.y
    for b, h in ((b, h) for b in range(B) for h in range(H)):
        at = k_pos[b] >= 0
        want = loop(mechanism, queries.q[b, h], keys.k[b, h, at], keys.v[b, h, at], None)
        torch.testing.assert_close(output[b, h], want)


def stochastic(size: int, spread: float, rows: int = 1) -> Tensor:
    return (spread * torch.randn(rows, 1, size, size)).softmax(-1)


def test_the_iteration_finds_the_pseudo_inverse() -> None:
    """Of whole rank, of a lower one, and of matrices that are not square; each by its own norms."""
    whole = stochastic(6, 4.0, 3)
    low = torch.cat([whole[..., :3, :]] * 2, -2)
    for a in (whole, low, low[..., :4, :], low[..., :3, :]):
        z = pseudo_inverse(a, 40 if a is whole else 12)
        torch.testing.assert_close(z, torch.linalg.pinv(a), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(pseudo_inverse(whole)[1:2], pseudo_inverse(whole[1:2]))
    assert not torch.allclose(pseudo_inverse(whole, norms="batch")[1:2], pseudo_inverse(whole[1:2], norms="batch"))


def test_each_iteration_takes_the_fourth_power_of_the_error_of_a_singular_value() -> None:
    """1 - s' = (1 - s)^3 (1 - s/4) for s a singular value of AZ, so it tends to one from any start below."""
    a = torch.diag(torch.tensor([1.0, 0.5, 0.01]))[None, None]
    before, after = (torch.diagonal((a @ pseudo_inverse(a, n))[0, 0]) for n in (3, 4))
    torch.testing.assert_close(1 - after, (1 - before) ** 3 * (1 - before / 4))


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_six_iterations_in_float32_are_those_in_float64(spread: float) -> None:
    """Also where all landmarks are nearly alike: what rounding leaves grows by no more than 13/4 an iteration."""
    a = stochastic(16, spread, 4)
    want, single = pseudo_inverse(a), pseudo_inverse(a.float())
    error = float((single.double() - want).abs().max() / want.abs().max())
    assert error < (13 / 4) ** 6 * torch.finfo(torch.float32).eps


def test_landmarks_that_are_swapped_make_no_nan() -> None:
    """A + I is singular where A swaps landmarks, as softmax of scores far apart does."""
    swap = torch.eye(4).flip(0)[None, None].requires_grad_()
    inverse = NystromIdentity(2).approximate_inverse(swap)
    inverse.sum().backward()
    assert inverse.isfinite().all() and swap.grad is not None and swap.grad.isfinite().all()


@pytest.mark.parametrize(("size", "tokens"), [(3, 4), (4, 6), (4, 9), (8, 10), (8, 42), (8, 16), (5, 7)])
def test_landmarks_are_means_of_size_tokens_however_a_row_is_padded(size: int, tokens: int) -> None:
    """A row without padding is cut as the same row beside padding: each landmark but the last has `size` tokens."""
    q, k, v = torch.randn(3, 1, 1, tokens, K).unbind()
    pos = torch.arange(tokens)[None]
    queries, keys = Queries(q, pos[:, None]), Keys(k, v, pos[:, None])
    whole = NystromIdentity(size)(queries, keys, None, Context(pos, run=True, full=True)).y.y
    means = [[x[0, 0, n : n + size].mean(0) for n in range(0, tokens, size)] for x in (q, k)]
    near, far = (torch.stack(rows) for rows in means)
    f, a, b = ((x @ y.T / K**0.5).softmax(-1) for x, y in ((q[0, 0], far), (near, far), (near, k[0, 0])))
    expected = f @ torch.linalg.solve(a + torch.eye(len(a)), b @ v[0, 0])
    torch.testing.assert_close(whole[0, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [lambda: Nystrom(8, skip=ValueConv(1, 5)), lambda: NystromIdentity(64)])
def test_no_matrix_of_pairs_of_tokens_is_made_or_kept(make: Any) -> None:
    """Forward and backward: the largest are as long as the row, and as wide as a head or as there are landmarks."""
    length, width = 512, 8
    ctx = Context.of_sequence(torch.zeros(1, length, 1))
    q, k, v = (torch.randn(1, 1, length, width, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        make()(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y.sum().backward()
    assert largest.size <= 2 * length * width < length**2 / 10


def test_layers_of_other_landmarks_share_no_segments() -> None:
    x, ctx = torch.randn(1, 12, 8), Context.of_sequence(torch.randn(1, 12, 8))
    layers = [Attention(QKV(8, 2), part) for part in (Nystrom(3), Nystrom(4), NystromIdentity(3), PublishedNystrom(3))]
    together = [layer(x, None, ctx).y for layer in layers]
    for layer, layer_out in zip(layers, together, strict=True):
        torch.testing.assert_close(layer(x).y, layer_out)


def test_as_few_tokens_as_landmarks_are_read_exactly_beside_longer_rows() -> None:
    queries, keys, ctx = bundles(PADDED)
    output = Nystrom(7)(queries, keys, None, ctx).y.y
    want = attend(queries.q, keys.k, keys.v, q_pos=ctx.by_head, k_pos=ctx.by_head).y
    torch.testing.assert_close(output[0], want[0])
    assert not torch.allclose(output[1], want[1])


def test_what_it_cannot_read_is_refused_in_one_line() -> None:
    queries, keys, ctx = bundles(PADDED)
    documents = Document(torch.zeros(B, T, dtype=torch.long))
    cases: list[tuple[Any, str]] = [
        (lambda: Nystrom(3)(queries, keys, None, ctx.replace(run=False)), "run=True"),
        (lambda: Nystrom(3)(queries, keys, None, ctx.replace(only=documents)), "ctx.only"),
        (lambda: Nystrom(3)(queries, None, None, ctx), "source"),
        (lambda: Nystrom(3)(queries, keys._replace(pos=ctx.by_head.expand(-1, H, -1)), None, ctx), "by head"),
        (lambda: Nystrom(3, skip=ValueConv(3, 3))(queries, keys, None, ctx), "made for 3 heads, but got 2"),
        (lambda: Attention(QKV(8, 2), Nystrom(3, skip=ValueConv(2, 3)), cross=True), "the queries' own values"),
        (
            lambda: Attention(QKV(8, 2), NystromIdentity(3), cross=True),
            r"cannot be used in cross-attention: [^.]*\. Use Nystrom$",
        ),
        (lambda: ValueConv(2, 4), "kernel=4 is even, so the kernel has no middle"),
        (lambda: Nystrom(0), "landmarks=0"),
    ]
    for call, says in cases:
        with pytest.raises(ValueError, match=says) as raised:
            call()
        assert "\n" not in str(raised.value)
    with pytest.raises(NoState, match="Use Softmax"):
        Nystrom(3).start(StateSpec(1, 4, torch.float32, torch.device("cpu")), HeadSizes(2, 2, 2, 4, 4))


@pytest.mark.parametrize(("length", "kernel"), [(1, 9), (5, 3), (64, 33), (200, 65), (130, 131)])
def test_the_skip_is_a_convolution_of_each_head(length: int, kernel: int) -> None:
    skip, v = ValueConv(H, kernel), torch.randn(B, H, length, V, requires_grad=True)
    want = F.conv2d(v, skip.weight[:, None, :, None], padding=(kernel // 2, 0), groups=H)
    output = skip(v, torch.arange(length).expand(B, 1, -1))
    torch.testing.assert_close(output, want)
    of, direction = (v, skip.weight), torch.randn_like(want)
    torch.testing.assert_close(torch.autograd.grad(output, of, direction), torch.autograd.grad(want, of, direction))
