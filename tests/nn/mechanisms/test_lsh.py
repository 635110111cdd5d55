"""LSH attention: hashes, loops from the paper's equations, rounds that count once, and the laws in small."""

import math

import pytest
import torch

from kinformer.attend import read
from kinformer.core.choice import Choices
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.core.scores.product import Product
from kinformer.core.unit_vector import unit
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.lsh import LSH, HashRotations
from kinformer.nn.mechanisms.lsh_published import PublishedLSH
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.sorted_groups import read_sorted, sort_rounds
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.shared_qk import SharedQK

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K = 2, 2, 17, 4


def inputs(t=T):
    q = torch.randn(B, H, t, K)
    return q, unit(q), torch.randn(B, H, t, K)


def numbered(t=T):
    return torch.arange(t).expand(B, t)


def bundles(q, k, v, pos=None, k_pos=None, own=True, **limits):
    """Queries, keys and the context of one call."""
    pos = torch.arange(q.shape[2]).expand(len(q), -1) if pos is None else pos
    ctx = Context(pos, run=True, **limits)
    return Queries(q, ctx.by_head), Keys(k, v, ctx.by_head if k_pos is None else k_pos[:, None], own=own), ctx


def call(mechanism, q, k, v, pos=None, state=None, **keywords):
    queries, keys, ctx = bundles(q, k, v, pos, **keywords)
    return mechanism(queries, keys, state, ctx)


def started(mechanism, cross=False):
    """A state for rows of T tokens."""
    spec = StateSpec(B, T, torch.get_default_dtype(), torch.device("cpu"))
    return mechanism.start(spec, HeadSizes(H, H, H, K, K, cross))


def hashed(x, r):
    """Buckets of a vector in every round: argmax([x R, -x R])."""
    turned = [[sum(a * b for a, b in zip(x.tolist(), column, strict=True)) for column in m.T.tolist()] for m in r]
    signed = [row + [-value for value in row] for row in turned]
    return [row.index(max(row)) for row in signed]


def softmax_of(scores, values):
    """The weighted mean and the log-sum-exp of (key, score) pairs, a key as often as it is listed."""
    if not scores:
        return torch.zeros(values.shape[-1]), -math.inf
    logits = torch.stack([s for _, s in scores])
    return sum(w * values[j] for w, (j, _) in zip(logits.softmax(0), scores, strict=True)), logits.logsumexp(0)


def test_a_hash_is_the_nearest_of_rotated_axes():
    rotations = HashRotations(H, K, 6, 3, seed=2)
    x = torch.randn(B, H, 5, K)
    buckets = rotations(x)
    for b in range(B):
        for h in range(H):
            for t in range(5):
                assert buckets[b, h, t].tolist() == hashed(x[b, h, t], rotations.r[h].transpose(0, 1))
    assert buckets.min() >= 0 and buckets.max() == 5
    assert torch.equal(rotations(x * torch.rand(B, H, 5, 1)), buckets)


def test_rotations_come_from_the_seed_and_are_saved():
    a, b, c = HashRotations(2, 4, 4, 2, seed=1), HashRotations(2, 4, 4, 2, seed=1), HashRotations(2, 4, 4, 2, seed=2)
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
                rest = [j for j in range(T) if j != i and shared[j] and bool(pattern(b, h, i, j))]
                alone += not rest
                scores = [(j, q[b, h, i] @ k[b, h, j] / math.sqrt(K)) for j in rest or [i]]
                y, lse = softmax_of(scores, v[b, h])
                assert torch.allclose(read.y[b, h, i], y, atol=1e-12)
                if rest:
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
    hashes = mechanism.hash(q)[0, 0].T
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
        expected = sum(w * y for w, (y, _) in zip(z.softmax(0), reads, strict=True))
        assert torch.allclose(call(mechanism, q, k, v).y.y[0, 0, i], expected, atol=1e-12)
    assert twice > 0


