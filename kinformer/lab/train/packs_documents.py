"""Test whether a model reads several documents in one row exactly as it reads each one in its own row.

A test is needed because parts cannot declare it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kinformer.core.model import Model
from kinformer.core.patterns.document import Document
from kinformer.core.token_positions import context_of_tokens
from kinformer.lab.train.out_of_memory import is_out_of_memory
from kinformer.lab.train.probe_model import EXACT, change, probe_of, rounding, seeded
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM

Documents = LM | MLM


def packs_documents(model: Model, length: int) -> bool:
    """Return True if a model reads documents that share a row exactly as it reads each one separately.

    Otherwise a training gives each document its own rows.

    The result is False for a model that cannot keep documents of a row apart, such as one with running sums of keys. It
    is False if a pattern or memory depends on positions of the row (its first tokens, its blocks). It is also False for
    a model that cannot be copied, or if memory is too small for the test. Two rows are tested: in the first a document
    begins one token late, which moves every pair of positions; the second has four documents of different sizes.

    The model is a copy in float64 with noise on every weight (`lab/train/probe_model.py`). The noise shows every
    difference, even if weights were initialised with zeros. The test uses train mode, or eval mode if both compute the
    same or train mode draws random numbers. It costs 4 forward passes of a row of `length` tokens in float64 without
    gradients, and 3 more to find the mode: less than one optimiser step on four rows.

    model: the model.
    length: tokens of a row.
    """
    if not isinstance(model, Documents) or length < 2:
        return False
    with seeded(model), torch.no_grad():
        try:
            probe = probe_of(model)
            tokens = probe.sample(1, length, 0).to(next(probe.parameters()).device)
            _settle(probe, tokens)
            return all(_is_packing_exact(probe, tokens, sizes) for sizes in _sizes(length))
        except (ValueError, NotImplementedError):
            return False
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return False  # rows with one document each are always correct


def _sizes(length: int) -> list[list[int]]:
    """Return the sizes of the documents of each test row."""
    several = [length * 3 // 8 | 1, 2, 1]
    return [[1, length - 1], *([[*several, length - sum(several)]] if sum(several) < length else [])]


def _settle(probe: Documents, tokens: Tensor) -> None:
    """Put the probe into train mode if that is deterministic and differs from eval mode, else into eval mode."""
    y = _outputs(probe.eval(), tokens)
    first, other = (_outputs(probe.train(), tokens, seed=seed) for seed in (0, 1))
    if change(y, first) <= EXACT or change(first, other) > 0:
        probe.eval()


def _is_packing_exact(probe: Documents, tokens: Tensor, sizes: Sequence[int]) -> bool:
    """Return True if documents of these sizes give the same outputs in one row as in rows of their own."""

    def read_alone() -> Tensor:
        return torch.cat([_outputs(probe, document) for document in tokens.split(list(sizes), 1)], 1)

    ids = torch.repeat_interleave(torch.tensor(sizes, device=tokens.device))[None]
    y = read_alone()
    apart = change(y, _outputs(probe, tokens, ids))
    return apart <= EXACT or apart <= rounding(probe, read_alone, y)


def _outputs(probe: Documents, tokens: Tensor, documents: Tensor | None = None, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    ctx = context_of_tokens(tokens)
    return probe.logits(tokens, ctx=ctx if documents is None else ctx.replace(only=Document(documents))).y
