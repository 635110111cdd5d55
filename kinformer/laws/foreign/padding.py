"""Law padding: padding on the left or right changes nothing at the real tokens."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.laws.foreign.support.black_box import BlackBox, one_line
from kinformer.laws.foreign.support.differences import BOUND, Difference, difference, find_shortest
from kinformer.laws.support.findings import Broken, Unjudged

SAYS = "padding that attention_mask marks changes no logits at the real tokens"
OVER = "module"
LENGTH = 24
PADS = 5


def judge(box: BlackBox) -> Iterator[str]:
    """Compare padded rows with rows without padding, and yield a sentence for each difference.

    box: the model. If it takes position_ids, it may need them with padding on the left: then each row counts its real
        tokens from 0, as `generate` of transformers does. Encoders without position_ids are tested with padding on the
        right only, and so is the source of an encoder-decoder.
    """
    if not box.takes_mask:
        raise Unjudged("forward takes no attention_mask")
    sides = ["right"]
    if box.per_token and not box.is_seq2seq and (box.takes_positions or not box.why_not_causal):
        sides.append("left")
    if box.longest <= PADS + 1:
        raise Unjudged(f"the model takes rows of at most {box.longest} tokens")
    for side in sides:
        yield from find_shortest(_check, box, min(LENGTH, box.longest - PADS), side)


def _check(length: int, box: BlackBox, side: str) -> None:
    inputs = "source" if box.is_seq2seq else "tokens"
    lengths = [box.fit(max(1, n), side=inputs) for n in (length, length - 3, length // 2)]
    columns = box.fit(lengths[0] + PADS, longer=True, side=inputs)
    tokens = box.tokens(3, lengths[0])
    padded = torch.full((3, columns), box.pad or 0, device=box.device)
    mask = torch.zeros_like(padded)
    starts = [columns - n if side == "left" else 0 for n in lengths]
    for row, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        padded[row, start : start + n] = tokens[row, :n]
        mask[row, start : start + n] = 1
    inputs_of_calls: list[dict[str, Any]] = [{}]
    if box.takes_positions:
        inputs_of_calls.append({"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)})
    alone = [
        _call(box, tokens[row : row + 1, :n], torch.ones(1, n, device=box.device)) for row, n in enumerate(lengths)
    ]
    largest: list[tuple[Difference, int]] = []
    for further in inputs_of_calls:
        try:
            logits = _call(box, padded, mask, **further)
        except Exception as error:
            if largest:
                continue
            raise Broken(f"a call of {columns} columns with attention_mask fails: {one_line(error)}") from error
        differences = []
        for row, (start, n) in enumerate(zip(starts, lengths, strict=True)):
            mine = logits[row : row + 1]
            differences.append(
                (difference(mine[:, start : start + n] if _is_per_token(box) else mine, alone[row]), row)
            )
        largest.append(max(differences, key=lambda pair: pair[0].size))
    worst, row = min(largest, key=lambda pair: pair[0].size)
    if worst.share > BOUND:
        what = "the source" if box.is_seq2seq else f"a row of {lengths[row]} tokens"
        advice = "" if side == "right" or box.takes_positions else "; count positions from the first real token"
        raise Broken(
            f"{columns - lengths[row]} columns of padding on the {side} of {what} change the logits at token "
            f"{worst.column} by {worst}{advice}"
        )


def _is_per_token(box: BlackBox) -> bool:
    return box.per_token and not box.is_seq2seq


def _call(box: BlackBox, tokens: Tensor, mask: Tensor, **further: Any) -> Tensor:
    mask = mask.long()
    if box.is_seq2seq:
        target = box.tokens(1, box.short, 7).expand(len(tokens), -1)
        return box.call(target, source=tokens, source_mask=mask).logits
    return box.call(tokens, mask=mask, **further).logits
