"""Law chunk: decoding with a cache gives the logits of one call."""

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor

from kinformer.laws.foreign.support.black_box import BlackBox, one_line
from kinformer.laws.foreign.support.differences import BOUND, check_near, difference, find_shortest
from kinformer.laws.support.findings import Broken, Unjudged

SAYS = "decoding with a cache, token by token or in uneven chunks, gives the logits of one call"
OVER = "module"
LENGTH = 160
UNEVEN = (3, 1, 7, 2, 29, 1, 1, 13)


def judge(box: BlackBox) -> Iterator[str]:
    """Decode rows with a cache in several ways, and yield a sentence for each way that gives other logits.

    box: the model.
    """
    if not box.cache_name:
        raise Unjudged("forward takes no cache, such as past_key_values")
    if box.why_not_causal:
        raise Unjudged(box.why_not_causal)
    if box.call(box.tokens(1, box.short), caching=True).cache is None:
        raise Unjudged("a call returns no cache")
    box.fit(1)  # else the model cannot decode token by token
    longest = box.fit(48 if box.is_large else LENGTH)
    yield from find_shortest(_check_steps, box, longest)
    yield from find_shortest(_check_uneven, box, longest)


def _check_steps(length: int, box: BlackBox) -> None:
    prompt = box.fit(max(1, 3 * length // 4))
    _check(length, box, [prompt] + [1] * (length - prompt), f"a prompt of {prompt} tokens, then token by token,")


def _check_uneven(length: int, box: BlackBox) -> None:
    sizes: list[int] = []
    while sum(sizes) < length:
        sizes.append(min(UNEVEN[len(sizes) % len(UNEVEN)], length - sum(sizes)))
    _check(length, box, sizes, f"chunks of {sizes[:8]}{' and more' if len(sizes) > 8 else ''} tokens")


def _check(length: int, box: BlackBox, sizes: list[int], case: str) -> None:
    tokens = box.tokens(2, length)
    whole = box.call(tokens).logits
    try:
        decoded = decode(box, tokens, sizes)
    except Exception as error:
        if max(sizes[1:], default=1) > 1 and type(error) in (NotImplementedError, ValueError):
            raise Unjudged(
                f"the law holds token by token, but the model refuses chunks of several tokens: {one_line(error)}"
            ) from error
        raise Broken(f"decoding {length} tokens as {case} fails: {one_line(error)}") from error
    for positions in (False, True) if box.takes_mask else ():
        if difference(decoded, whole).share > BOUND:
            with suppress(Exception):  # some models need the mask or positions, which `generate` of transformers gives
                informed = decode(box, tokens, sizes, masked=True, positions=positions)
                decoded = min(decoded, informed, key=lambda logits: difference(logits, whole).size)
    check_near(
        decoded,
        whole,
        lambda largest: (
            f"decoding {length} tokens as {case} gives logits at position {largest.column} that differ "
            f"from one call's by {largest}"
        ),
    )


def decode(box: BlackBox, tokens: Tensor, sizes: list[int], masked: bool = False, positions: bool = False) -> Tensor:
    """Return the logits of a row that is read in chunks with a cache.

    box: the model.
    tokens: tokens [B T].
    sizes: numbers of tokens of the chunks.
    masked: if true, each call gets an attention_mask of ones for the tokens so far.
    positions: if true, each call gets position_ids.
    """
    cache, logits, end = None, [], 0
    for size in sizes:
        chunk = tokens[:, end : end + size]
        end += size
        pos = torch.arange(end - size, end, device=tokens.device).expand(len(tokens), -1) if positions else None
        mask = torch.ones_like(tokens[:, :end]) if masked else None
        out = box.call(chunk, mask=mask, position_ids=pos, cache=cache, caching=True)
        cache = out.cache
        logits.append(out.logits)
    return torch.cat(logits, 1)
