"""Lanes: batches for models that carry their state (a memory of a text) from one batch to the next."""

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
    """A text cut into lanes (parallel pieces of equal length), which are read in consecutive chunks.

    Choose it for a model that carries its state: row b of a batch continues where row b of the previous batch ended.

    Consecutive chunks share exactly one token: the last target of a chunk is the first input of the next. Every
    transition from a token to the next one is therefore seen once in a pass over the text. Fewer than `batch`
    transitions at the end of the text are left out. The last chunk of a pass may be shorter. After it, all lanes begin
    again with a new state (`is_at_start`).

    text: the tokens [N].
    batch: number of lanes, which are the rows of a batch.
    length: tokens that are predicted in a chunk.

    Errors: ValueError if a lane is shorter than one chunk.
    """

    text: Shaped[Tensor, " N"]
    batch: int
    length: int

    def __post_init__(self) -> None:
        check_at_least("batch", self.batch, 1), check_at_least("length", self.length, 1)
        needed, unit = self.batch * self.length + 1, SplitTokens.from_tokens(self.text).unit
        if len(self.text) < needed:
            raise ValueError(
                f"the training text is too short: got {len(self.text):,} {unit}, but {self.batch} lanes of length "
                f"{self.length:,} need {needed:,}; give more text, a smaller batch or a smaller length"
            )

    @property
    def lane(self) -> int:
        """Number of transitions from a token to the next one in a lane."""
        return (len(self.text) - 1) // self.batch

    @property
    def chunks(self) -> int:
        """Number of steps in one pass over the text."""
        return -(-self.lane // self.length)

    def is_at_start(self, step: int) -> bool:
        """Return whether a step has the first chunks of the lanes, which need a new state."""
        return step % self.chunks == 0

    def state_before(self, model: Model, step: int, state: State | None, rows: slice = ALL) -> State:
        """Return the state before the batch of a step: a new one at the start of the lanes, else `state`.

        model: the model that makes a new state.
        step: the step of the batch.
        state: the state of these rows after the previous batch; None asks for a new one.
        rows: rows of the batch that the state is for; by default all.
        """
        return (
            model.start(len(range(self.batch)[rows]), self.lane) if self.is_at_start(step) or state is None else state
        )

    def at(self, step: int) -> Int[Tensor, "B T"]:
        """Return the batch of a step: the next chunk of each lane, as int64 tokens."""
        first = step % self.chunks * self.length
        whole = self.text.as_strided((self.batch, self.lane + 1), (self.lane, 1), self.text.storage_offset())
        return whole[:, first : first + self.length + 1].long()


@dataclass(frozen=True, eq=False)
class DocumentLanes(Lanes):
    """Lanes (parallel pieces) of a text with documents: each document begins with a new state.

    Choose it for a model that carries its state, and a text with documents that must not see each other. Each chunk is
    a part of one document; a shorter last part is padded with -1. All chunks are seen once in a pass, except fewer than
    `batch` chunks at the end. A document of one token has no chunk, because nothing is predicted in it.

    text: the tokens with the starts of their documents.

    Errors: ValueError if there are fewer chunks than lanes.
    """

    text: SplitTokens  # type: ignore[assignment]  # with the starts of documents

    def __post_init__(self) -> None:
        check_at_least("batch", self.batch, 1), check_at_least("length", self.length, 1)
        if not self.chunks:
            raise ValueError(
                f"the training text is too short: its documents have {int(self._chunks_before[-1]):,} chunks of length "
                f"{self.length:,}, but each of {self.batch} lanes needs one; give more text, or a smaller batch"
            )

    @cached_property
    def _chunks_before(self) -> Int[Tensor, " D1"]:
        """Number of chunks before each document; the last entry is the total."""
        counts = (self.text.sizes - 1 + self.length - 1) // self.length
        return torch.cat([torch.zeros(1, dtype=torch.long), counts.clamp_min(0).cumsum(0)])

    @property
    def lane(self) -> int:
        """Maximum number of tokens that one state reads: the longest document or a lane, if that is shorter."""
        return min(int(self.text.sizes.max()), self.chunks * self.length)

    @property
    def chunks(self) -> int:
        """Number of steps in one pass over the text."""
        return int(self._chunks_before[-1]) // self.batch

    def state_before(self, model: Model, step: int, state: State | None, rows: slice = ALL) -> State:
        """Return the state before the batch of a step, with a new state for each row that begins a document."""
        if self.is_at_start(step) or state is None:
            return model.start(len(range(self.batch)[rows]), self.lane)
        new = self.is_document_start(step)[rows]
        return reset(state, new.to(next(model.parameters()).device)) if bool(new.any()) else state

    def is_document_start(self, step: int) -> Bool[Tensor, " B"]:
        """Return a mask [B] of the rows in which a document begins."""
        return self._chunk(step)[1] == 0

    def at(self, step: int) -> Int[Tensor, "B T"]:
        """Return the batch of a step: the next chunk of each lane, padded with -1, as int64 tokens."""
        document, chunk = self._chunk(step)
        first, end = self.text.document_starts[document] + chunk * self.length, self.text.end(document)
        places = first[:, None] + torch.arange(min(self.length + 1, int((end - first).max())))
        tokens = self.text.tokens[places.clamp_max(len(self.text.tokens) - 1)].long()
        return torch.where(places < end[:, None], tokens, -1)

    def _chunk(self, step: int) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
        """Return the document of each row and the number of its chunk within the document."""
        number = torch.arange(self.batch) * self.chunks + step % self.chunks
        document = torch.searchsorted(self._chunks_before, number, right=True) - 1
        return document, number - self._chunks_before[document]
