"""LSH attention: hashes, loops from the paper's equations, rounds that count once, and the laws in small."""

import math

import pytest
import torch

from kinformer.attention import Attention
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.mechanisms.lsh import LSH, Rotations
from kinformer.mechanisms.lsh_published import PublishedLSH
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.document import Document
from kinformer.patterns.full import Full
from kinformer.projections.shared_qk import SharedQK, unit

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K = 2, 2, 17, 4


def inputs(t=T):
    q = torch.randn(B, H, t, K)
    return q, unit(q), torch.randn(B, H, t, K)


def numbered(t=T):
    return torch.arange(t).expand(B, t)


def call(mechanism, q, k, v, pos=None, state=None, **limits):
    pos = torch.arange(q.shape[2]).expand(len(q), -1) if pos is None else pos
    return mechanism(q, k, v, pos, state, Context(pos, run=True, **limits), {})


def hashed(x, r):
    """Buckets of a vector in every round: argmax([x R, -x R])."""
    turned = [[sum(a * b for a, b in zip(x.tolist(), column, strict=True)) for column in m.T.tolist()] for m in r]
    both = [row + [-value for value in row] for row in turned]
    return [row.index(max(row)) for row in both]


def softmax_of(scores, values):
    """The weighted mean and the log-sum-exp of (key, score) pairs, a key as often as it is listed."""
    if not scores:
        return torch.zeros(values.shape[-1]), -math.inf
    logits = torch.stack([s for _, s in scores])
    return sum(w * values[j] for w, (j, _) in zip(logits.softmax(0), scores, strict=True)), logits.logsumexp(0)


def test_a_hash_is_the_nearest_of_rotated_axes():
    rotations = Rotations(H, K, 6, 3, seed=2)
    x = torch.randn(B, H, 5, K)
    found = rotations(x)
    for b in range(B):
        for h in range(H):
            for t in range(5):
                assert found[b, h, :, t].tolist() == hashed(x[b, h, t], rotations.r[h].transpose(0, 1))
    assert found.min() >= 0 and found.max() == 5
    assert torch.equal(rotations(x * torch.rand(B, H, 5, 1)), found)


def test_rotations_come_from_the_seed_and_are_saved():
    a, b, c = Rotations(2, 4, 4, 2, seed=1), Rotations(2, 4, 4, 2, seed=1), Rotations(2, 4, 4, 2, seed=2)
    assert torch.equal(a.r, b.r) and not torch.equal(a.r, c.r)
    c.load_state_dict(a.state_dict())
    assert torch.equal(a.r, c.r)


@pytest.mark.parametrize("pattern", [Causal(), Full(), Causal() & Band(5)], ids=str)
@pytest.mark.parametrize(("buckets", "rounds"), [(2, 1), (4, 3), (16, 2)])
def test_a_query_reads_the_union_of_its_buckets_and_itself_where_they_are_empty(pattern, buckets, rounds):
    """o_i = sum over j in S_i of softmax(q_i.k_j / sqrt(K)) v_j, each j once, i itself only where S_i is empty."""
    mechanism = LSH(H, K, buckets, rounds, pattern=pattern)
    q, k, v = inputs()
    read, alone = call(mechanism, q, k, v).y, 0
    for b in range(B):
        for h in range(H):
            r = mechanism.hash.r[h].transpose(0, 1)
            hashes = [hashed(x, r) for x in q[b, h]]
            for i in range(T):
                shared = [any(x == y for x, y in zip(hashes[i], hashes[j], strict=True)) for j in range(T)]
                others = [j for j in range(T) if j != i and shared[j] and bool(pattern(b, h, i, j))]
                alone += not others
                scores = [(j, q[b, h, i] @ k[b, h, j] / math.sqrt(K)) for j in others or [i]]
                y, lse = softmax_of(scores, v[b, h])
                assert torch.allclose(read.y[b, h, i], y, atol=1e-12)
                if others:
                    assert torch.allclose(read.lse[b, h, i], lse, atol=1e-12)
    assert alone >= (0 if pattern == Full() else B * H)


