"""The conversion `longformer`: BERT or RoBERTa with windows and a longer table of positions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kinformer.convert.support.bert_source import (
    TAKEN,
    StackedRows,
    bert_keywords,
    note_length,
    resolve_length,
    tile_positions,
    trained_positions,
)
from kinformer.convert.support.changed_model import attention_layers, copy_facts
from kinformer.core.checks import check_at_least
from kinformer.core.conversion import Conversion, Promise, WeightSource
from kinformer.core.model import Model
from kinformer.members.longformer import longformer


@dataclass(frozen=True)
class LongformerConversion(Conversion):
    """Turn a BERT, RoBERTa or DistilBERT into a Longformer, which reads rows of thousands of tokens.

    Choose it first for long texts: every weight is a copy, and by default rows that the source can read have equal
    outputs. The table of positions is repeated until it has `length` rows. The matrices that global tokens use start as
    copies of the local ones, as in the paper. Adapt the model to long texts (masked tokens) before you rely on them:
    the authors' RoBERTa had 1.846 bits per character at 512 tokens, 1.957 at 4,096 right after the conversion, and
    1.753 after 2,000 steps (table 5, base model).

    window: tokens read on either side; one number, or one for each layer from the bottom. None gives the length of the
        source, so that the window holds each of its rows. The authors' notebook has half of it, 256 of 512. Rows of
        more than 257 tokens then differ, but longer ones suffer less. Each token reads about as many keys as before,
        and only the first and the last of them share a position. Hidden states of MiniLM at 4,096 tokens then had a
        cosine of 0.986 with the source's on pieces of 512, and 0.917 with the default.
    length: longest row in tokens; None gives 8 times the length of the source, 4,096 for 512.
    marked: number of first tokens of a row that are global. `Context(also=Marked(mask))` marks others in a batch.

    Errors: ValueError, in one line, for a source that is no bert in its published form, for a length below the
    source's, and for a window of more than `length` tokens.

    Source: Beltagy et al., 2020, arXiv:2004.05150, section 5.
    """

    window: int | tuple[int, ...] | None = None
    length: int | None = None
    marked: int = 0

    def resolve(self, model: Model) -> Conversion:
        bert_keywords(model, "longformer")
        length, window = resolve_length(self.length, model), self.window
        window = trained_positions(model) if window is None else window
        for size in window if isinstance(window, tuple) else (window,):
            if check_at_least("window", size, 0) > length:
                raise ValueError(f"window={size} is larger than length={length}. Give a window of at most {length}")
        return replace(self, window=window, length=length)

    def restructure(self, model: Model) -> Model:
        keywords = bert_keywords(model, "longformer")
        options: Any = {name: keywords[name] for name in TAKEN} | self.options
        new: Model = longformer(**options)
        copy_facts(model, new)
        note_length(new, new.longest or 0)
        return new

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        sources = tile_positions(source, converted.longest or 0)
        for name, layer in attention_layers(source):
            widths: Any = layer.projection.widths  # rows of queries, keys and values
            for parameter in ("weight", "bias"):
                old = (f"{name}.projection.qkv.{parameter}",)
                sources[f"{name}.side.{parameter}"] = WeightSource("duplicated", old, StackedRows(0, widths[0]))
                sources[f"{name}.key_side.{parameter}"] = WeightSource("duplicated", old, StackedRows(widths[0], None))
        return sources

    def promise(self, model: Model) -> Promise:
        known = trained_positions(model)
        assert self.window is not None
        window = min(self.window) if isinstance(self.window, tuple) else self.window
        length = window + 1 + self.marked  # global tokens are read from anywhere
        if length < known:
            return Promise(length, f"in longer rows some tokens are farther apart than the window of {window:,}")
        return Promise(known, f"windows hold every row of the source, which reads up to {known:,} tokens")
