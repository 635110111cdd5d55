"""What the state of a long row would need: what is too large for a machine is refused before it is made."""

from typing import Any

from kinformer.cli.errors import UserError
from kinformer.cli.support.afford import free_memory
from kinformer.core.state import leaves
from kinformer.pages.units import size


def refuse_no_room(model: Any, rows: int, tokens: int) -> None:
    """UserError where the state for rows of so many tokens is more than the memory that is there.

    A model that keeps none, or does not make it without numbers, is let pass.
    """
    free_bytes = free_memory()
    try:
        state = model.start(rows, tokens if model.window is None else min(tokens, model.window), device="meta")
    except Exception:
        return
    tensors = {id(leaf): leaf for _, leaf in leaves(state)}
    needed = sum(leaf.numel() * leaf.element_size() for leaf in tensors.values())
    if free_bytes is not None and needed > free_bytes:
        raise UserError(
            f"the state of {rows:,} x {tokens:,} tokens takes {size(needed)}, and {size(free_bytes)} of memory are "
            "there; give fewer tokens, or use a member whose state does not grow, like transformer_xl"
        )
