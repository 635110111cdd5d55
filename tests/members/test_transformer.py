"""The Transformer of 2017: the paper's sizes, shared embeddings, warm-up, and that it learns to copy."""

import math

import torch
from torch import Tensor

from kinformer.core.residual_block import Join
from kinformer.core.training_recipe import Recipe, noam_peak
from kinformer.decoding.generate import generate
from kinformer.lab.train.learning_rate_schedule import RecipeLR
from kinformer.members.transformer import transformer


def test_the_base_model_is_the_papers() -> None:
    """Table 3: 6 + 6 layers, 65 million parameters with a vocabulary of 37,000 in one matrix."""
    with torch.device("meta"):
        model = transformer(vocab=37_000)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (6, 6)
    count = sum(weight.numel() for weight in model.parameters())
    attention, mlp, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    assert count == 37_002 * 512 + 6 * (attention + mlp + 2 * norm) + 6 * (2 * attention + mlp + 3 * norm)
    assert 60e6 < count < 66e6


def test_source_target_and_head_share_one_embedding_scaled_by_the_root_of_d() -> None:
    model = transformer(d=16, depth=1, heads=2, hidden=24, vocab=11)
    assert model.head.weight is model.embedding.weight
    assert model.scale == 4.0
    inputs: list[Tensor] = []
    for stack in (model.encoder, model.decoder):
        stack.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0].detach()))
    model.eval()
    tokens = torch.tensor([[3, 9, 3]])
    model.logits(tokens, source=tokens)
    angles = [[pos / 1e4 ** ((n - n % 2) / 16) for n in range(16)] for pos in range(3)]
    waves = torch.tensor([[math.cos(a) if n % 2 else math.sin(a) for n, a in enumerate(row)] for row in angles])
    for x in inputs:
        torch.testing.assert_close(x[0], 4.0 * model.embedding.weight[tokens[0]].detach() + waves)
    assert len(inputs) == 2


def test_dropout_and_smoothing_are_the_papers() -> None:
    """Section 5.4: dropout on every sublayer's output and on embedded tokens, label smoothing, both 0.1."""
    model = transformer(d=16, depth=2, heads=2, hidden=24, vocab=11)
    joins = [module for module in model.modules() if isinstance(module, Join)]
    assert len(joins) == 2 * 2 + 2 * 3
    assert {join.dropout for join in joins} | {model.dropout, model.smoothing} == {0.1}
    with_dropout = transformer(d=16, depth=1, heads=2, hidden=24, vocab=11, dropout=0.3, smoothing=0.2)
    assert {module.dropout for module in with_dropout.modules() if isinstance(module, Join)} | {
        with_dropout.dropout
    } == {0.3}
    assert with_dropout.smoothing == 0.2


def pairs(rows: int = 64) -> Tensor:
    """Rows of 2 to 6 of eight symbols, padded on the right."""
    tokens, lengths = torch.randint(0, 8, (rows, 6)), torch.randint(2, 7, (rows, 1))
    return tokens.masked_fill(torch.arange(6) >= lengths, -1)


def test_it_learns_to_copy_and_where_to_end() -> None:
    model = transformer(d=32, depth=1, heads=4, hidden=64, vocab=8, dropout=0.0)
    optimiser = torch.optim.Adam(model.parameters(), lr=noam_peak(32, 100), betas=(0.9, 0.98), eps=1e-9)
    schedule = RecipeLR(optimiser, Recipe(schedule="noam", warmup=100))
    for _ in range(300):
        source = pairs()
        optimiser.zero_grad()
        model((source, source)).total.backward()
        optimiser.step()
        schedule.step()
    source = pairs(200)
    expected = torch.cat([source, torch.full((200, 1), -1)], 1)
    expected[torch.arange(200), (source >= 0).sum(1)] = model.end
    for beam in (1, 3):
        right = (generate(model, None, 7, source=source, temperature=0, beam=beam) == expected).all(1)
        assert float(right.float().mean()) > 0.95
