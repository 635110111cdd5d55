"""Transformer-XL, the member: what its layers share, how it decodes, and its checkpoint."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kinformer.checkpoint.checkpoint import load, save
from kinformer.members.transformer_xl import transformer_xl
from kinformer.models.lm import LM
from tests.cuts import agree_however_cut

pytestmark = pytest.mark.usefixtures("float64")


def small() -> LM:
    return transformer_xl(d=16, depth=3, heads=2, segment=5, memory=4, vocab=11)


def biases(model: LM) -> list[torch.nn.Module]:
    return [block.layers[0].mechanism.bias for block in model.body.layers]


def test_layers_share_u_and_v_and_nothing_else_of_their_bias() -> None:
    model = small()
    first, *rest = biases(model)
    for other in rest:
        assert other.u is first.u and other.v is first.v
        assert other.position.weight is not first.position.weight
    assert sum(name.rpartition(".")[2] in ("u", "v") for name, _ in model.named_parameters()) == 2


def test_shared_parameters_are_saved_once_and_tied_again(tmp_path: Path) -> None:
    model = small()
    save(model, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(name.rpartition(".")[2] in ("u", "v") for name in stored) == 2
    back = load(tmp_path)
    first, *rest = biases(back)
    assert all(other.u is first.u and other.v is first.v for other in rest)
    assert back.head.weight is back.embedding.weight
    tokens = torch.randint(0, 11, (2, 13))
    assert torch.equal(back.logits(tokens).y, model.eval().logits(tokens).y)


def test_training_by_chunks_decoding_and_one_dense_call_agree() -> None:
    agree_however_cut(small())


def test_it_reads_further_than_a_layer_does() -> None:
    model = small().train()
    tokens = torch.randint(0, 11, (1, 18))
    other = tokens.clone()
    other[:, 2] = (other[:, 2] + 1) % 11
    change = (model.logits(tokens).y - model.logits(other).y).abs().amax(-1)[0] > 0
    # a layer reads position 2 from positions 2..9 alone; those after them hear of it through depth
    assert change.tolist() == [False] * 2 + [True] * 16


def test_with_same_length_every_token_reads_exactly_its_memory() -> None:
    model = transformer_xl(d=16, depth=1, heads=2, segment=5, memory=4, same_length=True, vocab=11).train()
    tokens = torch.randint(0, 11, (1, 18))
    variants = torch.where(torch.eye(18, dtype=torch.bool), (tokens + 1) % 11, tokens)  # row p has another token at p
    y = model.logits(torch.cat([tokens, variants])).y
    changed = (y[1:] - y[:1]).abs().amax(-1) > 1e-9
    for t in (3, 9, 10, 12, 17):
        assert changed[:, t].tolist() == [t - 4 < p <= t for p in range(18)]


def test_weights_go_into_a_member_with_a_longer_memory() -> None:
    """The paper evaluates with more memory than it trained with."""
    model, tokens = small(), torch.randint(0, 11, (2, 24))
    longer = transformer_xl(d=16, depth=3, heads=2, segment=5, memory=9, vocab=11)
    longer.load_state_dict(model.state_dict())
    near, far = model.logits(tokens).y, longer.logits(tokens).y
    # the first to read further are those whose segment began at 5 or later
    torch.testing.assert_close(near[:, :5], far[:, :5], rtol=0, atol=1e-12)
    assert ((near - far)[:, 5:].abs().amax(-1) > 1e-6).all()


def test_it_wants_consecutive_text() -> None:
    assert small().lanes


@torch.no_grad()
def test_its_first_loss_is_that_of_knowing_nothing() -> None:
    """A25: a post-norm stack hands a token its own logit of sqrt(d) times its embedding's length: 9.5 nats of 5.5."""
    torch.manual_seed(0)
    nll = transformer_xl().train()(torch.randint(0, 256, (2, 129))).parts["nll"]
    assert float(nll) == pytest.approx(math.log(256), rel=0.1)