def test_enough_rounds_are_full_attention_without_the_token_itself():
    q, k, v = inputs()
    many = call(LSH(H, K, 2, 64, pattern=Full()), q, k, v).y.y
    assert torch.allclose(many, call(Softmax(Full() & ~Band(0)), q, k, v).y.y, atol=1e-12)


both_forms = pytest.mark.parametrize(
    "mechanism", [LSH(H, K, 4, 2), PublishedLSH(H, K, 4, 3, 2)], ids=["strict", "published"]
)


@both_forms
def test_padding_on_either_side_changes_nothing(mechanism):
    q, k, v = inputs()
    alone = call(mechanism, q, k, v).y
    pos = torch.full((B, T + 5), -1)
    placed = [100 * torch.randn(B, H, T + 5, K) for _ in range(3)]
    for b, left in enumerate((5, 2)):
        pos[b, left : left + T] = torch.arange(T)
        for x, y in zip(placed, (q, k, v), strict=True):
            x[b, :, left : left + T] = y[b]
    actual = call(mechanism, *placed, pos).y
    for b in range(B):
        assert torch.allclose(actual.y[b][:, pos[b] >= 0], alone.y[b], atol=1e-12)
        assert torch.allclose(actual.lse[b][:, pos[b] >= 0], alone.lse[b], atol=1e-12)
    assert actual.y.transpose(1, 2)[pos < 0].count_nonzero() == 0


@both_forms
def test_empty_rows_give_zero_and_finite_gradients(mechanism):
    q, k, v = (x.requires_grad_() for x in inputs())
    pos = numbered().clone()
    pos[0] = -1
    read = call(mechanism, q, k, v, pos).y
    read.y.sum().backward()
    assert read.y[0].count_nonzero() == 0 and bool((read.lse[0] == -torch.inf).all())
    assert all(x.grad is not None and x.grad.isfinite().all() and x.grad[0].count_nonzero() == 0 for x in (q, k, v))


def test_documents_of_the_batch_are_kept_apart():
    """A batch's own limits reach every folded row under its own number. The published form refuses them: the chunks of
    a document would depend on the other documents of the row."""
    mechanism = LSH(H, K, 4, 2)
    q, k, v = inputs()
    first = torch.tensor([5, 11])
    ids = (numbered() >= first[:, None]).long()
    actual = call(mechanism, q, k, v, only=Document(ids)).y.y
    for b in range(B):
        cut = int(first[b])
        other = [x.clone() for x in (k, v)]
        other[1][b, :, :cut] = 100.0
        changed = call(mechanism, q, k, other[1], only=Document(ids)).y.y
        assert torch.allclose(changed[b, :, cut:], actual[b, :, cut:], atol=1e-12)
        assert not torch.allclose(changed[b, :, :cut], actual[b, :, :cut])
    with pytest.raises(
        ValueError, match=r"PublishedLSH makes its chunks from all tokens of a row, .* Use LSH, or drop"
    ):
        call(PublishedLSH(H, K, 4, 3, 2), q, k, v, only=Document(ids))


@pytest.mark.parametrize("sizes", [[1] * T, [5, 1, 11]], ids=str)
def test_the_strict_form_decodes_to_the_whole(sizes):
    layer = Attention(SharedQK(8, H), LSH(H, K, 4, 2))
    x = torch.randn(B, T, 8)
    state, outputs = layer.start(B, T), []
    for at in torch.arange(T).split(sizes):
        out = layer(x[:, at], state, Context(numbered()[:, at], run=True))
        state = out.state
        outputs.append(out.y)
    assert torch.allclose(torch.cat(outputs, 1), layer(x, None, Context(numbered(), run=True)).y, atol=1e-12)


