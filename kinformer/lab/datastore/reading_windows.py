"""Windows in which a model reads a text to compute the keys of a datastore, one per predicted token."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from kinformer.lab.data.support.split_tokens import STRETCH, SplitTokens
from kinformer.lab.train.evaluate import BATCH, rows_of
from kinformer.models.support.hidden_taps import Tap


class Window(NamedTuple):
    """A stretch of a text that the model reads in one row to compute keys.

    begin, end: index of the first token, and the index after the last one.
    overlap: number of tokens at its beginning that have keys from the previous window and serve only as context.
    """

    begin: int
    overlap: int
    end: int

    @property
    def keys(self) -> int:
        """The number of keys that the window adds; its last token is only predicted and has no key."""
        return self.end - self.begin - 1 - self.overlap


def windows(part: SplitTokens, length: int, stride: int) -> Iterator[Window]:
    """Yield the windows of a text in order, as in an evaluation, or long lanes.

    Lanes are pieces of a text in which the model carries its state from call to call.

    part: the text.
    length: tokens of a window; a lane has STRETCH tokens.
    stride: tokens from one window to the next; 0 for lanes.
    """
    for begin, end in pairwise([*part.document_starts.tolist(), len(part.tokens)]):
        if not stride:
            yield from (Window(at, 0, min(at + STRETCH + 1, end)) for at in range(begin, end - 1, STRETCH))
            continue
        before, last = begin, end - 1
        while before < last:
            at = min(last, begin + length if before == begin else before + stride)
            first = max(begin, at - length)
            yield Window(first, before - first, at + 1)
            before = at


def shards(part: SplitTokens, length: int, stride: int, least: int) -> Iterator[list[Window]]:
    """Yield the windows of each shard, with at least `least` keys; the last shard may have fewer.

    part: the text.
    length, stride: as in `windows`.
    least: least number of keys in a shard.
    """
    shard, keys = list[Window](), 0
    for window in windows(part, length, stride):
        shard.append(window)
        keys += window.keys
        if keys >= least:
            yield shard
            shard, keys = [], 0
    if shard:
        yield shard


def read(
    tap: Tap, part: SplitTokens, shard: Sequence[Window], length: int
) -> Iterator[tuple[int, Float[Tensor, "n D"]]]:
    """Yield the keys of a shard's windows in pieces, each as (number of its first key in the shard, keys).

    Windows of similar length are read together, the longest first.

    tap: reader of the hidden states of the model that are the keys.
    part: the text.
    shard: the windows.
    length: tokens that the model reads per call in lanes.
    """
    firsts, count = {}, 0
    for window in shard:
        firsts[window] = count
        count += window.keys
    order = sorted(shard, key=lambda window: (window.begin - window.end, window))
    for at in range(0, len(order), BATCH):
        lot = order[at : at + BATCH]
        longest = lot[0].end - lot[0].begin - 1
        carries = tap.model.lanes and longest > length
        state = tap.model.start(len(lot), longest) if carries else None
        for lo in range(0, longest, length if carries else longest):
            hi = min(lo + length, longest) if carries else longest
            rows = [(min(each.begin + lo, each.end - 1), min(each.begin + hi, each.end - 1)) for each in lot]
            tapped = tap(rows_of(tap.model, part, rows), state)
            state = tapped.out.state if carries else None
            for window, states, (begin, end) in zip(lot, tapped.states, rows, strict=True):
                overlap = max(window.begin + window.overlap - begin, 0)
                if end - begin > overlap:
                    yield (
                        firsts[window] + begin + overlap - window.begin - window.overlap,
                        states[overlap : end - begin],
                    )
