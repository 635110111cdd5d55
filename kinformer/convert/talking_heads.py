"""The conversion `talking_heads`: heads mix their scores and weights, at first by the identity."""

from dataclasses import dataclass

import torch

from kinformer.convert.support.changed_model import attention_layers, kept_layers, record_change
from kinformer.core.conversion import Conversion, Promise
from kinformer.core.model import Model, display_name
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.talking_heads import MixHeads


@dataclass(frozen=True)
class TalkingHeadsConversion(Conversion):
    """Let the heads of each layer mix their scores before the softmax, and their weights after it.

    Choose it to fine-tune a model with many narrow heads on short rows. Two small matrices per layer are new and start
    as the identity, so outputs are equal until training moves them. The whole matrix of scores is computed, so it costs
    more time and memory than the source.

    bias: True adds a learned number for each mixed head, as in CaiT; the paper has none.
    keep: numbers of the layers, from 1 at the bottom, that stay as they are; or how many, chosen by measurement.

    Errors: ValueError for layers that are no softmax attention.

    Source: Shazeer et al., 2020, arXiv:2003.02436.
    """

    bias: bool = False
    keep: int | tuple[int, ...] = ()

    def restructure(self, model: Model) -> Model:
        layers = attention_layers(model)
        keep = kept_layers(self.keep, len(layers))
        for number, (name, layer) in enumerate(layers, 1):
            if number not in keep:
                layer.mechanism = self._mechanism(model, name, layer)
        return record_change(model, self)

    def promise(self, model: Model) -> Promise:
        return Promise(torch.inf, "each head hears only itself until training moves the mixing matrices")

    def _mechanism(self, model: Model, name: str, layer: Attention) -> Explicit:
        """Return the new mechanism of a layer."""
        old = layer.mechanism
        if type(old) is not Softmax:
            raise ValueError(
                f"cannot mix the heads of {name} in this {display_name(model)}: its mechanism is "
                f"{type(old).__name__}, expected Softmax. Convert a model such as gpt, or keep this layer"
            )
        like = next(layer.parameters())
        before, after = (_identity(layer.sizes.heads, self.bias).to(like) for _ in range(2))
        new = Explicit(
            old.pattern, old.bias, score=old.score, before=before, after=after, scale=old.scale, dropout=old.dropout
        )
        return new.train(old.training)


def _identity(heads: int, bias: bool) -> MixHeads:
    """Return a mix in which each head hears only itself."""
    mix = MixHeads(heads, bias=bias)
    with torch.no_grad():
        mix.mix.weight.copy_(torch.eye(heads))
    return mix
