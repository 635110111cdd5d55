"""Writing text with a byte model, and being told each byte as it comes."""

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.layer import Out
from kinformer.core.mechanism import NoState
from kinformer.generate import generate
from kinformer.train.evaluate import device_of, masks


def decodes(model: Any, length: int) -> bool:
    """Whether a model keeps a state for so many tokens; without one it reads the whole text again for each token.

    Raises ValueError for a model that fills in hidden bytes, and what its `start` raises.
    """
    if masks(model):
        raise ValueError(f"{type(model).__name__} fills in hidden bytes and writes none; use a causal member, like gpt")
    try:
        model.start(1, length, device=device_of(model))
    except NoState:
        return False
    return True


class Heard(nn.Module):
    """A model that says what it reads: after the prompt, each token once it is drawn."""

    def __init__(self, model: Any, hear: Callable[[int], None]) -> None:
        super().__init__()
        self.model, self.hear = model, hear
        self.times: list[float] = []

    def start(self, batch: int, length: int, **where: Any) -> Any:
        """The model's own."""
        return self.model.start(batch, length, **where)

    def logits(self, tokens: Tensor, state: Any = None) -> Out:
        """The model's own, after saying the last token, where it is no longer the prompt's."""
        if self.times:
            self.hear(int(tokens[0, -1]))
        self.times.append(monotonic())
        return self.model.logits(tokens, state)


def write(
    model: Any,
    prompt: bytes,
    tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    hear: Callable[[int], None] = lambda token: None,
) -> tuple[bytes, float]:
    """What a model writes after a prompt, and the milliseconds that a token took (the median, the prompt left out).

    A model without a state reads all anew for each token. `hear` is told each byte but the last while it writes.
    Raises ValueError for a model that fills in hidden bytes, and what `generate` raises.
    """
    recompute = not decodes(model, len(prompt) + tokens)
    rows = torch.tensor([list(prompt)], device=device_of(model))
    heard = Heard(model, hear)
    written = generate(
        heard,
        rows,
        tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        recompute=recompute,
    )
    spent = [after - before for before, after in pairwise((*heard.times[1:], monotonic()))]
    return bytes(min(token, 255) for token in written[0, len(prompt) :].tolist()), 1000 * median(spent or [0.0])
