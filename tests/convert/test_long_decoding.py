"""A converted model writes 32,768 tokens with a state and a memory of one size."""

from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.lab.conversion.reading_costs import state_bytes
from kinformer.lab.cost.resident_memory import release_freed, resident

LENGTH, EARLY = 32_768, 2_000


@pytest.mark.prove
@pytest.mark.parametrize(
    ("recipe", "options"), [("window", {}), ("memory", {}), ("memory", {"sinks": 0})], ids=["window", "memory", "xl"]
)
def test_writing_32768_tokens_takes_no_more_memory_than_writing_2000(recipe: str, options: dict[str, Any]) -> None:
    """Steps of one token, as in generation, in turn with pieces of 15, because 32,768 steps take minutes."""
    source: Any = kf.llama(d=64, depth=1, heads=4, head_dim=64, key_heads=4, vocab=64)
    model = kf.convert(source, recipe, **options)
    with torch.inference_mode():
        state, piece = model.start(1, LENGTH), torch.ones(1, 15, dtype=torch.long)
        assert 40 * state_bytes(state) < state_bytes(source.start(1, LENGTH))
        sizes, memory = set(), dict[int, int | None]()
        for number in range(16, LENGTH + 1, 16):
            out = model.logits(piece, state)
            step = model.logits(out.y[:, -1:].argmax(-1), out.state)
            state, piece = step.state, out.y.argmax(-1)
            if number in (EARLY, LENGTH):
                release_freed()
                memory[number] = resident()
                sizes.add(state_bytes(state))
    assert len(sizes) == 1 and int(state.now) == LENGTH
    early, late = memory[EARLY], memory[LENGTH]
    if early is None or late is None:
        pytest.skip("this system does not report the memory of a process")
    # a cache of all keys would add 63 MB: 30,768 tokens of 4 heads with keys and values of width 64
    assert late - early < 6 * 10**6, f"{(late - early) / 1e6:.1f} MB more after {LENGTH:,} tokens than after {EARLY:,}"