def test_key_heads_may_be_shared():
    mechanism = LSH(H, K, 4, 2), PublishedLSH(H, K, 4, 3, 2)
    q, k, v = torch.randn(B, H, T, K), torch.randn(B, 1, T, K), torch.randn(B, 1, T, K)
    for m in mechanism:
        spread = call(m, q, *(x.expand(-1, H, -1, -1) for x in (k, v))).y
        assert torch.allclose(call(m, q, k, v).y.y, spread.y, atol=1e-13)


@both_forms
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
        with pytest.raises(ValueError, match="Create it with heads=3, k_dim=5"):
            call(mechanism, *(torch.randn(B, 3, T, 5) for _ in range(3)))
    for mechanism in (LSH(H, K, 4, pattern=Full()), PublishedLSH(H, K, 4, 3, pattern=Full())):
        with pytest.raises(NoState, match="reads up to inf positions ahead"):
            started(mechanism)
    with pytest.raises(ValueError, match="must be even"):
        LSH(H, K, 3)
    with pytest.raises(ValueError, match="rounds=0: give a whole number of at least 1"):
        LSH(H, K, 4, 0)
    with pytest.raises(ValueError, match="eval_rounds=0: give a whole number of at least 1"):
        LSH(H, K, 4, eval_rounds=0)
    with pytest.raises(ValueError, match="redraw=0: give a whole number of at least 1"):
        LSH(H, K, 4, redraw=0)
    with pytest.raises(ValueError, match="chunk=0: give a whole number of at least 1"):
        PublishedLSH(H, K, 4, 0)


