"""The conversion `window`: a sliding window with attention sinks, as in StreamingLLM."""

from dataclasses import dataclass

from kinformer.convert.pattern import PatternConversion
from kinformer.convert.support.changed_model import record_change
from kinformer.convert.support.near_sinks import can_move_queries, read_near_keys_and_sinks
from kinformer.core.checks import check_at_least
from kinformer.core.conversion import Conversion, Promise
from kinformer.core.model import Model
from kinformer.nn.patterns.band import Band


@dataclass(frozen=True)
class WindowConversion(Conversion):
    """Let each token read the tokens just before it and the first tokens of the row.

    Choose it as the first attempt for every decoder: nothing is trained, the cache has a fixed size, and text of any
    length is read in linear time. Facts that are further back than the window are lost.

    With rotary positions each query reads the sinks at a distance of at most window + sinks tokens, as in StreamingLLM
    (`SinkSoftmax`). So the converted layers read no distance above window + sinks, however long the text is. This holds
    for models whose layers all have plain causal softmax attention. Other models get the conversion `pattern` with
    Causal() & (Band(window - 1) | Tokens(sinks)), which leaves all distances as they are. So a Mistral with a window of
    its own reads the sinks at growing distances, and with ALiBi the sinks fade in long texts. Learned positions end at
    the length of their table.

    window: tokens of the window, the token itself included. With sinks=4, window=252 reads 256 keys. Encoders also
        read window - 1 tokens after it, so their outputs are equal in rows of up to `window` tokens.
    sinks: number of first tokens that every token reads. Trained models put unneeded attention on them, so that a
        window without them fails.
    keep: numbers of the layers, from 1 at the bottom, that stay as they are; or how many, chosen by measurement.

    Source: Xiao et al., 2023, arXiv:2309.17453.
    """

    window: int = 252
    sinks: int = 4
    keep: int | tuple[int, ...] = ()

    def resolve(self, model: Model) -> Conversion:
        check_at_least("window", self.window, 1)
        check_at_least("sinks", self.sinks, 0)
        return self if self.sinks and can_move_queries(model) else self._as_pattern(model)

    def restructure(self, model: Model) -> Model:
        read_near_keys_and_sinks(model, Band(self.window - 1), self.sinks, self.keep)
        return record_change(model, self)

    def promise(self, model: Model) -> Promise:
        return self._as_pattern(model).promise(model)

    def _as_pattern(self, model: Model) -> Conversion:
        band = f"Band({self.window - 1})"
        near = f"({band} | Tokens({self.sinks}))" if self.sinks else band
        return PatternConversion(f"Causal() & {near}" if model.predicts_next else near, self.keep).resolve(model)
