"""SAC: choices and reads by a loop from the equations, what is drawn, and edges that are handed up."""

import math

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.patterns.document import Document
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.sac import SAC, GivenEdges
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K, N = 2, 2, 6, 4, 3
PADDED = torch.tensor([[-1, -1, 0, 1, 2, 3], list(range(T))])


def bundles(groups=H, **limits):
    ctx = Context(PADDED, run=True, **limits)
    side = torch.randn(B, groups, T, N)
    keys = Keys(torch.randn(B, groups, T, K), torch.randn(B, groups, T, K), ctx.by_head, {"node": side})
    return Queries(torch.randn(B, H, T, K), ctx.by_head), keys, ctx


def lstm(cell, x, h, c):
    """The LSTM's equations: gates of input, forget, cell and output, in PyTorch's order."""
    z = cell.weight_ih @ x + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh
    i, f, g, o = z.chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def walked(mechanism, nodes):
    """For every token of a row the tokens that it chooses, and the log of their probability."""
    net = mechanism.predictor
    h, c, last = net.first
    chosen, worth = [], []
    for t in range(len(nodes)):
        chosen.append([])
        worth.append(0.0)
        for _ in range(mechanism.edges):
            h, c = lstm(net.cell, last, h, c)
            u = net.match.weight @ h
            logits = torch.stack([u @ (nodes[j] + net.distance[min(t - j, net.clip)]) for j in range(t + 1)])
            j = int(logits.argmax())
            chosen[-1].append(j)
            worth[-1] += float(logits.log_softmax(0)[j])
            last = nodes[j]
    return chosen, worth


@torch.no_grad()
@pytest.mark.parametrize("groups", [H, 1])
@pytest.mark.parametrize("by", ["layer", "head"])
def test_each_token_reads_itself_and_what_the_network_chose(by: str, groups: int) -> None:
    mechanism = SAC(2, N, clip=2, by=by).eval()  # type: ignore[arg-type]
    queries, keys, ctx = bundles(groups)
    out = mechanism(queries, keys, None, ctx)
    for b in range(B):
        real = PADDED[b] >= 0
        nodes = keys.extras["node"][b][:, real]
        walks = [walked(mechanism, chosen) for chosen in (nodes if by == "head" else [nodes.mean(0)])]
        total = torch.tensor([sum(worth[t] for _, worth in walks) for t in range(int(real.sum()))])
        torch.testing.assert_close(out.aux["log_p"][b, real], total)
        assert not out.aux["log_p"][b, ~real].any()
        for h in range(H):
            g = h * groups // H
            q, k, v = queries.q[b, h, real], keys.k[b, g, real], keys.v[b, g, real]
            for t, nodes_read in enumerate(walks[g if by == "head" else 0][0]):
                read = sorted({t, *nodes_read})
                want = (k[read] @ q[t] / math.sqrt(K)).softmax(0) @ v[read]
                torch.testing.assert_close(out.y.y[b, h, real][t], want)


@torch.no_grad()
def test_training_draws_from_the_softmax_and_eval_takes_the_likeliest() -> None:
    mechanism, count = SAC(1, N), 4_000
    net, nodes = mechanism.predictor, torch.randn(1, 1, 5, N).expand(1, count, -1, -1)
    may, distance = torch.tensor([[[True, True, True, True, False]]]), torch.arange(4, -1, -1).expand(1, 1, -1)
    noise = mechanism.noise(nodes, torch.tensor([[[4]]]), torch.arange(5)[None, None], may)
    at, log_p, _ = net.choose(net.begin(nodes), nodes, may, distance, noise)
    p = torch.stack([log_p[at[..., 0] == n].mean().exp() for n in range(4)])
    torch.testing.assert_close(p.sum(), torch.tensor(1.0))
    shares = at[0, :, 0].bincount(minlength=5) / count
    # within 5 standard deviations of a share of 4,000
    assert bool(((shares[:4] - p).abs() < 5 * (p * (1 - p) / count).sqrt()).all()) and shares[4] == 0
    likeliest, _, _ = net.choose(net.begin(nodes), nodes, may, distance, None)
    assert mechanism.eval().noise(nodes, at[:1], distance, may) is None and bool((likeliest == p.argmax()).all())


@torch.no_grad()
def test_rows_draw_apart_and_equal_rows_alike() -> None:
    """Two choices that are uniform over n keys agree in a share of 1 / n; a row alone draws what it drew before."""
    layer, rows, length = Attention(QKV(8, 2), SAC(1, 16, send=True)), 600, 6
    layer.mechanism.predictor.match.weight.zero_()  # type: ignore[operator, union-attr]
    x = torch.randn(rows, length, 8)
    chosen = layer(x).up["edges"].value[..., 0]
    for t in range(1, length):
        agree, n = (chosen[0::2, t] == chosen[1::2, t]).double().mean(), t + 1
        assert abs(float(agree) - 1 / n) < 5 * (1 / n * (1 - 1 / n) / (rows / 2)) ** 0.5
    for nodes_of in ([5], [9, 9, 2]):
        assert torch.equal(layer(x[nodes_of]).up["edges"].value[..., 0], chosen[nodes_of])


def test_edges_that_are_handed_up_are_those_of_the_layer_beneath() -> None:
    blocks = [PreNorm(Attention(QKV(8, 2), mechanism)) for mechanism in (SAC(1, N, send=True), GivenEdges())]
    stack, x = Stack(blocks).eval(), torch.randn(1, T, 8)
    first = blocks[0](x, None, Context.of_sequence(x))
    edges = first.up["0.edges"].value
    assert edges.shape == (1, T, 1) and bool((edges[0, :, 0] <= torch.arange(T)).all())
    out = stack(x)
    for t in range(T):  # what neither a token nor its edge has told, through both layers, changes nothing
        read = {t, int(edges[0, t, 0])}
        reach = read | {int(edges[0, j, 0]) for j in read}
        leaf = x.clone().requires_grad_()
        stack(leaf).y[0, t].sum().backward()
        assert leaf.grad is not None and set(leaf.grad[0].any(-1).nonzero()[:, 0].tolist()) <= reach
    assert out.y.shape == x.shape


def test_the_loss_of_the_text_teaches_the_network_nothing() -> None:
    layer = Attention(QKV(8, 2), SAC(1, N))
    layer(torch.randn(1, T, 8)).y.sum().backward()
    assert all(parameter.grad is None for parameter in layer.mechanism.parameters())


def test_refusals() -> None:
    layer, pos = Attention(QKV(8, 2), SAC(1, N)), torch.arange(4)[None]
    with pytest.raises(ValueError, match=r"ctx\.only"):
        layer(torch.randn(1, 4, 8), None, Context(pos, run=True, only=Document(pos)))
    with pytest.raises(ValueError, match="consecutively"):
        layer(torch.randn(1, 4, 8), None, Context(pos))
    with pytest.raises(ValueError, match="by='layer'"):
        SAC(1, N, by="head", send=True)
    across = Attention(QKV(8, 2), SAC(1, N), cross=True)
    with pytest.raises(ValueError, match=r"^SAC cannot be used in cross-attention: .*\. Use Softmax$"):
        across.start(1, 4)
