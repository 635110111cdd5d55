"""Law peek: in a causal model, later tokens change no earlier logits."""

import sys
from collections.abc import Iterator
from typing import Any

import torch

from kinformer.laws.foreign.support.black_box import BlackBox
from kinformer.laws.foreign.support.differences import difference, find_shortest
from kinformer.laws.support.findings import Broken, Unjudged

SAYS = "a causal model's logits depend on no later token"
OVER = "module"
LENGTH = 160  # longer than 128, where kernels and masks often have a seam
BOUND = 1e-5  # largest difference, as a share of the spread: both calls compute the same numbers


def judge(box: BlackBox) -> Iterator[str]:
    """Change tokens at several places, and yield a sentence if logits before them change.

    box: the model. `BlackBox.why_not_causal` says which models may read ahead.
    """
    if box.why_not_causal:
        raise Unjudged(box.why_not_causal)
    yield from find_shortest(_check, box, box.fit(LENGTH))


def _check(length: int, box: BlackBox) -> None:
    tokens, other = box.tokens(1, length), box.tokens(1, length, 1000)
    other = torch.where(other == tokens, box.tokens(1, length, 2000), other)
    before = box.call(tokens).logits
    places = {1, 2, length // 4, length // 2, 3 * length // 4, length - 1, 127, 128, 129}
    if box.is_large:
        places = {1, length // 2, length - 1}
    for at in sorted(place for place in places if 1 <= place < length):
        for end in sorted({at + 1, length}):
            changed = tokens.clone()
            changed[:, at:end] = other[:, at:end]
            ahead = difference(box.call(changed).logits[:, :at], before[:, :at])
            if ahead.share > BOUND:
                which = f"token {at}" if end == at + 1 else f"tokens {at} to {end - 1}"
                raise Broken(
                    f"reads ahead: changing {which} of {length} changes the logits at position {ahead.column} by "
                    f"{ahead}; {_advice(box.config)}"
                )


def _advice(config: Any) -> str:
    """Return what to do: register a mask for an attention function that has none, or mask later positions."""
    name = getattr(config, "_attn_implementation", None)
    masking = sys.modules.get("transformers.masking_utils")
    if isinstance(name, str) and masking is not None and name not in masking.ALL_MASK_ATTENTION_FUNCTIONS:
        return f"the attention {name!r} gets no mask: register a mask function for it with AttentionMaskInterface"
    return "mask later positions in every layer, or set is_causal = False on the class of an encoder"
