"""Windows: how a text is read so that each of its tokens but a document's last has a key, made once."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from kinformer.lab.data.support.split_tokens import STRETCH, SplitTokens
from kinformer.lab.train.evaluate import BATCH, rows_of
from kinformer.models.support.taps import Tap


class Window(NamedTuple):
    """Tokens from begin to end, end excluded, that are read together; of the first `known` the keys are there."""

    begin: int
    known: int
    end: int

    @property
    def keys(self) -> int:
        """How many keys it brings: its last token is read by nobody."""
        return self.end - self.begin - 1 - self.known


def windows(part: SplitTokens, length: int, stride: int) -> Iterator[Window]:
    """The windows of a text in order, as an evaluation has them; lanes, which a state is carried through, for stride 0.

    A window has `length` tokens to read, each window `stride` tokens after the one before; a lane has STRETCH.
    """
    for begin, end in pairwise([*part.firsts.tolist(), len(part.tokens)]):
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
    """The windows of each shard: as many as bring `least` keys; what is left over is the last one."""
    some, keys = list[Window](), 0
    for window in windows(part, length, stride):
        some.append(window)
        keys += window.keys
        if keys >= least:
            yield some
            some, keys = [], 0
    if some:
        yield some


def read(
    tap: Tap, part: SplitTokens, some: Sequence[Window], length: int
) -> Iterator[tuple[int, Float[Tensor, "n D"]]]:
    """The keys of windows, each piece with the place of its first among them; long windows first, of like ones many."""
    firsts, count = {}, 0
    for window in some:
        firsts[window] = count
        count += window.keys
    order = sorted(some, key=lambda window: (window.begin - window.end, window))
    for at in range(0, len(order), BATCH):
        lot = order[at : at + BATCH]
        longest = lot[0].end - lot[0].begin - 1
        carries = tap.model.lanes and longest > length
        state = tap.model.start(len(lot), longest) if carries else None
        for lo in range(0, longest, length if carries else longest):
            hi = min(lo + length, longest) if carries else longest
            rows = [(min(one.begin + lo, one.end - 1), min(one.begin + hi, one.end - 1)) for one in lot]
            found = tap(rows_of(tap.model, part, rows), state)
            state = found.out.state if carries else None
            for window, states, (begin, end) in zip(lot, found.states, rows, strict=True):
                known = max(window.begin + window.known - begin, 0)
                if end - begin > known:
                    yield firsts[window] + begin + known - window.begin - window.known, states[known : end - begin]