def test_with_keys_of_their_own_a_query_without_a_bucket_mate_reads_itself():
    q, _, v = inputs()
    mechanism = LSH(H, K, 2, 2, pattern=Full())
    r = mechanism.hash.r.mean(2)[..., 0]
    mechanism.hash.r.copy_(r[..., None, None].expand(H, K, 2, 1))
    q = r[None, :, None] + 0 * q
    read = call(mechanism, q, -q, v).y
    assert torch.allclose(read.y, v, atol=1e-12)


def test_rounds_merge_because_each_weight_is_divided_by_the_rounds_that_find_the_key():
    """o_i = sum_r exp(z_r - z) o_i^r, with weights exp(q.k) / N_ij in each round; or keys would count twice."""
    mechanism = LSH(1, K, 4, 4, pattern=Full())
    q, k, v = (x[:1, :1] for x in inputs())
    hashes = mechanism.hash(q)[0, 0]
    twice = 0
    for i in range(T):
        reads = []
        for r in range(4):
            scores = []
            for j in range(T):
                n = sum(int(hashes[m, i] == hashes[m, j]) for m in range(4))
                if hashes[r, i] == hashes[r, j] and i != j:
                    twice += n > 1
                    scores.append((j, q[0, 0, i] @ k[0, 0, j] / math.sqrt(K) - math.log(n)))
            reads.append(softmax_of(scores, v[0, 0]))
        z = torch.tensor([float(lse) for _, lse in reads])
        assert z.max() > -math.inf
        wanted = sum(w * y for w, (y, _) in zip(z.softmax(0), reads, strict=True))
        assert torch.allclose(call(mechanism, q, k, v).y.y[0, 0, i], wanted, atol=1e-12)
    assert twice > 0


def test_enough_rounds_are_full_attention_without_the_token_itself():
    q, k, v = inputs()
    many = call(LSH(H, K, 2, 64, pattern=Full()), q, k, v).y.y
    assert torch.allclose(many, call(Softmax(Full() & ~Band(0)), q, k, v).y.y, atol=1e-12)


