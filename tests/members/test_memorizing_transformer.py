"""The Memorizing Transformer: which layer retrieves, what training by chunks reads, and a memory that grows."""

import math

import pytest
import torch

from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.members.memorizing_transformer import memorizing_transformer
from kinformer.models.lm import LM
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.patterns.band import Band

pytestmark = pytest.mark.usefixtures("float64")


def small(memory: int = 9, k: int = 2) -> LM:
    torch.manual_seed(1)
    return memorizing_transformer(d=16, depth=4, heads=2, segment=3, memory=memory, k=k, vocab=11)


def logits_of(model: LM, tokens: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    state, pieces = model.start(*tokens.shape), []
    for chunk in tokens.tensor_split(cuts, 1):
        out = model.logits(chunk, state)
        state = out.state
        pieces.append(out.y)
    return torch.cat(pieces, 1)


def test_one_layer_three_quarters_up_retrieves() -> None:
    """The paper's is the 9th of 12, in its code the fourth from the top."""
    usual = [(1, None, 1), (2, None, 2), (4, None, 3), (5, None, 4), (12, None, 9)]
    for depth, layer, at in [*usual, (4, 1, 1), (4, 4, 4)]:
        keywords = {} if layer is None else {"layer": layer}
        model = memorizing_transformer(d=16, depth=depth, heads=2, vocab=11, **keywords)
        layers = [isinstance(block.layers[0].mechanism, Retrieval) for block in model.body.layers]
        assert layers == [n == at for n in range(1, depth + 1)]
    for layer in (0, 5):
        with pytest.raises(ValueError, match=f"layer={layer}: give a whole number from 1 to 4"):
            memorizing_transformer(d=16, depth=4, heads=2, layer=layer, vocab=11)


def test_training_by_chunks_decoding_and_one_dense_call_agree() -> None:
    model, tokens = small(), torch.randint(0, 11, (2, 25))
    dense = model.logits(tokens).y
    for train, cuts in ((True, [6, 12, 18]), (True, [4, 14]), (False, list(range(1, 25)))):
        torch.testing.assert_close(logits_of(model.train(train), tokens, cuts), dense, rtol=0, atol=1e-11)


def test_weights_go_into_a_member_with_a_larger_memory() -> None:
    model, larger, tokens = small(), small(memory=15), torch.randint(0, 11, (2, 30))
    for weight in model.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))
    larger.load_state_dict(model.state_dict())
    near, far = model.logits(tokens).y, larger.logits(tokens).y
    assert torch.equal(near[:, :12], far[:, :12]) and not torch.allclose(near[:, 20:], far[:, 20:])


def test_every_layer_reads_a_sliding_window_as_in_the_paper_or_segments() -> None:
    for local, near in (("window", Causal() & Band(3)), ("segments", Causal() & Segment(3, 3))):
        model = memorizing_transformer(d=16, depth=4, heads=2, segment=3, local=local, vocab=11)
        mechanisms = [block.layers[0].mechanism for block in model.body.layers]
        assert [
            mechanism.near if isinstance(mechanism, Retrieval) else mechanism.pattern for mechanism in mechanisms
        ] == [near] * 4


def test_it_wants_consecutive_text() -> None:
    """A7: also where Retrieval is its only memory, which used to train on random windows without it."""
    for depth in (1, 2, 4):
        assert memorizing_transformer(d=16, depth=depth, heads=2, vocab=11).lanes


@torch.no_grad()
def test_its_first_loss_is_that_of_knowing_nothing() -> None:
    torch.manual_seed(0)
    nll = memorizing_transformer().train()(torch.randint(0, 256, (2, 129))).parts["nll"]
    assert float(nll) == pytest.approx(math.log(256), rel=0.1)
