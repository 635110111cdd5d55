"""Shaw's Transformer: the paper's sizes, its tables, and that a row which begins later is the same row."""

from typing import Any

import torch

from kinformer.core.layer import Context
from kinformer.members.shaw import shaw
from kinformer.nn.attention import Attention
from kinformer.nn.biases.relative import Relative


def test_the_base_model_is_the_papers_with_tables_shared_by_heads() -> None:
    """6 + 6 layers of 512, 8 heads, feed-forward of 1024, clip 16: two tables of 64 columns in each self-attention.

    They have 33 rows in the encoder. A decoder reads no key ahead, so it has the 17 rows from -16 to 0.
    """
    with torch.device("meta"):
        model: Any = shaw(vocab=37_000)
    own = [part for part in model.modules() if isinstance(part, Attention)]
    biases = [part.mechanism.bias for part in own]
    assert [part.cross for part in own] == [bias is None for bias in biases] and len(own) == 18
    tables = [bias for bias in biases if isinstance(bias, Relative)]
    shapes = [tuple(table.shape) for bias in tables for table in (bias.keys, bias.added) if table is not None]
    assert shapes == 12 * [(33, 64)] + 12 * [(17, 64)]
    attention, mlp, norm = 4 * (512 * 512 + 512), 2 * 512 * 1024 + 1024 + 512, 2 * 512
    layers = 6 * (attention + mlp + 2 * norm) + 6 * (2 * attention + mlp + 3 * norm)
    assert sum(w.numel() for w in model.parameters()) == 37_002 * 512 + layers + 12 * (33 + 17) * 64


def test_with_by_head_each_head_has_tables_of_its_own_as_in_the_papers_base_model() -> None:
    with torch.device("meta"):
        shared, own = (shaw(vocab=11, by_head=is_by_head) for is_by_head in (False, True))
    tables = [part for part in own.modules() if isinstance(part, Relative)]
    shapes = [tuple(table.shape) for bias in tables for table in (bias.keys, bias.added) if table is not None]
    assert shapes == 12 * [(8, 33, 64)] + 12 * [(8, 17, 64)]
    sizes = [sum(w.numel() for w in model.parameters()) for model in (shared, own)]
    assert sizes[1] - sizes[0] == 12 * 7 * (33 + 17) * 64


def test_without_values_only_the_keys_have_a_table() -> None:
    model = shaw(d=16, depth=1, heads=2, hidden=16, vocab=11, values=False, clip=3)
    tables = [part for part in model.modules() if isinstance(part, Relative)]
    assert [(bias.clip, bias.added) for bias in tables] == [(3, None)] * 2


def test_a_row_that_begins_later_is_the_same_row_and_order_counts(float64: None) -> None:
    model: Any = shaw(d=16, depth=2, heads=2, hidden=16, vocab=11, clip=2).eval()
    source, target = torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (2, 5))
    encoded, pos = model.encode(source)

    def read(first: int) -> torch.Tensor:
        at = torch.arange(5).expand(2, 5) + first
        return model.logits(target, None, Context(at, run=True, source=encoded.y, source_pos=pos)).y

    torch.testing.assert_close(read(40), read(0), rtol=0, atol=1e-12)
    other, _ = model.encode(source[:, [1, 0, 2, 3, 4, 5]])
    assert (other.y[:, [1, 0, 2, 3, 4, 5]] - encoded.y).abs().max() > 1e-3
