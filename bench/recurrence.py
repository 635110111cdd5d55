"""A training step of `transformer_xl` against `gpt`: equal width, depth, tokens a step, and furthest key."""

from collections.abc import Callable

import torch
from interleave import Contender, race, ready, report, setup
from training import SIZES, VOCAB, Size, kinformer_gpt, parameters, stepping

from kinformer.core.state import detach
from kinformer.members.transformer_xl import transformer_xl
from kinformer.models.lm import LM


def recurrent(size: Size) -> LM:
    """Half of what a token may read is its segment, half is memory."""
    half = size.length // 2
    return transformer_xl(d=size.d, depth=size.depth, heads=size.heads, segment=half, memory=half, vocab=VOCAB)


def going_on(model: LM, batch: torch.Tensor) -> Contender:
    """A contender of one step, whose lanes go on where the step before it ended."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    state = model.start(len(batch), batch.shape[1] - 1)

    def step() -> None:
        nonlocal state
        optimiser.zero_grad()
        output = model(batch, state, 0.5)
        output.total.backward()
        state = detach(output.state)
        optimiser.step()

    return ready(step)


def measure(size: Size, rounds: int) -> None:
    torch.manual_seed(0)
    xl, plain = recurrent(size), kinformer_gpt(size)
    batch = torch.randint(VOCAB, (size.batch, size.length + 1))  # one token more than is read: the last target
    loss: Callable[[torch.Tensor], torch.Tensor] = lambda tokens: plain(tokens).total  # noqa: E731
    contenders = {
        f"transformer_xl, {parameters(xl):,}": going_on(xl, batch),
        f"gpt, {parameters(plain):,}": stepping(plain, loss, batch),
    }
    title = f"d {size.d}, depth {size.depth}, heads {size.heads}, {size.length} keys, batch {size.batch}; parameters"
    report(title, race(contenders, rounds), size.batch * size.length)


if __name__ == "__main__":
    rounds = setup(f"{__doc__} Random bytes, float32.")
    for size in SIZES:
        measure(size, rounds)