def naive(mechanism, q, k, v, q_pos, k_pos, own):
    """One softmax over the union of the rounds, in the fewest words; the token itself where there is nothing else."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    i, j = q_pos[:, None, :, None], k_pos[:, None, None]
    may = mechanism.pattern(0, 0, i, j) & (i >= 0) & (j >= 0)
    itself = (i == j) if own else torch.zeros_like(may)
    same = (mechanism.hash(q)[:, :, :, None] == mechanism.hash(k)[:, :, None]).any(-1)
    others_same = same & may & ~itself
    readable = torch.where(others_same.any(-1, keepdim=True), others_same, itself & may)
    scores = torch.where(readable, q @ k.mT / math.sqrt(K), -math.inf)
    has_any = readable.any(-1, keepdim=True)
    y = torch.where(has_any, torch.where(has_any, scores, 0.0).softmax(-1), 0.0) @ v
    return (
        y,
        torch.where(has_any[..., 0], torch.where(has_any, scores, 0.0).logsumexp(-1), -math.inf),
        others_same.any(-1),
    )


def draw_inputs(shape, shared):
    """Keys in any order, some of them padding; queries of some of the tokens, in another order."""
    heads, groups, queries, keys = shape
    k_pos = torch.stack([torch.randperm(keys) for _ in range(B)])
    k_pos[0, : keys // 5] = -1
    q, k, v = torch.randn(B, heads, queries, K), torch.randn(B, groups, keys, K), torch.randn(B, groups, keys, K)
    if queries == keys:
        return q, (unit(q) if shared and heads == groups else k), v, k_pos, k_pos
    return q, k, v, torch.stack([pos[torch.randperm(keys)[:queries]] for pos in k_pos]), k_pos


@pytest.mark.parametrize("shape", [(2, 2, 40, 40), (4, 1, 40, 40), (4, 2, 5, 40), (2, 2, 1, 23)], ids=str)
@pytest.mark.parametrize(("buckets", "rounds"), [(2, 1), (4, 3), (16, 2)])
@pytest.mark.parametrize("pattern", [Causal(), Full(), Causal() & Band(9), Causal() & ~Band(0)], ids=str)
@pytest.mark.parametrize("own", [True, False], ids=["own", "another's"])
def test_sorted_and_dense_are_one_softmax_over_the_union(shape, buckets, rounds, pattern, own):
    mechanism = LSH(shape[0], K, buckets, rounds, pattern=pattern)
    q, k, v, q_pos, k_pos = draw_inputs(shape, shared=own and rounds > 1)
    for x in (q, k, v):
        x.requires_grad_()
    queries, keys, ctx = bundles(q, k, v, q_pos, k_pos=None if own and q_pos is k_pos else k_pos, own=own)
    queries, keys = mechanism.preprocess(queries, keys, ctx)
    request, _ = mechanism.make_request(queries, keys._replace(tags=mechanism.tags(keys)), None, ctx)
    y, lse, social = naive(mechanism, q, k, v, q_pos, k_pos, own)
    weight = torch.randn(y.shape), torch.randn(lse.shape) * social
    expected = torch.autograd.grad((y * weight[0]).sum() + (lse.where(social, 0.0) * weight[1]).sum(), (q, k, v))
    for pairs_read in (read(request), read_sorted(request, sort_rounds(request, buckets))):
        assert torch.allclose(pairs_read.y, y, atol=1e-12)
        assert torch.allclose(pairs_read.lse[social], lse[social], atol=1e-12)
        assert torch.equal(pairs_read.lse == -math.inf, lse == -math.inf)
        loss = (pairs_read.y * weight[0]).sum() + (pairs_read.lse.where(social, 0.0) * weight[1]).sum()
        gradients = torch.autograd.grad(loss, (q, k, v))
        # a token alone has a weight of 1 whatever its score: in the naive form too
        assert all(torch.allclose(mine, other, atol=1e-11) for mine, other in zip(gradients, expected, strict=True))


def read_by(monkeypatch, mechanism, call_it):
    """The requests that a call hands to the executors."""
    requests = []

    def recorded(request, *arguments):
        requests.append(request)
        return read(request, *arguments)

    for module in ("kinformer.nn.mechanisms.sorted_groups", "kinformer.nn.mechanisms.lsh_published"):
        monkeypatch.setattr(f"{module}.read", recorded)
    out = call_it()
    return requests, out


def test_rounds_cost_one_read_on_short_rows_and_the_buckets_on_long_ones(monkeypatch):
    mechanism = LSH(1, K, 32, 8)
    q, k, v = (x[:, :1] for x in inputs())
    requests, _ = read_by(monkeypatch, mechanism, lambda: call(mechanism, q, k, v))
    assert [type(request.score) for request in requests] == [type(mechanism.score)]
    length, mechanism = 1024, LSH(1, K, 32, 2)
    q = torch.randn(1, 1, length, K)
    requests, out = read_by(monkeypatch, mechanism, lambda: call(mechanism, q, unit(q), torch.randn(1, 1, length, K)))
    assert 2 <= len(requests) and all(type(request.score) is Product for request in requests)
    assert sum(request.pairs for request in requests) < length**2 / 2
    assert out.y.y.isfinite().all()


def test_where_all_is_one_bucket_long_rows_are_read_at_once(monkeypatch):
    mechanism, x = LSH(1, K, 4, 2), torch.ones(1, 1, 300, K)
    requests, _ = read_by(monkeypatch, mechanism, lambda: call(mechanism, x, x, x))
    assert [request.pairs for request in requests] == [300 * 300]


def test_a_long_row_read_sorted_is_the_row_read_by_hand(monkeypatch):
    mechanism, q, v = LSH(1, K, 16, 2), torch.randn(1, 1, 400, K), torch.randn(1, 1, 400, K)
    pos = torch.arange(400)[None]
    y, lse, social = naive(mechanism, q, unit(q), v, pos, pos, True)
    monkeypatch.setattr("kinformer.nn.mechanisms.sorted_groups.TOKEN", -1000)  # however short
    requests, out = read_by(monkeypatch, mechanism, lambda: call(mechanism, q, unit(q), v))
    output = out.y
    assert all(type(request.score) is Product for request in requests)
    assert torch.allclose(output.y, y, atol=1e-12) and torch.allclose(output.lse[social], lse[social], atol=1e-12)


@pytest.mark.parametrize("rounds", [1, 2])
def test_buckets_that_are_runs_of_one_head_are_read_as_buckets(rounds):
    """Tokens of a bucket stand side by side, so their positions are runs: own keys and earlier rounds stay out."""
    q = torch.randn(4, 1, K).repeat_interleave(120, 1).view(1, 1, 480, K) + 1e-3 * torch.randn(1, 1, 480, K)
    mechanism = LSH(1, K, 4, rounds)
    queries, keys, ctx = bundles(q, unit(q), torch.randn(1, 1, 480, K))
    queries, keys = mechanism.preprocess(queries, keys, ctx)
    request, _ = mechanism.make_request(queries, keys._replace(tags=mechanism.tags(keys)), None, ctx)
    dense, sorted_read = read(request), read_sorted(request, sort_rounds(request, 4))
    assert torch.allclose(sorted_read.y, dense.y, atol=1e-12) and torch.allclose(sorted_read.lse, dense.lse, atol=1e-12)


@both_forms
def test_a_step_hashes_its_own_token_alone(mechanism, monkeypatch):
    """Buckets are cached beside the keys."""
    hashed_columns = []
    real = HashRotations.forward

    def counted(self, x):
        hashed_columns.append(x.shape[2])
        return real(self, x)

    state, (q, k, v) = started(mechanism), inputs()
    state = call(mechanism, q[:, :, :9], k[:, :, :9], v[:, :, :9], state=state).state
    assert torch.equal(state.tags["bucket"][:, :, :9], mechanism.hash(k[:, :, :9]))
    monkeypatch.setattr(HashRotations, "forward", counted)
    call(mechanism, *(x[:, :, 9:10] for x in (q, k, v)), numbered()[:, 9:10], state)
    assert hashed_columns == [1, 1]


@both_forms
def test_a_layer_computed_again_finds_the_forwards_buckets(mechanism):
    (q, k, v), choices, before = inputs(), Choices(), mechanism.hash.r.clone()
    with choices.record():
        first = call(mechanism, q, k, v).y.y
    mechanism.hash.r.normal_()
    with choices.replay():
        recomputed = call(mechanism, q, k, v).y.y
    other = call(mechanism, q, k, v).y.y
    mechanism.hash.r.copy_(before)
    assert torch.equal(first, recomputed) and not torch.allclose(first, other)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_another_sequence_is_read_by_its_buckets_or_refused_in_a_line(key_heads):
    """Six queries and four keys: the strict form reads them, the published one has no place for the queries."""
    q, k, v = torch.randn(B, 4, 6, K), torch.randn(B, key_heads, 4, K), torch.randn(B, key_heads, 4, K)
    at, source = numbered(6), numbered(4)
    mechanism = LSH(4, K, 4, 2, pattern=Full())
    output = call(mechanism, q, k, v, k_pos=source, own=False).y
    y, lse, _ = naive(mechanism, q, k, v, at, source, own=False)
    assert torch.allclose(output.y, y, atol=1e-12) and torch.allclose(output.lse, lse, atol=1e-12)
    with pytest.raises(ValueError, match="PublishedLSH sorts queries together with their own keys") as error:
        call(PublishedLSH(4, K, 4, 3, 2), q, k, v, k_pos=source, own=False)
    assert "\n" not in str(error.value)


def test_layers_that_read_a_source():
    x, source = torch.randn(B, 6, 8), torch.randn(B, 4, 8)
    ctx = Context(numbered(6), run=True, source=source, source_pos=numbered(4))
    layer = Attention(SharedQK(8, H), LSH(H, K, 4, 2, pattern=Full()), cross=True)
    whole = layer(x, None, ctx).y
    assert whole.shape == x.shape
    state = layer.start(B, 6)
    first = layer(x[:, :2], state, ctx.columns(0, 2))
    rest = layer(x[:, 2:], first.state, Context(numbered(6)[:, 2:], run=True))
    assert torch.allclose(torch.cat([first.y, rest.y], 1), whole, atol=1e-12)
    published = Attention(SharedQK(8, H), PublishedLSH(H, K, 4, 3), cross=True)
    for action in (lambda: published(x, None, ctx), lambda: published.start(B, 6)):
        with pytest.raises(ValueError, match=r"got keys of another sequence\. Use LSH or Softmax"):
            action()


def test_key_heads_of_groups_are_hashed_for_each_of_their_query_heads():
    q, k, v = torch.randn(B, 4, T, K), torch.randn(B, 2, T, K), torch.randn(B, 2, T, K)
    for mechanism in (LSH(4, K, 4, 2), PublishedLSH(4, K, 4, 3, 2)):
        output, state = call(mechanism, q, k, v).y, None
        spread = call(mechanism, q, *(x.repeat_interleave(2, 1) for x in (k, v))).y
        assert torch.allclose(output.y, spread.y, atol=1e-13) and torch.allclose(output.lse, spread.lse, atol=1e-13)
        state = mechanism.start(StateSpec(B, T, torch.float64, torch.device("cpu")), HeadSizes(4, 2, 2, K, K))
        assert torch.allclose(call(mechanism, q, k, v, state=state).y.y, spread.y, atol=1e-13)
        with pytest.raises(ValueError, match="was made for 4 heads of width 4, but got 3"):
            call(mechanism, q, k[:, [0, 1, 1]], v[:, [0, 1, 1]])


@both_forms
@pytest.mark.parametrize("size", [1, 6])
def test_padding_reads_nothing_beside_a_cache(mechanism, size):
    """Also where all it could find is other tokens' chunks."""
    (q, k, v), pos = inputs(), numbered().clone()
    pos[0, -1] = -1
    state = call(mechanism, *(x[:, :, :-size] for x in (q, k, v)), pos[:, :-size], started(mechanism)).state
    read = call(mechanism, *(x[:, :, -size:] for x in (q, k, v)), pos[:, -size:], state).y
    assert read.y[0, :, -1].count_nonzero() == 0 and bool((read.lse[0, :, -1] == -torch.inf).all())
    assert read.y[1].any(-1).all()


