"""The language model's loss: the mean over targets that are there, whatever padding stands before or after them."""

import torch
from torch.nn import functional as F

from kinformer.members.gpt import gpt


def test_the_loss_is_the_mean_over_real_targets() -> None:
    torch.manual_seed(0)
    model = gpt(d=16, depth=1, heads=2, length=32, vocab=11).double().eval()
    rows = [torch.randint(0, 11, (n,)) for n in (9, 6, 4)]
    batch = torch.full((3, 9), -1)
    batch[0], batch[1, :6], batch[2, 5:] = rows[0], rows[1], rows[2]
    alone = [F.cross_entropy(model.logits(row[None, :-1]).y[0], row[1:], reduction="none") for row in rows]
    loss = model(batch)
    torch.testing.assert_close(loss.total, torch.cat(alone).mean())
    torch.testing.assert_close(loss.parts["nll"], loss.total)
    assert float(model(torch.full((2, 4), -1)).total.detach()) == 0.0
