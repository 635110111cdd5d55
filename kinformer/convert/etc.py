"""The conversion `etc`: BERT with local attention and a global token for each part of the text."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.convert.support.bert_source import (
    POSITIONS,
    StackedRows,
    bert_keywords,
    lengthen,
    move_blocks,
    replace_attention,
    resolve_length,
    tile_positions,
    trained_positions,
)
from kinformer.convert.support.changed_model import attention_layers, record_change
from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.conversion import Conversion, Promise, WeightSource
from kinformer.core.model import Model
from kinformer.models.segments import Unit, segments
from kinformer.nn.aggregations.by_stream import OutByStream
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.biases.etc_labels import ETCLabels
from kinformer.nn.depth.global_tokens import GlobalTokens
from kinformer.nn.mechanisms.gated_global_softmax import GatedGlobalSoftmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens


@dataclass(frozen=True)
class ETCConversion(Conversion):
    """Turn a BERT, RoBERTa or DistilBERT into an ETC, with a global token for each part of a text.

    Choose it over `longformer` if the text has parts, such as sentences. Global and long tokens (those of the text) get
    the same projections and output matrices, all of the source. Relative-position vectors (`ETCLabels`) start at 0. A
    global token starts as the source's own input for the token `start` at position 0. Long tokens read global tokens
    through a gate for each head that starts closed (`GatedGlobalSoftmax`), so rows that fit into the window have equal
    outputs. With open gates the attention is the paper's.

    It keeps the source's absolute positions, repeated until there are `length` of them. The result has one segment
    type, because relative-position vectors mark the parts. It stays a `bert` with changed layers, because the
    member `etc` has no absolute positions.

    radius: long tokens that a long token reads on either side; None gives the length of the source. The paper has 84.
        The conversion `longformer` says why half of the length may be better.
    tokens: maximum number of global tokens; the last one represents all remaining parts.
    clip: largest distance with a vector of its own.
    unit: a part is a "sentence", a "line" or a "paragraph".
    start: id of a token that gives global tokens their initial vector. None takes the token that the tokenizer puts
        before a text ([CLS] or <s>), or the mean of all tokens without such a tokenizer.
    length: longest row in tokens; None gives 8 times the length of the source, 4,096 for 512.

    Errors: ValueError, in one line, for a source that is no bert in its published form, and for a token outside of its
    vocabulary. ValueError too for a length below the source's or the radius.

    Source: Ainslie et al., 2020, arXiv:2004.08483 (lifting weights).
    """

    radius: int | None = None
    tokens: int = 32
    clip: int = 12
    unit: Unit = "sentence"
    start: int | None = None
    length: int | None = None

    def resolve(self, model: Model) -> Conversion:
        keywords = bert_keywords(model, "etc")
        length, start = resolve_length(self.length, model), self.start
        radius = trained_positions(model) if self.radius is None else self.radius
        if check_at_least("radius", radius, 0) > length:
            raise ValueError(f"radius={radius} is larger than length={length}. Give a radius of at most {length}")
        if start is None:
            start = next(iter(getattr(model.tokenizer, "begins", ())), None)
        else:
            check_in_range("start", start, 0, keywords["vocab"] - 1)
        check_at_least("tokens", self.tokens, 1)
        return replace(self, radius=radius, start=start, length=length)

    def restructure(self, model: Any) -> Model:
        bert_keywords(model, "etc")
        assert self.length is not None
        replace_attention(model, self._attention)
        lengthen(model, self.length)
        if model.kind is not None:
            model.kind = nn.Embedding(1, model.d).to(model.kind.weight)  # the label "segment" now names the part
        model.segment = partial(segments, unit=self.unit)
        model.body = GlobalTokens(model.body, self.tokens).to(model.embedding.weight)
        return record_change(model, self)

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        assert self.length is not None
        sources = {**move_blocks(source, converted), **tile_positions(source, self.length)}
        for (old, layer), (new, _) in zip(attention_layers(source), attention_layers(converted), strict=True):
            widths: Any = layer.projection.widths  # rows of queries, keys and values
            for part in ("weight", "bias"):
                qkv, output = (f"{old}.projection.qkv.{part}",), (f"{old}.aggregation.linear.{part}",)
                sources[f"{new}.side.{part}"] = WeightSource("duplicated", qkv, StackedRows(0, widths[0]))
                sources[f"{new}.key_side.{part}"] = WeightSource("duplicated", qkv, StackedRows(widths[0], None))
                sources[f"{new}.aggregation.long.linear.{part}"] = WeightSource("moved", output)
                sources[f"{new}.aggregation.wide.linear.{part}"] = WeightSource("duplicated", output)
        embedded: tuple[str, ...] = ("embedding.weight", POSITIONS, "norm.weight", "norm.bias")
        if "kind.weight" in source.state_dict():
            sources["kind.weight"] = WeightSource("shortened", ("kind.weight",), StackedRows(0, 1))
            embedded = (*embedded, "kind.weight")
        keywords = bert_keywords(source, "etc")
        node = _Embedded(self.start, keywords["vocab"], keywords["eps"])
        sources["body.node"] = WeightSource("embedded", embedded, node)
        return sources

    def promise(self, model: Model) -> Promise:
        assert self.radius is not None
        length = min(self.radius + 1, trained_positions(model))
        return Promise(length, f"the window holds rows of up to {length:,} tokens, and gates hide the global tokens")

    def _attention(self, number: int, old: Attention) -> Attention:
        assert self.radius is not None
        sizes, mechanism = old.sizes, old.mechanism
        labels = ETCLabels(sizes.heads, sizes.k_dim, self.tokens, self.clip)
        nn.init.zeros_(labels.keys)
        dropout: Any = mechanism.dropout
        pattern = Band(self.radius) | Tokens(self.tokens)
        wide = OutProjection(sizes.heads, sizes.v_dim, old.d)
        join = OutByStream(self.tokens, wide, old.aggregation)
        new = GatedGlobalSoftmax(self.tokens, sizes.heads, pattern, Rows(self.tokens), labels, dropout=dropout)
        return Attention(old.projection, new, aggregation=join).to(old.projection.matrix("q")[0])


@dataclass(frozen=True)
class _Embedded:
    """The input that the source's body gets for a token at position 0, or for the mean of all tokens.

    token: id of the token; None for the mean.
    vocab: number of tokens, without the mask token of this library.
    eps: epsilon of the norm.
    """

    token: int | None
    vocab: int
    eps: float

    def __call__(
        self, table: Tensor, positions: Tensor, gain: Tensor, shift: Tensor, kinds: Tensor | None = None
    ) -> Tensor:
        vector = table[: self.vocab].mean(0) if self.token is None else table[self.token]
        vector = vector + positions[0] + (0.0 if kinds is None else kinds[0])
        return F.layer_norm(vector, vector.shape, gain, shift, self.eps)
