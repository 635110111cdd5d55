"""BERT: the published size, and that it reads from both sides."""

import pytest
import torch

from kinformer.members.bert import bert


def test_bert_base_has_its_110_million_parameters() -> None:
    """109,482,240 with the pooler of 590,592; the head's layer and bias are ours."""
    with torch.device("meta"):
        model = bert(d=768, depth=12, heads=12, length=512, vocab=30521)
    head = 768 * 768 + 768 + 2 * 768 + 30522
    assert sum(weight.numel() for weight in model.parameters()) == 109_482_240 - 590_592 + head


def test_every_token_reads_every_token() -> None:
    model = bert(d=16, depth=1, heads=2, length=8, vocab=11).eval()
    tokens = torch.randint(0, 11, (1, 8))
    before = model.logits(tokens).y
    for place in (0, 7):
        changed = tokens.clone()
        changed[0, place] = (changed[0, place] + 1) % 11
        assert ((model.logits(changed).y - before).abs().amax(-1) > 0).all()


@pytest.mark.parametrize("length", [5, 12])
def test_every_token_reads_as_many_drawn_ones_of_its_row(length: int) -> None:
    model = bert(d=16, depth=1, heads=1, pattern="Band(0)", drawn=3, length=12, vocab=11).eval()
    tokens = torch.randint(0, 11, (1, length)).repeat(length + 1, 1)
    tokens[1:].diagonal().add_(1).remainder_(11)
    y = model.logits(tokens).y
    reads = (y[1:] - y[:1]).abs().amax(-1) > 1e-7
    itself = reads.diagonal()
    assert itself.all() and reads.sum(0).ge(3).all() and reads.sum(0).le(4).all()


def test_a_row_beyond_its_length_is_an_error_that_says_so() -> None:
    with pytest.raises(IndexError, match="position 8 is beyond the table of 8"):
        bert(d=16, depth=1, heads=2, length=8, vocab=11)(torch.zeros(1, 9, dtype=torch.long))
