"""PublishedSAC: pairs, what they are worth and what is read by a loop from the equations."""

import math

import pytest
import torch

from kinformer.core.after_step import after_step
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, PerPair
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.members.sac_encoder import sac_encoder
from kinformer.models.reinforced_lm import ReinforcedMLM
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.sac_published import GivenPairs, PublishedSAC
from kinformer.nn.projections.qkv import QKV
from tests.nn.mechanisms.test_sac import PADDED, B, H, K, N, bundles, lstm

pytestmark = pytest.mark.usefixtures("float64")


def walked(mechanism, nodes, edges):
    """The pairs that are chosen, and the log of the probability of each token's choices."""
    net, size = mechanism.predictor, len(nodes)
    h, c, last = net.first
    pairs, worth, node = set(), [0.0] * size, 0

    def chosen(among, place):
        nonlocal h, c, last
        h, c = lstm(net.cell, last, h, c)
        u = net.match.weight @ h
        logits = torch.stack([u @ (nodes[j] + net.distance[min(abs(place - j), net.clip)]) for j in among])
        at = int(logits.argmax())
        last = nodes[among[at]]
        return among[at], float(logits.log_softmax(0)[at])

    for _ in range(edges * size):
        query, of_query = chosen(range(size), node)
        key, of_key = chosen([j for j in range(size) if j <= query or isinstance(mechanism.pattern, Full)], query)
        pairs.add((query, key))
        worth[query] += of_query + of_key
        node = key
    return pairs, worth


@torch.no_grad()
@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=str)
@pytest.mark.parametrize("by", ["layer", "head"])
def test_each_token_reads_itself_and_the_keys_of_its_pairs(by: str, pattern: Full | Causal) -> None:
    mechanism = PublishedSAC(2, N, clip=2, by=by, pattern=pattern).eval()  # type: ignore[arg-type]
    queries, keys, ctx = bundles()
    out = mechanism(queries, keys, None, ctx)
    for b in range(B):
        real = PADDED[b] >= 0
        nodes = keys.extras["node"][b][:, real]
        walks = [walked(mechanism, chosen, 2) for chosen in (nodes if by == "head" else [nodes.mean(0)])]
        total = torch.tensor([sum(worth[t] for _, worth in walks) for t in range(int(real.sum()))])
        torch.testing.assert_close(out.aux["log_p"][b, real], total)
        for h in range(H):
            q, k, v = queries.q[b, h, real], keys.k[b, h, real], keys.v[b, h, real]
            pairs = walks[h if by == "head" else 0][0]
            for t in range(int(real.sum())):
                read = sorted({t} | {j for i, j in pairs if i == t})
                want = (k[read] @ q[t] / math.sqrt(K)).softmax(0) @ v[read]
                torch.testing.assert_close(out.y.y[b, h, real][t], want)


def test_an_encoder_of_it_learns_by_the_reward_of_its_row() -> None:
    model = sac_encoder(d=8, depth=2, heads=2, edges=1, width=3, length=8, vocab=11)
    assert isinstance(model, ReinforcedMLM) and model.reinforce.per == "row"
    tokens = torch.randint(11, (4, 8))
    after_step(model, 0.0, model(tokens, progress=0.5).stats)
    assert int(model.reinforce.steps) == 1
    model(tokens, progress=0.5).total.backward()
    network = [p for name, p in model.named_parameters() if "predictor" in name]
    assert network and all(p.grad is not None and bool(p.grad.any()) for p in network)
    with pytest.raises(NoState, match="use a causal member"):
        model.start(1, 4)


@torch.no_grad()
def test_pairs_that_are_handed_up_are_read_above() -> None:
    """The lowest layer's pairs by a loop, and what other queries and keys read under them."""
    first = PublishedSAC(1, N, clip=2, send=True).eval()
    queries, keys, ctx = bundles()
    up = first(queries, keys, None, ctx).up
    q, k, v = (torch.randn(B, H, T, K) for T in (queries.q.shape[2],) * 3)
    output = GivenPairs()(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx.replace(below=up)).y.y
    for b in range(B):
        real = PADDED[b] >= 0
        pairs, _ = walked(first, keys.extras["node"][b][:, real].mean(0), 1)
        for t in range(int(real.sum())):
            read = sorted({t} | {j for i, j in pairs if i == t})
            for h in range(H):
                keys_values = [x[b, h, real][read] for x in (k, v)]
                want = (keys_values[0] @ q[b, h, real][t] / math.sqrt(K)).softmax(0) @ keys_values[1]
                torch.testing.assert_close(output[b, h, real][t], want)


def test_who_has_pairs_of_its_own() -> None:
    small = {"d": 8, "depth": 2, "heads": 2, "edges": 1, "width": 3, "length": 8, "vocab": 11}
    kinds = {}
    for share in ("model", "layer", "head"):
        parts = [
            part for part in sac_encoder(**small, share=share).modules() if isinstance(part, PublishedSAC | GivenPairs)
        ]
        kinds[share] = [(type(part).__name__, getattr(part, "by", "")) for part in parts]
    assert kinds["model"] == [("PublishedSAC", "layer"), ("GivenPairs", "")]
    assert kinds["layer"] == [("PublishedSAC", "layer")] * 2 and kinds["head"] == [("PublishedSAC", "head")] * 2


def test_refusals() -> None:
    x, pos = torch.randn(1, 4, 8), torch.arange(4)[None]
    layer = Attention(QKV(8, 2), GivenPairs())
    with pytest.raises(ValueError, match=r"Use PublishedSAC\(send=True\) in a layer below"):
        layer(x)
    other = PerPair(torch.zeros(1, 1, 3, 3), pos[:, None, :3], pos[:, None, :3])
    with pytest.raises(ValueError, match="no pairs of this row"):
        layer(x, None, Context(pos, run=True, below={"pairs": other}))
    with pytest.raises(ValueError, match=r"GivenPairs does not support ctx\.only .* chosen from the whole row"):
        layer(x, None, Context(pos, run=True, only=Document(pos)))
    with pytest.raises(ValueError, match="by='layer'"):
        PublishedSAC(1, N, by="head", send=True)
