"""The conversion `bigbird`: BERT or RoBERTa with a window, global blocks and random blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from kinformer.convert.support.bert_source import (
    TAKEN,
    bert_keywords,
    move_blocks,
    note_length,
    resolve_length,
    tile_positions,
    trained_positions,
)
from kinformer.convert.support.changed_model import copy_facts
from kinformer.core.conversion import Conversion, Promise, WeightSource
from kinformer.core.model import Model
from kinformer.members.bigbird import bigbird

BLOCKS = 8  # blocks in the longest row of the source; the paper has 512 = 8 * 64


@dataclass(frozen=True)
class BigbirdConversion(Conversion):
    """Turn a BERT, RoBERTa or DistilBERT into a BigBird, in which random blocks join distant tokens.

    Choose it over `longformer` if distant tokens should meet within few layers. Every weight is a copy, and the table
    of positions is repeated until it has `length` rows. Rows that the source can read keep full attention by default,
    so their outputs are equal; longer rows use the blocks. Adapt the model on long texts before you rely on them. The
    authors too started from RoBERTa.

    block: positions in a block; None gives an eighth of the source's length, 64 for 512.
    window: blocks on either side of its own that a block reads.
    keys: number of random blocks that each block draws.
    draw: choice of the random blocks, as in the member `bigbird`. "first" is the form of Hugging Face transformers
        outside training, so that the model can be saved for it.
    full_up_to: rows of at most this many tokens have full attention; 0 for none. None gives the length of the source,
        or (5 + 2 keys) blocks, as in transformers, with draw "first".
    length: longest row in tokens; None gives 8 times the length of the source, 4,096 for 512.

    Errors: ValueError, in one line, for a source that is no bert in its published form, for a length below the
    source's, and for a block of more than `length` tokens.

    Source: Zaheer et al., 2020, arXiv:2007.14062, section 4 and appendix E.
    """

    block: int | None = None
    window: int = 1
    keys: int = 3
    draw: Literal["past", "published", "row", "first"] = "past"
    full_up_to: int | None = None
    length: int | None = None

    def resolve(self, model: Model) -> Conversion:
        bert_keywords(model, "bigbird")
        length, known = resolve_length(self.length, model), trained_positions(model)
        block = max(known // BLOCKS, 1) if self.block is None else self.block
        if block > length:
            raise ValueError(f"block={block} is larger than length={length}. Give a block of at most {length} tokens")
        full = (5 + 2 * self.keys) * block if self.draw == "first" else known
        return replace(
            self, block=block, length=length, full_up_to=full if self.full_up_to is None else self.full_up_to
        )

    def restructure(self, model: Model) -> Model:
        keywords = bert_keywords(model, "bigbird")
        options: Any = {name: keywords[name] for name in TAKEN} | self.options
        if not self.keys:
            options.pop("draw")  # without random blocks it has no effect
        new: Model = bigbird(**options)
        copy_facts(model, new)
        note_length(new, new.longest or 0)
        return new

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        return {**move_blocks(source, converted), **tile_positions(source, converted.longest or 0)}

    def promise(self, model: Model) -> Promise:
        known = trained_positions(model)
        assert self.block is not None and self.full_up_to is not None
        if self.full_up_to >= known:
            return Promise(known, f"rows of up to {self.full_up_to:,} tokens have full attention")
        # the first, the last and 2 window + 1 blocks are read by all; a block also reads a few others if all are drawn
        drawn = self.keys if self.draw in ("past", "row") else 0
        # with "first", blocks between the first and the last one count the first block several times
        blocks = 2 if self.keys and self.draw == "first" else self.window + drawn + 3
        length = min(max(self.full_up_to, blocks * self.block), known)
        return Promise(length, f"in rows of up to {length:,} tokens each block reads all others")
