"""Activation checkpointing: blocks keep only their input and recompute the rest in the backward pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kinformer.core.choice import run_checkpointed
from kinformer.core.model import display_name
from kinformer.core.residual_block import ResidualBlock
from kinformer.core.warn import warn
from kinformer.nn.depth.luna import LunaBlock
from kinformer.nn.depth.reversible import Reversible


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """Run the blocks of a model with activation checkpointing while the context is entered.

    Choose it if a batch does not fit in memory. A block keeps its input and its hard choices (such as the tokens that
    it selects). The backward pass computes the other inner values again, with the same random numbers. A step takes
    about a third more time; gradients are the same.

    model: the model; a warning says if it has no blocks to recompute.

    Source: Chen et al., 2016, arXiv:1604.06174.
    """
    found_blocks = blocks(model)
    if not found_blocks and not any(isinstance(part, Reversible) for part in model.modules()):
        warn(f"activation checkpointing has no effect: this {display_name(model)} has no blocks to recompute")
    apart = {block: vars(block).get("read_apart") for block in found_blocks if isinstance(block, ResidualBlock)}
    for block in found_blocks:
        block.forward = _with_recompute(block.forward)  # names of weights stay as they are
    for block in apart:
        block.read_apart = _recomputed_inside(block.read_apart)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in found_blocks:
            del block.forward
        for block, before in apart.items():
            del block.read_apart
            if before is not None:
                block.read_apart = before  # type: ignore[method-assign]


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the outermost blocks of a model, which activation checkpointing recomputes.

    Blocks within a `Reversible` stack (which recomputes inputs from outputs) are left out: it keeps no inner values.

    module: the model, or a part of it.
    """
    if isinstance(module, Reversible):
        return []
    if isinstance(module, ResidualBlock | LunaBlock):
        return [module]
    inner = (block for child in module.children() for block in blocks(child))
    return list(dict.fromkeys(inner))


def _with_recompute(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Recompute in the backward pass if gradients are enabled."""
    return lambda *inputs: run_checkpointed(forward, *inputs) if torch.is_grad_enabled() else forward(*inputs)


def _recomputed_inside(read_apart: Callable[..., Any]) -> Callable[..., Any]:
    """Gather sharded weights once around the recomputation."""
    return lambda read, *inputs: read_apart(_with_recompute(read), *inputs)
