"""Law batch_mates: a row's logits do not depend on which other rows are in the batch."""

from collections.abc import Iterator

import torch
from torch import nn

from kinformer.laws.foreign.support.black_box import BlackBox, one_line
from kinformer.laws.foreign.support.differences import check_near, find_shortest
from kinformer.laws.support.findings import Unjudged

SAYS = "the logits of a row do not depend on the other rows in its batch"
OVER = "module"
LENGTH = 24


def judge(box: BlackBox) -> Iterator[str]:
    """Compare rows in one batch with rows in batches of one, and yield a sentence for each difference.

    box: the model. It is tested in eval mode, and in train mode without dropout if it then draws no random numbers.
    """
    longest = box.fit(LENGTH)
    yield from find_shortest(_check, box, longest, box.model, "")
    trained = box.copy(box.dtype).train()
    try:
        is_random = box.draws(trained)
    except Exception as error:  # a model may need targets in train mode
        raise Unjudged(f"the law holds in eval mode, but a call in train mode fails: {one_line(error)}") from error
    if not is_random:
        yield from find_shortest(_check, box, longest, trained, " in train mode")


def _check(length: int, box: BlackBox, model: nn.Module, mode: str) -> None:
    tokens = box.tokens(3, length)
    whole = box.call(tokens, model=model).logits
    alone = torch.cat([box.call(row[None], model=model).logits for row in tokens])
    check_near(
        alone,
        whole,
        lambda largest: (
            f"row {largest.row} of 3 gives other logits{mode} than in a batch of one: they differ at position "
            f"{largest.column} of {length} by {largest}; mix nothing across the batch"
        ),
    )
