"""RealFormer: scores add up through all blocks, and cost no parameters."""

import torch

from kinformer.members.gpt import gpt
from kinformer.members.realformer import realformer


def test_scores_of_the_last_block_are_the_sum_of_all(float64: None) -> None:
    model = realformer(d=16, depth=4, heads=2, length=16, vocab=11)
    tokens = torch.randint(0, 11, (2, 7))
    seen: list[torch.Tensor] = []

    def own(part, inputs, out):
        q, k = inputs[0].q, inputs[1].k
        seen.append(q @ k.mT / q.shape[-1] ** 0.5)

    hooks = [block.layers[0].mechanism.register_forward_hook(own) for block in model.body.layers]
    out = model.logits(tokens)
    for hook in hooks:
        hook.remove()
    assert len(seen) == 4 and torch.allclose(out.up["0.scores"].scores, sum(seen), atol=1e-13)


def test_it_has_the_parameters_of_its_plain_twin() -> None:
    """All but those of GPT's last norm, which post-norm blocks do without."""
    ours, plain = (sum(w.numel() for w in member().parameters()) for member in (realformer, gpt))
    assert ours == plain - 2 * 128