def test_what_a_key_gets_is_of_the_buckets_alone(monkeypatch):
    monkeypatch.setattr("kinformer.core.attention_output.BLOCK", 5)  # queries that are weighed at a time
    mechanism, (q, k, v) = LSH(H, K, 4, 2), inputs()
    queries, keys, ctx = bundles(q, k, v)
    out = mechanism(queries, keys, None, ctx)
    eye = torch.eye(T).expand(B, H, T, T)
    attention = call(mechanism, q, k, eye).y.y
    assert torch.allclose(mechanism.received_attention(queries, keys, out.y, ctx), attention.sum(2).mean(1), atol=1e-12)
    published = PublishedLSH(H, K, 4, 3)
    with pytest.raises(TypeError, match="PublishedLSH does not report how much attention each key received"):
        published.received_attention(queries, keys, published(queries, keys, None, ctx).y, ctx)


@both_forms
def test_eval_mode_hashes_as_often_as_it_is_told(mechanism):
    """More rounds than training had are those of a mechanism that was made with as many; what is saved is the same."""
    kind = type(mechanism)
    chunk_keywords = {"chunk": 3} if kind is PublishedLSH else {}
    few, q, k, v = kind(H, K, 4, rounds=2, seed=3, **chunk_keywords), *inputs()
    for rounds in (1, 2, 5):
        reader = kind(H, K, 4, rounds=2, eval_rounds=rounds, seed=3, **chunk_keywords)
        assert {name: x.shape for name, x in reader.state_dict().items()} == {
            name: x.shape for name, x in few.state_dict().items()
        }
        expected = call(kind(H, K, 4, rounds=rounds, seed=3, **chunk_keywords), q, k, v).y.y
        assert torch.equal(call(reader.train(), q, k, v).y.y, call(few, q, k, v).y.y)
        assert torch.equal(call(reader.eval(), q, k, v).y.y, expected)
        few.eval().eval_rounds = rounds
        assert torch.equal(call(few, q, k, v).y.y, expected)
        few.train()
    few.rounds = 5
    assert (few.rounds, few.eval_rounds, few.hash.r.shape[2]) == (5, 5, 2)
    assert torch.equal(call(few, q, k, v).y.y, expected)


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_weights_load_into_another_number_of_rounds(rounds):
    trained, (q, k, v) = LSH(H, K, 4, 2, seed=3), inputs()
    trained.hash.r.normal_()
    mechanism = LSH(H, K, 4, rounds, seed=3)
    mechanism.load_state_dict(trained.state_dict())
    assert torch.equal(mechanism.hash.r[:, :, :2], trained.hash.r[:, :, :rounds])
    trained.rounds = rounds
    assert torch.equal(call(mechanism, q, k, v).y.y, call(trained, q, k, v).y.y)
    assert not torch.equal(trained.hash.r, LSH(H, K, 4, 2, seed=3).hash.r)


