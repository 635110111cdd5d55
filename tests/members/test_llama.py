"""Llama: the published size, no biases, and scores that know distances alone."""

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.state import leaves
from kinformer.members.llama import llama


def test_llama_7b_has_its_6_7_billion_parameters() -> None:
    with torch.device("meta"):
        model = llama(d=4096, depth=32, heads=32, key_heads=32, hidden=11008, vocab=32000)
    assert sum(weight.numel() for weight in model.parameters()) == 6_738_415_616


def test_it_has_no_biases() -> None:
    model = llama(d=16, depth=2, heads=4, vocab=11)
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]


@pytest.mark.parametrize("tie", [False, True])
def test_the_head_is_its_own_unless_tied(tie: bool) -> None:
    model = llama(d=16, depth=1, heads=4, vocab=11, tie=tie)
    assert (model.head.weight is model.embedding.weight) == tie


def test_its_cache_holds_the_key_heads_alone() -> None:
    model = llama(d=16, depth=1, heads=4, key_heads=2, vocab=11)
    keys = [leaf for name, leaf in leaves(model.start(3, 5)) if name in ("k", "v")]
    assert [tuple(leaf.shape) for leaf in keys] == [(3, 2, 5, 4)] * 2


def test_moving_every_position_changes_nothing(float64: None) -> None:
    model = llama(d=16, depth=2, heads=4, vocab=11)
    tokens = torch.randint(0, 11, (2, 9))

    def at(first: int) -> Tensor:
        return model.logits(tokens, None, Context(torch.arange(9).expand(2, -1) + first, run=True)).y

    torch.testing.assert_close(at(700), at(0), rtol=0, atol=1e-10)


def test_one_attention_and_feedforward_by_hand(float64: None) -> None:
    """A block from the papers' equations: RMS norms, rotary halves, grouped heads, silu gate."""
    torch.manual_seed(0)
    model = llama(d=8, depth=1, heads=4, key_heads=2, hidden=6, vocab=7, base=50.0)
    tokens = torch.randint(0, 7, (5,))
    block = model.body.layers[0]
    attention, gated = block.layers

    def rms(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * gain

    def turn(x: Tensor, pos: int) -> Tensor:
        angle = torch.tensor(float(pos))  # head_dim 2: one pair, which turns by 50^0 per position
        return torch.stack([x[0] * angle.cos() - x[1] * angle.sin(), x[1] * angle.cos() + x[0] * angle.sin()])

    x = model.embedding.weight[tokens]
    z = rms(x, block.norms[0].weight)
    q, k, v = (z @ attention.projection.matrix(name)[0].T for name in "qkv")
    rows = []
    for i in range(5):
        heads = []
        for h in range(4):
            g = h // 2
            query = turn(q[i, 2 * h : 2 * h + 2], i)
            scores = [query @ turn(k[j, 2 * g : 2 * g + 2], j) / 2**0.5 for j in range(i + 1)]
            heads.append(torch.stack(scores).softmax(0) @ v[: i + 1, 2 * g : 2 * g + 2])
        rows.append(torch.cat(heads))
    x = x + torch.stack(rows) @ attention.aggregation.linear.weight.T
    z = rms(x, block.norms[1].weight)
    gate = z @ gated.gate.weight.T
    x = x + (gate * torch.sigmoid(gate) * (z @ gated.up.weight.T)) @ gated.down.weight.T
    expected = rms(x, model.body.norm.weight) @ model.head.weight.T
    torch.testing.assert_close(model.logits(tokens[None]).y[0], expected, rtol=0, atol=1e-12)


def test_pairs_and_turned_choose_what_turns() -> None:
    """Scores at distance 0 and at 3 of keys that have one number alone: those that do not turn are the same."""
    for pairs, still in (("half", [2, 3]), ("interleaved", [2, 3])):
        model = llama(d=16, depth=1, heads=4, vocab=11, pairs=pairs, turned=2)
        rotation = model.body.layers[0].layers[0].projection.rotation
        turned = rotation(torch.eye(4)[None, None], torch.full((1, 4), 3))[0, 0]
        assert [n for n in range(4) if torch.equal(turned[n], torch.eye(4)[n])] == still
    partners = {}
    for pairs in ("half", "interleaved"):
        rotation = llama(d=16, depth=1, heads=4, vocab=11, pairs=pairs).body.layers[0].layers[0].projection.rotation
        turned = rotation(torch.eye(4)[None, None], torch.full((1, 4), 3))[0, 0]
        partners[pairs] = turned[0].nonzero().flatten().tolist()
    assert partners == {"half": [0, 2], "interleaved": [0, 1]}
