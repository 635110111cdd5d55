"""Lanes: batches for models that carry a state from one batch to the next."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.layer import State
from kinformer.core.model import Model
from kinformer.core.state import reset
from kinformer.lab.data.support.split_tokens import SplitTokens

ALL = slice(None)


@dataclass(frozen=True, eq=False)
class Lanes:
    """A text cut into `batch` lanes of equal length, read side by side in chunks that follow one another.

    Choose it for a model whose state is carried: row b of a step's batch goes on where row b of the step before ended.
    Consecutive chunks share exactly one token (the last target is the next first input), so every transition from a
    token to the next is seen once in a reading; fewer than `batch` of them are left over at the end. The last chunk of
    a reading may be shorter; after it the lanes begin again (`is_at_start`), and the state must too. Raises ValueError
    where a lane would be shorter than one chunk.
    """

    text: Shaped[Tensor, " N"]
    batch: int
    length: int

    def __post_init__(self) -> None:
        check_at_least("batch", self.batch, 1), check_at_least("length", self.length, 1)
        needed, unit = self.batch * self.length + 1, SplitTokens.from_tokens(self.text).unit
        if len(self.text) < needed:
            raise ValueError(
                f"the text to learn from is too short: {len(self.text):,} {unit} are there, and {self.batch} lanes of "
                f"length {self.length:,} need {needed:,}; give more text, a smaller batch or a smaller length"
            )

    @property
    def lane(self) -> int:
        """How many transitions a lane has."""
        return (len(self.text) - 1) // self.batch

    @property
    def chunks(self) -> int:
        """How many steps one reading of the text takes."""
        return -(-self.lane // self.length)

    def is_at_start(self, step: int) -> bool:
        """Whether the lanes stand at their first chunk, where a state must start anew."""
        return step % self.chunks == 0

    def state_before(self, model: Model, step: int, state: State | None, rows: slice = ALL) -> State:
        """The state before the batch of a step, or some rows of it: new where the lanes begin, else the one that these
        rows had after the batch before."""
        return (
            model.start(len(range(self.batch)[rows]), self.lane) if self.is_at_start(step) or state is None else state
        )

    def at(self, step: int) -> Int[Tensor, "B T"]:
        """The batch of a step, int64 tokens."""
        first = step % self.chunks * self.length
        whole = self.text.as_strided((self.batch, self.lane + 1), (self.lane, 1), self.text.storage_offset())
        return whole[:, first : first + self.length + 1].long()


@dataclass(frozen=True, eq=False)
class DocumentLanes(Lanes):
    """Lanes of documents, one after the other: no chunk holds two, and a row's state is new where one begins.

    Choose it for a model whose state is carried and a text whose documents read only themselves. Chunks that end with
    their document are padded (-1) behind. All transitions within documents are seen once in a reading, but for fewer
    than `batch` chunks at its end; a document of one token has none. Raises ValueError where there are fewer chunks
    than lanes.
    """

    text: SplitTokens  # type: ignore[assignment]  # not the tokens alone

    def __post_init__(self) -> None:
        check_at_least("batch", self.batch, 1), check_at_least("length", self.length, 1)
        if not self.chunks:
            raise ValueError(
                f"the text to learn from is too short: its documents have {int(self._chunks_before[-1]):,} chunks of "
                f"length {self.length:,}, and {self.batch} lanes need one each; give more text, or a smaller batch"
            )

    @cached_property
    def _chunks_before(self) -> Int[Tensor, " D1"]:
        """How many chunks there are before each document, and in all."""
        counts = (self.text.sizes - 1 + self.length - 1) // self.length
        return torch.cat([torch.zeros(1, dtype=torch.long), counts.clamp_min(0).cumsum(0)])

    @property
    def lane(self) -> int:
        """How many transitions a state must have room for: of the longest document, or of a lane."""
        return min(int(self.text.sizes.max()), self.chunks * self.length)

    @property
    def chunks(self) -> int:
        """How many steps one reading of the text takes."""
        return int(self._chunks_before[-1]) // self.batch

    def state_before(self, model: Model, step: int, state: State | None, rows: slice = ALL) -> State:
        """The state before the batch of a step: new in the rows in which a document begins."""
        if self.is_at_start(step) or state is None:
            return model.start(len(range(self.batch)[rows]), self.lane)
        new = self.is_document_start(step)[rows]
        return reset(state, new.to(next(model.parameters()).device)) if bool(new.any()) else state

    def is_document_start(self, step: int) -> Bool[Tensor, " B"]:
        """In which rows a document begins."""
        return self._chunk(step)[1] == 0

    def at(self, step: int) -> Int[Tensor, "B T"]:
        """The batch of a step, int64 tokens, -1 behind the end of a document."""
        document, chunk = self._chunk(step)
        first, end = self.text.document_starts[document] + chunk * self.length, self.text.end(document)
        places = first[:, None] + torch.arange(min(self.length + 1, int((end - first).max())))
        tokens = self.text.tokens[places.clamp_max(len(self.text.tokens) - 1)].long()
        return torch.where(places < end[:, None], tokens, -1)

    def _chunk(self, step: int) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
        """For each row the document that it reads, and which chunk of it."""
        number = torch.arange(self.batch) * self.chunks + step % self.chunks
        document = torch.searchsorted(self._chunks_before, number, right=True) - 1
        return document, number - self._chunks_before[document]
