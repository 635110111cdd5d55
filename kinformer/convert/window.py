"""The conversion `window`: a sliding window with attention sinks, as in StreamingLLM."""

from dataclasses import dataclass

from kinformer.convert.pattern import PatternConversion
from kinformer.core.checks import check_at_least
from kinformer.core.conversion import Conversion, Promise
from kinformer.core.model import Model


@dataclass(frozen=True)
class WindowConversion(Conversion):
    """Let each token read the tokens just before it and the first tokens of the row.

    Choose it as the first attempt for every decoder: nothing is trained, the cache has a fixed size, and text of any
    length is read in linear time. Facts that are further back than the window are lost. It stands for the conversion
    `pattern` with Causal() & (Band(window - 1) | Tokens(sinks)).

    window: tokens of the window, the token itself included. With sinks=4, window=252 reads 256 keys.
    sinks: number of first tokens that every token reads. Trained models put unneeded attention on them, so that a
        window without them fails.
    keep: numbers of the layers, from 1 at the bottom, that stay as they are; or how many, chosen by measurement.

    Source: Xiao et al., 2023, arXiv:2309.17453.
    """

    window: int = 252
    sinks: int = 4
    keep: int | tuple[int, ...] = ()

    def resolve(self, model: Model) -> Conversion:
        band = f"Band({check_at_least('window', self.window, 1) - 1})"
        near = f"({band} | Tokens({self.sinks}))" if check_at_least("sinks", self.sinks, 0) else band
        pattern = f"Causal() & {near}" if model.predicts_next else near
        return PatternConversion(pattern, self.keep).resolve(model)

    def restructure(self, model: Model) -> Model:
        return self.resolve(model).restructure(model)

    def promise(self, model: Model) -> Promise:
        return self.resolve(model).promise(model)
