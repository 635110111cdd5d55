"""BP-Transformer: the equation node by node, spans from nothing, padding, decoding, and what is refused."""

from typing import Any

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.document import Document
from kinformer.laws.learns import copy_at_distance
from kinformer.members.bp_transformer import bp_transformer
from kinformer.nn.attention import Attention
from kinformer.nn.depth.span_nodes import SpanNodes
from tests.nn.patterns.test_tree import in_post_order, walked

pytestmark = pytest.mark.usefixtures("float64")

SMALL: dict[str, Any] = {"d": 8, "heads": 2, "vocab": 11}


def by_hand(layer: Attention, x: torch.Tensor, tokens: int, k: int, clip: int, causal: bool) -> torch.Tensor:
    """For each node of the tree the softmax over those that it reads, with a vector for each type of edge."""
    q, key, v = (torch.nn.functional.linear(x, layer.projection.matrix(n)[0]).view(len(x), 2, -1) for n in "qkv")
    nodes, a = in_post_order(tokens), layer.mechanism.bias.keys  # type: ignore[union-attr]

    def row(kind: int) -> int:
        """Of each level's 2 k + 1 types a causal table has type 0 and the odd ones, of spans before a token."""
        return kind // (2 * k + 1) * (k + 1) + (kind % (2 * k + 1) + 1) // 2 if causal else kind

    y = torch.zeros_like(q)
    for i, (level, number) in enumerate(nodes):
        inside = range(number << level, (number + 1) << level)
        read = (
            {(0, token): (2 * k + 1) * min(level, clip) for token in inside}
            if level
            else walked(number, k, tokens, clip)
        )
        readable = [(nodes.index(token), kind) for token, kind in read.items() if not causal or nodes.index(token) <= i]
        for h in range(2):
            score = torch.stack([q[i, h] @ (key[j, h] + a[row(kind)]) for j, kind in readable]) / q.shape[-1] ** 0.5
            y[i, h] = sum(w * v[j, h] for w, (j, _) in zip(score.softmax(0), readable, strict=True))
    return layer.aggregation.linear(y.flatten(1))


@pytest.mark.parametrize("form", ["decoder", "encoder"])
@pytest.mark.parametrize("k", [1, 2])
def test_attention_on_the_tree_is_the_equation(form: Any, k: int) -> None:
    model: Any = bp_transformer(depth=1, k=k, clip=2, form=form, **SMALL)
    x = torch.randn(31, 8)
    layer = model.body.layer.layers[0].layers[0]
    expected = by_hand(layer, x, 16, k, 2, form == "decoder")
    torch.testing.assert_close(layer(x[None]).y[0], expected)


def test_spans_begin_as_nothing_and_stand_behind_their_tokens() -> None:
    model: Any = bp_transformer(depth=1, form="encoder", **SMALL)
    x, inputs = torch.randn(1, 8, 8), []
    model.body.layer.register_forward_pre_hook(
        lambda layer, arguments: inputs.append((arguments[0][0], arguments[2].pos[0]))
    )
    model.body(x)
    ((nodes, pos),) = inputs
    assert torch.equal(pos, torch.arange(15))
    token = torch.tensor([level == 0 for level, _ in in_post_order(8)])
    assert torch.equal(nodes[token], x[0]) and not nodes[~token].any()


@pytest.mark.parametrize("form", ["decoder", "encoder"])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_padding_and_rows_of_any_length(form: Any, length: int) -> None:
    model: Any = bp_transformer(depth=2, k=1, form=form, **SMALL).eval()
    tokens = torch.randint(0, 11, (1, length))
    alone = model.logits(tokens).y
    for before, behind in ((3, 0), (0, 4), (2, 1)):
        padded = torch.nn.functional.pad(tokens, (before, behind), value=-1)
        longer_batch = torch.cat([padded, torch.randint(0, 11, padded.shape)])
        torch.testing.assert_close(model.logits(longer_batch).y[:1, before : before + length], alone)


def test_it_decodes_what_it_reads_at_once() -> None:
    model: Any = bp_transformer(depth=2, k=1, **SMALL).eval()
    tokens = torch.randint(0, 11, (2, 21))
    whole, state, outputs = model.logits(tokens).y, model.start(2, 21), []
    for lo, hi in ((0, 3), (3, 4), (4, 11), *((n, n + 1) for n in range(11, 21))):
        out = model.logits(tokens[:, lo:hi], state)
        state = out.state
        outputs.append(out.y)
    torch.testing.assert_close(torch.cat(outputs, 1), whole)


def test_a_token_that_is_far_is_seen_in_one_layer_by_a_decoder_that_has_two() -> None:
    model: Any = bp_transformer(depth=2, k=1, **SMALL).eval()
    tokens = torch.randint(0, 11, (1, 64))
    other = tokens.clone()
    other[0, 0] = (other[0, 0] + 1) % 11
    changed = (model.logits(tokens).y - model.logits(other).y)[0].abs().amax(-1) > 1e-12
    assert changed.all()


@pytest.mark.prove
@pytest.mark.parametrize("form", ["decoder", "encoder"])
def test_it_learns_to_copy(form: Any) -> None:
    """The law that sees to it for other members asks patterns about tokens, and this one's speak of nodes."""
    torch.manual_seed(0)
    model: Any = bp_transformer(d=32, depth=2, heads=2, k=4, vocab=8, hidden=64, form=form)
    optimiser, g = torch.optim.Adam(model.parameters(), 4e-3), torch.Generator().manual_seed(0)
    for _ in range(250):
        tokens, targets = copy_at_distance(32, 16, 4, g)
        loss = torch.nn.functional.cross_entropy(
            model.logits(tokens).y.flatten(0, 1), targets.flatten(), ignore_index=-1
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    tokens, targets = copy_at_distance(64, 16, 4, g)
    right = (model.logits(tokens).y.argmax(-1) == targets)[targets >= 0]
    assert right.double().mean() > 0.95


def test_what_it_cannot_read_is_refused() -> None:
    body: SpanNodes = bp_transformer(depth=1, **SMALL).body  # type: ignore[assignment]
    x = torch.randn(1, 5, 8)
    whole = Context.of_sequence(x)
    with pytest.raises(ValueError, match="a span covers several tokens"):
        body(x, None, whole.replace(only=Document(torch.zeros(1, 5, dtype=torch.long))))
    with pytest.raises(ValueError, match="a tree of spans needs the tokens in the order of their positions"):
        body(x, None, Context(whole.pos))
    with pytest.raises(ValueError, match="k=0: give a whole number of at least 1"):
        bp_transformer(k=0, **SMALL)
    with pytest.raises(ValueError, match="clip=2 has no effect with position=none"):
        bp_transformer(position="none", clip=2, **SMALL)


def test_its_attention_has_no_biases_as_in_the_authors_code() -> None:
    names = [name for name, _ in bp_transformer(depth=1, **SMALL).named_parameters()]
    assert any("aggregation" in name for name in names)
    assert not any(name.endswith("bias") and ("qkv" in name or "aggregation" in name) for name in names)
