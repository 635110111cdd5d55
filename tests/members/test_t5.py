"""T5: the published sizes, one table of biases for each side, and unscaled scores."""

import torch

from kinformer.members.t5 import t5
from kinformer.nn.attention import Attention
from kinformer.nn.biases.t5 import T5


def count(**keywords: object) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in t5(vocab=32128, begin=0, end=1, **keywords).parameters())  # type: ignore[arg-type]


def test_the_small_models_have_the_published_sizes() -> None:
    assert count() == 60_506_624
    flan = {"depth": 8, "heads": 6, "head_dim": 64, "hidden": 1024, "gated": True, "tie": False}
    assert count(**flan) == 76_961_152


def test_blocks_of_a_side_share_one_table_and_only_the_encoder_looks_ahead() -> None:
    model = t5(d=16, depth=3, heads=2, hidden=24, vocab=11)
    for side, ahead in ((model.encoder, True), (model.decoder, False)):
        mechanisms = [part.mechanism for part in side.modules() if isinstance(part, Attention) and not part.cross]
        biases = {mechanism.bias for mechanism in mechanisms}
        assert len(mechanisms) == 3 and len(biases) == 1
        assert all(isinstance(bias, T5) and bias.ahead == ahead for bias in biases)
    crossing = [part.mechanism for part in model.decoder.modules() if isinstance(part, Attention) and part.cross]
    assert [(mechanism.bias, mechanism.scale) for mechanism in crossing] == [(None, 1.0)] * 3
    assert not any(name.endswith(".bias") for name, _ in model.named_parameters())
