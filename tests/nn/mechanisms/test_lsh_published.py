"""PublishedLSH: the sorted and cut list item by item, faults that the loop notices, peeking, and steps of decoding."""

import math

import pytest
import torch

from kinformer.core.heads import HeadSizes, StateSpec
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.unit_vector import unit
from kinformer.nn.mechanisms import lsh_published
from kinformer.nn.mechanisms.lsh import LSH
from kinformer.nn.mechanisms.lsh_published import PublishedLSH
from tests.nn.mechanisms.test_lsh import B, H, K, T, call, hashed, inputs, numbered, read_by, softmax_of, started

pytestmark = pytest.mark.usefixtures("float64")


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
                is_read = at // size in (mine, back) and bool(mechanism.pattern(0, 0, int(pos[i]), int(pos[j])))
                if not is_read or (mechanism.restricted and (m, bucket) != (n, hashes[i][n])):
                    continue
                score = q[i] @ k[j] / math.sqrt(K) - 1e5 * (i == j)
                if mechanism.divided:
                    score = score - math.log(max(1, rounds_with(mechanism, place, hashes, last, i, j)))
                scores.append((j, score))
            reads.append(softmax_of(scores, v))
        z = torch.tensor([float(lse) for _, lse in reads])
        y[i] = sum(w * o for w, (o, _) in zip(z.softmax(0), reads, strict=True))
    return y


def rounds_with(mechanism, place, hashes, last, i, j):
    """N_ij: rounds in which j is in i's chunk or the one before it, and in its bucket where that is asked."""
    count = 0
    for n in range(mechanism.rounds):
        mine = place[n, i]
        near = place[n, j] in (mine, last if mine == 0 else mine - 1)
        count += near and (not mechanism.restricted or hashes[i][n] == hashes[j][n])
    return count


def check(length, pattern, *, restricted=True, divided=True):
    for rounds, size in ((1, 3), (3, 4), (2, 40)):
        mechanism = PublishedLSH(
            1, K, 4, size, rounds, pattern=pattern, restricted=restricted, divided=divided, seed=rounds
        )
        q, k, v = (x[:, :1] for x in inputs(length))
        pos = numbered(length).clone()
        pos[1, : length // 3] = -1
        y = call(mechanism, q, k, v, pos).y.y
        for b in range(B):
            expected = published(mechanism, q[b, 0], k[b, 0], v[b, 0], pos[b])
            torch.testing.assert_close(y[b, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 6, 17])
@pytest.mark.parametrize("pattern", [Causal(), Full()], ids=str)
@pytest.mark.parametrize("restricted", [True, False])
@pytest.mark.parametrize("divided", [True, False])
def test_the_published_form_against_a_loop(length, pattern, restricted, divided):
    check(length, pattern, restricted=restricted, divided=divided)


@pytest.mark.parametrize("fault", ["own score", "look back", "rounds"])
def test_a_fault_is_noticed(fault, monkeypatch):
    """A token reads itself like any other; chunks look ahead in place of back; rounds have exchanged their buckets."""
    if fault == "own score":
        monkeypatch.setattr(lsh_published, "LAST_RESORT", 0.0)
    sort = lsh_published.sort
    if fault == "look back":
        ahead = lambda *arguments: (c := sort(*arguments))._replace(before=c.before.roll(-2, -1))  # noqa: E731
        monkeypatch.setattr(lsh_published, "sort", ahead)
    if fault == "rounds":
        backwards = lambda bucket, pos, *sizes: sort(bucket.flip(-1), pos, *sizes)  # noqa: E731
        monkeypatch.setattr(lsh_published, "sort", backwards)
    with pytest.raises(AssertionError):
        check(17, Full())


def test_chunks_that_hold_every_bucket_whole_read_what_the_strict_form_reads():
    q, k, v = inputs()
    strict = call(LSH(H, K, 4, 3, seed=5), q, k, v).y
    wide = call(PublishedLSH(H, K, 4, 3 * T, 3, seed=5), q, k, v).y
    assert torch.allclose(strict.y, wide.y, atol=1e-12) and torch.allclose(strict.lse, wide.lse, atol=1e-12)


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
    state = started(mechanism)
    for t in range(T):
        out = call(mechanism, *(x[:, :, t : t + 1] for x in (q, k, v)), numbered()[:, t : t + 1], state)
        state = out.state
        whole = call(mechanism, *(x[:, :, : t + 1] for x in (q, k, v))).y.y
        assert torch.allclose(out.y.y[:, :, 0], whole[:, :, -1], atol=1e-12)


def test_a_step_of_the_published_form_reads_two_chunks_a_round(monkeypatch):
    mechanism, length = PublishedLSH(H, K, 4, 3, 2), 50
    state = mechanism.start(StateSpec(B, length + 1, torch.float64, torch.device("cpu")), HeadSizes(H, H, H, K, K))
    q, k, v = inputs(length + 1)
    state = call(mechanism, *(x[:, :, :length] for x in (q, k, v)), state=state).state
    step = [x[:, :, length:] for x in (q, k, v)]
    requests, _ = read_by(
        monkeypatch, mechanism, lambda: call(mechanism, *step, numbered(length + 1)[:, length:], state)
    )
    assert [request.pairs for request in requests] == [B * H * 2 * 6]


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_query_without_a_key_of_its_own_has_no_place_in_the_published_list(chunk):
    mechanism, (q, k, v) = PublishedLSH(H, K, 4, chunk, 2), inputs()
    k_pos = torch.where(torch.arange(T) % 3 == 1, -1, numbered())
    read = call(mechanism, q, k, v, k_pos=k_pos).y
    absent = (k_pos < 0)[:, None].expand(B, H, T)
    assert read.y[absent].count_nonzero() == 0 and bool((read.lse[absent] == -torch.inf).all())
    assert bool((read.lse[~absent] > -torch.inf).all())
