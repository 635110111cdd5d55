"""The conversion `exits`: tokens leave the layers of a trained decoder early, as in CALM."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from kinformer.convert.support.changed_model import copy_facts, record_change
from kinformer.convert.support.exit_translators import fit_translators
from kinformer.core.checks import check_at_least, check_in_range, check_option
from kinformer.core.conversion import Conversion, Progress, Promise, WeightSource
from kinformer.core.model import Model, display_name
from kinformer.models.lm import LM
from kinformer.models.multi_exit import MultiExit
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.depth.stack import Stack
from kinformer.nn.exits.confidence import Saturation, SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.exits_at import ExitsAt
from kinformer.nn.exits.linear_shortcut import LinearShortcut
from kinformer.nn.exits.tuned_lens import TunedLens

Sure = Literal["softmax_response", "saturation"]
Propagation = Literal["linear", "copy"]


@dataclass(frozen=True)
class ExitsConversion(Conversion):
    """Let tokens leave the layers of a decoder early when their prediction is certain enough.

    Choose it for deep decoders and texts with many easy tokens, such as forms. The layers stay as they are and are
    frozen. Data train one translator for each exit, a learned affine map before the model's head, by the divergence
    KL(last layer | exit). Least squares fit one shortcut for each layer above an exit. If a token has left, shortcuts
    compute its states in the layers above, whose keys later tokens read. An adaptation trains the translators further.
    Then find a threshold that keeps the quality, with `kinformer calibrate FOLDER --data text=PATH`. The mean number of
    layers per token is the metric "layers" of `kinformer evaluate`.

    Expect little from small models. In SmolLM2-135M on novels, saving 1 of 30 layers costs 2% or more of the
    perplexity. An oracle that knows the divergence at each exit saves 1.3 to 2.4 layers for 2%.

    first: number of the layer of the lowest exit, from 1; half of the layers if None.
    every: layers from one exit to the next.
    confidence: "softmax_response" is the gap between the two largest probabilities. It reads the head at every exit,
        which costs several layers in a small model with a large vocabulary. "saturation" is the cosine between the
        states after this layer and the layer before, and costs almost nothing.
    threshold: confidence above which a token leaves. With 1 no token leaves.
    propagation: state of a token that has left, in the layers above. "linear" maps it by an affine shortcut in place of
        each layer, which damages later tokens half as much as "copy", the paper's copy of its state.
    rank: rank of translators and shortcuts; None for full matrices.

    Source: Schuster et al., 2022, arXiv:2207.07061; translators: Belrose et al., 2023, arXiv:2303.08112; linear
    shortcuts: Din et al., 2023, arXiv:2303.09435.

    Differences: CALM trains the layers for all exits, and a frozen model saves fewer layers. CALM lowers the threshold
    while an output grows; here it is constant. In CALM a token also leaves at a confidence equal to the threshold.
    Translators come after the norm of the head, and in Belrose et al. before it.
    """

    spellings: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"calm": {}})

    first: int | None = None
    every: int = 3
    confidence: Sure = "softmax_response"
    threshold: float = 0.9
    propagation: Propagation = "linear"
    rank: int | None = None

    def resolve(self, model: Model) -> "ExitsConversion":
        return self if self.first is not None else replace(self, first=max(len(self._body(model).layers) // 2, 1))

    def restructure(self, model: Model) -> Model:
        body = self._body(model)
        assert isinstance(model, LM)
        depth = len(body.layers)
        exits = self._exits(depth)
        norm = nn.Identity() if body.norm is None else body.norm
        heads = [TunedLens(body.d, norm, rank=self.rank) if number in exits else norm for number in range(1, depth + 1)]
        shortcuts = None
        if check_option("propagation", self.propagation, Propagation) == "linear":
            # no token leaves before the first exit, and nothing reads the output of the last layer
            passed = range(min(exits), depth - 1)
            shortcuts = [LinearShortcut(body.d, rank=self.rank) if n in passed else nn.Identity() for n in range(depth)]
        check_option("confidence", self.confidence, Sure)
        sure = SoftmaxResponse() if self.confidence == "softmax_response" else Saturation()
        rule = ConfidenceThreshold(sure, check_in_range("threshold", self.threshold, 0, 1), strict=True)
        model.requires_grad_(False)
        new = MultiExit(
            model.vocab,
            model.d,
            EarlyExit(list(body.layers), heads, ExitsAt(rule, exits), shortcuts=shortcuts),
            position=model.position,
            scale=model.scale,
            tie=model.head.weight is model.embedding.weight,
            dropout=model.dropout,
            penalties=model.penalties,
            lanes=model.lanes,
        )
        new.embedding, new.head = model.embedding, model.head
        new.to(model.embedding.weight)
        new.member = model.member
        return record_change(copy_facts(model, new), self)

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        assert isinstance(converted, MultiExit)
        norm = converted.body.heads[-1]
        places = {id(x): f"body.norm.{name}" for name, x in norm.named_parameters()}
        return {
            name: WeightSource("moved", (places[id(x)],))
            for name, x in converted.named_parameters(remove_duplicate=False)
            if id(x) in places
        }

    def promise(self, model: Model) -> Promise:
        if self.threshold >= 1:
            return Promise(torch.inf, "with a threshold of 1 no token leaves early")
        return Promise(
            0, "a token that leaves early is predicted by a translator, and later tokens read other keys of it"
        )

    def without_data(self) -> str:
        return "without data the exits and their shortcuts are untrained"

    def fit(self, source: Model, converted: Model, rows: Int[Tensor, "N T"], progress: Progress) -> None:
        """Train only the translators of the exits and the shortcuts, on rows of tokens.

        A translator starts as the least-squares map to the last state, and then learns by the divergence from the
        source's predictions. A shortcut is the least-squares map of its layer. `kf.convert` gives 8,192 tokens.
        """
        assert isinstance(source, LM)
        assert isinstance(converted, MultiExit)
        fit_translators(source, converted.body, rows, progress)

    def _body(self, model: Model) -> Stack:
        """Return the layers of a decoder; ValueError for other models."""
        if type(model) is not LM or not isinstance(model.body, Stack) or len(model.body.layers) < 2:
            raise ValueError(
                f"cannot give exits to this {display_name(model)}: expected a decoder of two layers or more in a "
                "stack, such as gpt or llama"
            )
        return model.body

    def _exits(self, depth: int) -> tuple[int, ...]:
        """Return the numbers of the layers with an exit."""
        first = max(depth // 2, 1) if self.first is None else self.first
        check_at_least("every", self.every, 1)
        if not 1 <= first < depth:
            raise ValueError(f"wrong first exit: got first={first}, expected a layer from 1 to {depth - 1}. Give one")
        return tuple(range(first, depth, self.every))
