"""Decoding: what a token costs, counted in operators and numbers they see, where a member's cost should not grow."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kinformer.core.discover import find_member

SMALL = {"d": 16, "depth": 2, "heads": 2, "vocab": 97}
FLAT: dict[str, tuple[str, dict[str, Any], int]] = {  # member, keywords, tokens after which it is flat
    "gpt in a window": ("gpt", {"length": 72, "pattern": "Causal() & Band(6)"}, 16),
    "transformer_xl": ("transformer_xl", {"segment": 8, "memory": 8}, 32),
    "gtrxl": ("gtrxl", {"segment": 8, "memory": 8}, 32),
    "memorizing_transformer": ("memorizing_transformer", {"segment": 8, "memory": 16, "k": 4}, 32),
    "compressive_transformer": ("compressive_transformer", {"segment": 8, "memory": 8, "compressed": 4}, 48),
    "linear_transformer": ("linear_transformer", {"length": 72}, 1),
    "performer": ("performer", {"length": 72}, 1),
    "rfa": ("rfa", {}, 1),
    "average_attention": ("average_attention", {}, 1),
}
QUICK = ("gpt in a window", "linear_transformer", "average_attention")


class Counted(TorchDispatchMode):
    """How many operators were called, and how many numbers went into them and came out."""

    operators = numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.operators += 1
        tensors = (*args, *(out if isinstance(out, tuple | list) else (out,)))
        self.numbers += sum(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))
        return out


def costs(name: str, keywords: dict[str, Any], tokens: int) -> list[tuple[int, int]]:
    sizes = {key: value for key, value in SMALL.items() if key != "heads" or name != "average_attention"}
    model, costs_seen = find_member(name)(**sizes, **keywords).eval(), []
    state, row = model.start(1, tokens), torch.arange(tokens)[None]  # alike in none: what ties is looked at again
    with torch.no_grad():
        for token in row.split(1, 1):
            with Counted() as counted:
                state = model.logits(token, state, last=True).state
            costs_seen.append((counted.operators, counted.numbers))
    return costs_seen


@pytest.mark.parametrize(
    "case", [entry if entry in QUICK else pytest.param(entry, marks=pytest.mark.prove) for entry in FLAT]
)
def test_a_token_costs_no_more_than_one_long_before(case: str) -> None:
    """Segments make it go up and down, so the dearest of sixteen tokens counts."""
    name, keywords, flat = FLAT[case]
    costs_seen = costs(name, keywords, 72)
    early, late = costs_seen[flat : flat + 16], costs_seen[-16:]
    for n in range(2):
        assert max(cost[n] for cost in late) <= max(cost[n] for cost in early)
    if flat == 1:
        assert len(set(costs_seen[1:])) == 1  # linear ones: every token alike


def test_keys_that_are_read_are_seen_by_the_count() -> None:
    costs_seen = costs("gpt", {"length": 72}, 72)
    assert costs_seen[-1][1] > 1.02 * costs_seen[16][1]