def test_rotations_are_kept_or_redrawn_by_seed_and_step():
    fixed, first_drawn, redrawn = LSH(H, K, 4, 2), LSH(H, K, 4, 2, redraw=3), LSH(H, K, 4, 2, redraw=3)
    directions = []
    for step in range(1, 8):
        for part in (fixed, first_drawn):
            part.hash.after_step(step / 7, {})
        directions.append(first_drawn.hash.r.clone())
        if step == 4:  # a training that goes on draws what it would have drawn
            redrawn.load_state_dict(first_drawn.state_dict())
        elif step > 4:
            redrawn.hash.after_step(step / 7, {})
    first = LSH(H, K, 4, 2).hash.r
    assert torch.equal(fixed.hash.r, first) and torch.equal(redrawn.hash.r, first_drawn.hash.r)
    assert [torch.equal(r, first) for r in directions] == [True, True] + [False] * 5
    assert (
        torch.equal(directions[2], directions[4])
        and not torch.equal(directions[4], directions[5])
        and torch.equal(directions[5], directions[6])
    )
    assert not torch.equal(LSH(H, K, 4, 1, redraw=1, seed=1).hash.r, LSH(H, K, 4, 1, redraw=1).hash.r)


def test_an_error_names_the_class_that_it_came_from():
    q, k, v = inputs()
    for kind, chunks in ((LSH, ()), (PublishedLSH, (3,))):
        with pytest.raises(ValueError, match=rf"^{kind.__name__} reads its buckets"):
            call(kind(H, K, 4, *chunks), q, k, v, also=Causal())
        with pytest.raises(ValueError, match=rf"^{kind.__name__} was made for 3 heads"):
            call(kind(3, K, 4, *chunks), q, k, v)
        with pytest.raises(ValueError, match=rf"^{kind.__name__} was made for 3 heads"):
            started(kind(3, K, 4, *chunks))


def test_hashes_are_as_precise_under_autocast():
    rotations, x = HashRotations(2, 64, 64, 2, seed=0).float(), torch.randn(4, 2, 100, 64).float()
    alone = rotations(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rotations(x), alone)


@pytest.mark.parametrize(
    "mechanism", [LSH(4, 8, 4, 3), PublishedLSH(4, 8, 4, 3)], ids=lambda mechanism: type(mechanism).__name__
)
def test_a_layer_of_fewer_heads_is_refused_when_it_is_built(mechanism):
    """Queries of two heads used to pass for keys that four heads share."""
    with pytest.raises(
        ValueError, match=r"was made for 4 heads of width 8, but got 2 of width 8\. Create it with heads=2"
    ):
        Attention(SharedQK(16, 2), mechanism)
