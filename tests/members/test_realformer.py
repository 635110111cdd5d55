"""RealFormer: scores add up through all blocks, and cost no parameters; an encoder as in the paper, and a decoder."""

import pytest
import torch

from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.realformer import realformer
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM


@pytest.mark.parametrize("form", ["encoder", "decoder"])
@pytest.mark.parametrize("scores", ["sum", "mean"])
def test_scores_of_the_last_block_are_those_of_all(scores: str, form: str, float64: None) -> None:
    model = realformer(d=16, depth=4, heads=2, form=form, scores=scores, length=16, vocab=11)
    tokens = torch.randint(0, 11, (2, 7))
    scores_seen: list[torch.Tensor] = []

    def own(part, inputs, out):
        q, k = inputs[0].q, inputs[1].k
        scores_seen.append(q @ k.mT / q.shape[-1] ** 0.5)

    hooks = [block.layers[0].mechanism.register_forward_hook(own) for block in model.body.layers]
    out = model.logits(tokens)
    for hook in hooks:
        hook.remove()
    expected = sum(scores_seen) if scores == "sum" else sum(scores_seen) / 4
    assert len(scores_seen) == 4 and torch.allclose(out.up["0.scores"].scores, expected, atol=1e-13)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_prior_from_below_is_weighed_and_mixed(mixed: bool, float64: None) -> None:
    """A^(l) = w1 S^(l) + w2 g(A^(l-1)), g a sum over heads."""
    model = realformer(d=16, depth=3, heads=2, scores="weighted", own=0.7, below=-0.2, mixed=mixed, length=16, vocab=11)
    tokens, scores_seen = torch.randint(0, 11, (2, 7)), list[torch.Tensor]()

    def own(part, inputs, out):
        q, k = inputs[0].q, inputs[1].k
        scores_seen.append(q @ k.mT / q.shape[-1] ** 0.5)

    mechanisms = [block.layers[0].mechanism for block in model.body.layers]
    for mechanism in mechanisms:
        mechanism.register_forward_hook(own)
    out = model.logits(tokens)
    expected = scores_seen[0]
    for mechanism, score in zip(mechanisms[1:], scores_seen[1:], strict=True):
        if mixed:
            expected = torch.einsum("oh,bhts->bots", mechanism.score.change.mix.weight, expected)
        expected = 0.7 * score - 0.2 * expected
    torch.testing.assert_close(out.up["0.scores"].scores, expected)


def test_it_has_the_parameters_of_its_plain_twin() -> None:
    """The encoder those of BERT; the decoder all but those of GPT's last norm, which post-norm blocks do without."""
    encoder, decoder, plain, text = (
        sum(w.numel() for w in model.parameters())
        for model in (realformer(), realformer(form="decoder"), bert(), gpt())
    )
    assert encoder == plain and decoder == text - 2 * 128


def test_the_encoder_reads_both_ways_and_the_decoder_writes() -> None:
    encoder, decoder = (realformer(d=16, depth=2, heads=2, form=form, vocab=11) for form in ("encoder", "decoder"))
    assert isinstance(encoder, MLM) and isinstance(decoder, LM)
    tokens = torch.randint(0, 11, (1, 6))
    other = tokens.clone()
    other[0, -1] = (tokens[0, -1] + 1) % 11
    for model, reads_on in ((encoder.eval(), True), (decoder.eval(), False)):
        changed = (model.logits(tokens).y - model.logits(other).y)[0, :-1].abs().amax(-1)
        assert bool((changed > 0).all()) is reads_on and bool((changed == 0).all()) is not reads_on
