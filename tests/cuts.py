"""A row that is cut: what a model says of it must not depend on where."""

import torch

from kinformer.models.lm import LM


def agree_however_cut(model: LM) -> None:
    """Training by segments of five, training in other chunks, and decoding give what one dense call gives."""
    tokens = torch.randint(0, 11, (2, 24))
    dense = model.logits(tokens).y
    for train, cuts in ((True, [5, 10, 15, 20]), (True, [3, 14]), (False, list(range(1, 24)))):
        model.train(train)
        state, pieces = model.start(2, 24), []
        for chunk in tokens.tensor_split(cuts, 1):
            out = model.logits(chunk, state)
            state = out.state
            pieces.append(out.y)
        torch.testing.assert_close(torch.cat(pieces, 1), dense, rtol=0, atol=1e-11)
