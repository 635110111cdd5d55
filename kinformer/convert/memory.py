"""The conversion `memory`: segments that also read a memory of earlier tokens, as in Transformer-XL."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from kinformer.convert.pattern import PatternConversion, check_single_text
from kinformer.convert.support.changed_model import attention_layers, record_change
from kinformer.convert.support.near_sinks import can_move_queries, read_near_keys_and_sinks
from kinformer.core.checks import check_at_least
from kinformer.core.conversion import Conversion, Promise
from kinformer.core.model import Model, display_name
from kinformer.core.patterns.segment import Segment
from kinformer.nn.attention import Attention
from kinformer.nn.memories.hidden import Hidden


@dataclass(frozen=True)
class MemoryConversion(Conversion):
    """Let each layer of a decoder read its own segment and the tokens of a memory before it.

    Choose it over `window` for a model that is trained further on long texts. Its segments are read as whole blocks,
    and without sinks the training carries the memory from batch to batch. The cache has a fixed size. Facts that are
    further back are lost, as in a window; each layer extends the reach of the model by `memory` tokens.

        j <= i and (j >= i // segment * segment - memory or j < sinks)

    Training. With sinks=0, no `keep` and no learned positions, each layer gets a memory of hidden states (`Hidden`).
    The model then trains on consecutive text as in the paper, without gradients into earlier segments. In all other
    cases it trains on whole rows, with gradients between segments; rows longer than segment + memory show it the new
    limits. With sinks, carried states of the first tokens would come from weights that are thousands of steps old, and
    would stand at distances that grow with the text. With learned positions, a text that is carried on would run out of
    the table. Layers in `keep` read all of a row, which no memory holds.

    Positions. Near keys keep their distances, which are at most segment + memory tokens: choose fewer than a row of the
    training had. With rotary positions the sinks are read at segment + memory + sinks tokens at most, under the
    conditions of the conversion `window`. With ALiBi the sinks fade in long texts. A table of learned positions ends at
    its length.

    segment: tokens of a segment.
    memory: tokens before the segment that each layer also reads. With 0, segments read only themselves.
    sinks: number of first tokens that every token reads. Trained models put unneeded attention on them, so that the
        conversion fails without them until the model is trained.
    keep: numbers of the layers, from 1 at the bottom, that stay as they are; or how many, chosen by measurement.

    Errors: ValueError for a model that does not predict the next token, and for layers that have a memory already.

    Source: Dai et al., 2019, arXiv:1901.02860, section 3.2; sinks: Xiao et al., 2023, arXiv:2309.17453.
    """

    spellings: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"xl": {}, "transformer_xl": {}})

    segment: int = 128
    memory: int = 384
    sinks: int = 4
    keep: int | tuple[int, ...] = ()

    def resolve(self, model: Model) -> Conversion:
        check_at_least("segment", self.segment, 1)
        check_at_least("memory", self.memory, 0)
        check_at_least("sinks", self.sinks, 0)
        check_single_text(model, "a memory of earlier segments")
        if not model.predicts_next:
            raise ValueError(
                f"cannot give this {display_name(model)} a memory of earlier segments: it does not predict the next "
                "token. Use the recipe window"
            )
        for name, layer in attention_layers(model):
            if layer.memory is not None:
                kind = type(layer.memory).__name__
                raise ValueError(f"cannot give {name} a memory: it has one already ({kind}). Set its length instead")
        return self if self._carries(model) or self._moves(model) else self._as_pattern()

    def restructure(self, model: Model) -> Model:
        if not self._carries(model):
            read_near_keys_and_sinks(model, Segment(self.segment, self.memory), self.sinks, self.keep)
            return record_change(model, self)
        layers = attention_layers(model)
        for (name, old), pattern in zip(layers, self._as_pattern().patterns(model), strict=True):
            old.mechanism.pattern = pattern  # type: ignore[assignment]
            old.mechanism.lse = True  # type: ignore[assignment]  # compiled training merges a segment and its memory
            memory = Hidden(self.segment, self.memory)
            new = Attention(old.projection, old.mechanism, memory=memory, aggregation=old.aggregation)
            new.side, new.key_side = old.side, old.key_side  # trained projections of a bias
            model.set_submodule(name, new.train(old.training))
        model.lanes = True
        return record_change(model, self)

    def promise(self, model: Model) -> Promise:
        return self._as_pattern().promise(model)

    def _moves(self, model: Model) -> bool:
        """Return whether queries count as nearer to the sinks than they are."""
        return self.sinks > 0 and can_move_queries(model)

    def _carries(self, model: Model) -> bool:
        """Return whether training carries hidden states from batch to batch."""
        return not self.sinks and not self.keep and model.longest is None

    def _as_pattern(self) -> PatternConversion:
        near = f"Segment({self.segment}, {self.memory})"
        return PatternConversion(
            f"Causal() & ({near} | Tokens({self.sinks}))" if self.sinks else f"Causal() & {near}", self.keep
        )