def published(mechanism, q, k, v, pos):
    """The published form for one row and head, item by item, from its description."""
    size, rounds = mechanism.chunk, mechanism.rounds
    real = [s for s in range(len(pos)) if pos[s] >= 0]
    r = mechanism.hash.r[0].transpose(0, 1)
    hashes = {s: hashed(k[s], r) for s in real}
    items = sorted((n, hashes[s][n], int(pos[s]), s) for n in range(rounds) for s in real)
    place = {(n, s): at // size for at, (n, _, _, s) in enumerate(items)}
    last = (len(items) - 1) // size
    y = torch.zeros_like(v)
    for i in real:
        reads = []
        for n in range(rounds):
            mine = place[n, i]
            back = last if mine == 0 else mine - 1
            scores = []
            for at, (m, bucket, _, j) in enumerate(items):
                seen = at // size in (mine, back) and bool(mechanism.pattern(0, 0, int(pos[i]), int(pos[j])))
                if not seen or (mechanism.restricted and (m, bucket) != (n, hashes[i][n])):
                    continue
                score = q[i] @ k[j] / math.sqrt(K) - 1e5 * (i == j)
                if mechanism.divided:
                    score = score - math.log(max(1, found_in(mechanism, place, hashes, last, i, j)))
                scores.append((j, score))
            reads.append(softmax_of(scores, v))
        z = torch.tensor([float(lse) for _, lse in reads])
        y[i] = sum(w * o for w, (o, _) in zip(z.softmax(0), reads, strict=True))
    return y


def found_in(mechanism, place, hashes, last, i, j):
    """N_ij: rounds in which j is in i's chunk or the one before it, and in its bucket where that is asked."""
    count = 0
    for n in range(mechanism.rounds):
        mine = place[n, i]
        near = place[n, j] in (mine, last if mine == 0 else mine - 1)
        count += near and (not mechanism.restricted or hashes[i][n] == hashes[j][n])
    return count


@pytest.mark.parametrize("length", [1, 2, 6, 17])
@pytest.mark.parametrize("pattern", [Causal(), Full()], ids=str)
@pytest.mark.parametrize("restricted", [True, False])
@pytest.mark.parametrize("divided", [True, False])
def test_the_published_form_against_a_loop(length, pattern, restricted, divided):
    for rounds, size in ((1, 3), (3, 4), (2, 40)):
        mechanism = PublishedLSH(
            1, K, 4, size, rounds, pattern=pattern, restricted=restricted, divided=divided, seed=rounds
        )
        q, k, v = (x[:, :1] for x in inputs(length))
        pos = numbered(length).clone()
        pos[1, : length // 3] = -1
        found = call(mechanism, q, k, v, pos).y.y
        for b in range(B):
            wanted = published(mechanism, q[b, 0], k[b, 0], v[b, 0], pos[b])
            assert torch.allclose(found[b, 0], wanted, atol=1e-12)


def test_chunks_that_hold_every_bucket_whole_read_what_the_strict_form_reads():
    q, k, v = inputs()
    strict = call(LSH(H, K, 4, 3, seed=5), q, k, v).y
    wide = call(PublishedLSH(H, K, 4, 3 * T, 3, seed=5), q, k, v).y
    assert torch.allclose(strict.y, wide.y, atol=1e-12) and torch.allclose(strict.lse, wide.lse, atol=1e-12)


both = pytest.mark.parametrize("mechanism", [LSH(H, K, 4, 2), PublishedLSH(H, K, 4, 3, 2)], ids=["strict", "published"])


@both
def test_padding_on_either_side_changes_nothing(mechanism):
    q, k, v = inputs()
    alone = call(mechanism, q, k, v).y
    pos = torch.full((B, T + 5), -1)
    placed = [100 * torch.randn(B, H, T + 5, K) for _ in range(3)]
    for b, left in enumerate((5, 2)):
        pos[b, left : left + T] = torch.arange(T)
        for x, y in zip(placed, (q, k, v), strict=True):
            x[b, :, left : left + T] = y[b]
    found = call(mechanism, *placed, pos).y
    for b in range(B):
        assert torch.allclose(found.y[b][:, pos[b] >= 0], alone.y[b], atol=1e-12)
        assert torch.allclose(found.lse[b][:, pos[b] >= 0], alone.lse[b], atol=1e-12)
    assert found.y.transpose(1, 2)[pos < 0].count_nonzero() == 0


@both
def test_empty_rows_give_zero_and_finite_gradients(mechanism):
    q, k, v = (x.requires_grad_() for x in inputs())
    pos = numbered().clone()
    pos[0] = -1
    read = call(mechanism, q, k, v, pos).y
    read.y.sum().backward()
    assert read.y[0].count_nonzero() == 0 and bool((read.lse[0] == -torch.inf).all())
    assert all(x.grad is not None and x.grad.isfinite().all() and x.grad[0].count_nonzero() == 0 for x in (q, k, v))


@both
def test_documents_of_the_batch_are_kept_apart(mechanism):
    """A batch's own limits reach every folded row under its own number."""
    q, k, v = inputs()
    first = torch.tensor([5, 11])
    ids = (numbered() >= first[:, None]).long()
    found = call(mechanism, q, k, v, only=Document(ids)).y.y
    for b in range(B):
        cut = int(first[b])
        other = [x.clone() for x in (k, v)]
        other[1][b, :, :cut] = 100.0
        changed = call(mechanism, q, k, other[1], only=Document(ids)).y.y
        assert torch.allclose(changed[b, :, cut:], found[b, :, cut:], atol=1e-12)
        assert not torch.allclose(changed[b, :, :cut], found[b, :, :cut])


@pytest.mark.parametrize("sizes", [[1] * T, [5, 1, 11]], ids=str)
def test_the_strict_form_decodes_to_the_whole(sizes):
    layer = Attention(8, H, LSH(H, K, 4, 2), projection=SharedQK(8, H))
    x = torch.randn(B, T, 8)
    state, found = layer.start(B, T), []
    for at in torch.arange(T).split(sizes):
        out = layer(x[:, at], state, Context(numbered()[:, at], run=True))
        state = out.state
        found.append(out.y)
    assert torch.allclose(torch.cat(found, 1), layer(x, None, Context(numbered(), run=True)).y, atol=1e-12)


def peeks(mechanism):
    """Does redrawing what comes after token t change the output at a token up to t, for any t?"""
    q, k, v = inputs()
    before = call(mechanism, q, k, v).y.y
    for t in range(T - 1):
        later = torch.arange(T)[:, None] > t
        q_new = torch.where(later, 5 * torch.randn(B, H, T, K), q)
        after = call(mechanism, q_new, unit(q_new), torch.where(later, torch.randn(B, H, T, K), v)).y.y
        if not torch.allclose(after[:, :, : t + 1], before[:, :, : t + 1], atol=1e-12):
            return True
    return False


def test_only_the_published_form_peeks():
    assert not peeks(LSH(H, K, 4, 2))
    assert peeks(PublishedLSH(H, K, 4, 3, 2))


def test_the_published_form_decodes_as_if_nothing_came_after():
    """A state holds the keys; the last token of every step reads what a call that ends there reads."""
    mechanism = PublishedLSH(H, K, 4, 3, 2)
    q, k, v = inputs()
    state = mechanism.start(B, T, H, K, K)
    for t in range(T):
        out = call(mechanism, *(x[:, :, t : t + 1] for x in (q, k, v)), numbered()[:, t : t + 1], state)
        state = out.state
        whole = call(mechanism, *(x[:, :, : t + 1] for x in (q, k, v))).y.y
        assert torch.allclose(out.y.y[:, :, 0], whole[:, :, -1], atol=1e-12)


def test_key_heads_may_be_shared():
    mechanism = LSH(H, K, 4, 2), PublishedLSH(H, K, 4, 3, 2)
    q, k, v = torch.randn(B, H, T, K), torch.randn(B, 1, T, K), torch.randn(B, 1, T, K)
    for m in mechanism:
        spread = call(m, q, *(x.expand(-1, H, -1, -1) for x in (k, v))).y
        assert torch.allclose(call(m, q, k, v).y.y, spread.y, atol=1e-13)


@both
def test_half_precision_is_finite(mechanism):
    for dtype in (torch.bfloat16, torch.float16):
        read = call(mechanism, *(x.to(dtype) for x in inputs())).y
        assert read.y.dtype == dtype and read.y.isfinite().all()
        # the first token finds nothing but itself
        assert read.y[:, :, 0].count_nonzero() == B * H * K


def test_what_cannot_be_done_is_refused():
    q, k, v = inputs()
    for mechanism in (LSH(H, K, 4), PublishedLSH(H, K, 4, 3)):
        with pytest.raises(ValueError, match=r"ctx\.also"):
            call(mechanism, q, k, v, also=Causal())
        with pytest.raises(ValueError, match="make it with heads=3, k_dim=5"):
            call(mechanism, *(torch.randn(B, 3, T, 5) for _ in range(3)))
    for mechanism in (LSH(H, K, 4, pattern=Full()), PublishedLSH(H, K, 4, 3, pattern=Full())):
        with pytest.raises(NoState, match="reads up to inf positions ahead"):
            mechanism.start(B, T, H, K, K)
    with pytest.raises(ValueError, match="even number"):
        LSH(H, K, 3)
    with pytest.raises(ValueError, match="at least once"):
        LSH(H, K, 4, 0)
    with pytest.raises(ValueError, match="at least one token"):
        PublishedLSH(H, K, 4, 0)
