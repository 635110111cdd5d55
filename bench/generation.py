"""Greedy generation by gpt against Hugging Face's GPT-2."""

from collections.abc import Callable
from typing import Any

import torch
from interleave import race, ready, report, setup
from jaxtyping import Int
from torch import Tensor
from training import VOCAB, Size, hugging_face, kinformer_gpt

from kinformer import generate

PROMPT, STEPS = 16, 200
SIZES = tuple(Size(d=256, depth=4, heads=4, length=256, batch=batch) for batch in (1, 8))


def measure(size: Size, rounds: int) -> None:
    prompt = torch.randint(VOCAB, (size.batch, PROMPT))
    ours = kinformer_gpt(size)
    theirs: Any = hugging_face(size)

    def kinformer() -> Int[Tensor, "B N"]:
        return generate(ours, prompt, STEPS, temperature=0)

    def transformers() -> Int[Tensor, "B N"]:
        # its model has no end-of-text token; the mask says that nothing is padding, which it would otherwise warn of
        mask = torch.ones_like(prompt)
        return theirs.generate(prompt, attention_mask=mask, do_sample=False, use_cache=True, max_new_tokens=STEPS)

    calls: dict[str, Callable[[], Tensor]] = {"kinformer": kinformer}
    if theirs is not None:
        calls["transformers"] = transformers
    for name, call in calls.items():
        shape = tuple(call().shape)
        assert shape == (size.batch, PROMPT + STEPS), f"{name} wrote {shape}"
    title = f"d {size.d}, depth {size.depth}, heads {size.heads}, batch {size.batch}"
    report(title, race({name: ready(call) for name, call in calls.items()}, rounds), size.batch * STEPS, STEPS)


if __name__ == "__main__":
    rounds = setup(f"Greedy generation of {STEPS} tokens after a prompt of {PROMPT}, with a cache, float32.")
    for size in SIZES:
        measure(size, rounds)
