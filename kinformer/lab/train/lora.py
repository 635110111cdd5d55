"""LoRA: the settings of a low-rank adaptation of trained weights, and its plan for a model."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, get_args

from torch import nn

from kinformer.core.checks import check_finite_number, check_whole_number
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Layer
from kinformer.core.quote import quote
from kinformer.nn.attention import Attention
from kinformer.nn.projections.qkv import QKV

AdaptedLayers = Literal["attention", "all"]


@dataclass(frozen=True)
class LoRA(KeywordHints):
    """Low-rank adaptation: trained weights stay frozen, and a small change of some of them is learned.

        W + (alpha / rank) B A

    Choose it to adapt a pretrained or converted model on a small machine: gradients and the optimiser's numbers exist
    only for A and B, often less than 1% of all weights. Choose full fine-tuning, without LoRA, to teach a model much
    that is new. B starts at 0, so the first step computes exactly the model that it starts from. At the end, and in
    every saved model, the changes are merged into the weights, so the result is a plain model.

    rank: the rank of each change; queries, keys and values have a change each, also if one matrix stacks them.
    alpha: numerator of the factor alpha / rank; 2 * rank by default, so that the factor is 2.
    layers: the adapted linear maps. "attention": queries, keys, values and outputs of attention. "all": every linear
        map of the layers, with feed-forward layers. Maps inside an attention mechanism, such as its position bias, are
        never adapted. Maps that share their matrix with another module, such as tied heads, and maps whose matrix is
        frozen (`requires_grad` is False) are not adapted either.
    train: names of parameters that are trained in full instead, such as new parts of a converted model. `*` in a name
        stands for any text, as in "*.feature_map.*". Frozen parameters stay frozen.

    Errors: ValueError if a number is out of range.

    Source: Hu et al., 2021, arXiv:2106.09685. Zhang et al., 2024, arXiv:2410.10254, adapt converted models by rank 8
    and alpha 16 on queries, keys, values and outputs.
    """

    rank: int
    alpha: float | None = None
    layers: AdaptedLayers = "attention"
    train: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if check_whole_number("rank", self.rank) < 1:
            raise ValueError(f"wrong rank: got {self.rank}, expected at least 1")
        alpha = check_finite_number("alpha", 2.0 * self.rank if self.alpha is None else self.alpha)
        if alpha <= 0:
            raise ValueError(f"wrong alpha: got {self.alpha}, expected a number above 0")
        object.__setattr__(self, "alpha", float(alpha))
        if self.layers not in get_args(AdaptedLayers):
            raise ValueError(f"wrong layers: got {quote(self.layers)}, expected {' or '.join(get_args(AdaptedLayers))}")
        if isinstance(self.train, str) or not all(isinstance(name, str) for name in self.train):
            raise ValueError(f"wrong train: got {quote(self.train)}, expected a tuple of names of parameters")
        object.__setattr__(self, "train", tuple(self.train))

    @property
    def scale(self) -> float:
        """The factor of B A."""
        assert self.alpha is not None
        return self.alpha / self.rank

    def plan(self, model: nn.Module) -> "LoRAPlan":
        """Return the matrices that are adapted and the parameters that are trained in full.

        model: the model, without adapters.

        Errors: ValueError if a name in `train` belongs to no parameter or only to frozen ones. ValueError if there is
        nothing to adapt; a model whose matrices are all frozen needs a parameter in `train` that is not.
        """
        parameters = dict(model.named_parameters())
        whole: dict[str, nn.Parameter] = {}
        for text in self.train:
            named = {name: p for name, p in parameters.items() if fnmatchcase(name, text)}
            if not named:
                raise ValueError(f"train={quote(text)} is the name of no parameter{suggest_names(text, parameters)}")
            if not (trainable := {name: p for name, p in named.items() if p.requires_grad}):
                raise ValueError(
                    f"cannot train {quote(text)}: got frozen weights, expected weights that require gradients. Leave "
                    "it out of train, or call requires_grad_() on the weights"
                )
            whole |= trainable
        holders = Counter(id(p) for part in model.modules() for p in part.parameters(recurse=False))
        skipped = {id(p) for p in whole.values()}
        candidates = {
            name: part for name, part in _candidates(model, self.layers).items() if holders[id(part.weight)] == 1
        }
        linears = {
            name: part
            for name, part in candidates.items()
            if part.weight.requires_grad and id(part.weight) not in skipped
        }
        place = "its attention layers" if self.layers == "attention" else "its layers"
        is_frozen = any(not part.weight.requires_grad for part in candidates.values())
        if not linears and is_frozen and not whole:
            raise ValueError(
                f"LoRA has nothing to adapt: got frozen weights in {place}, expected weights that require gradients. "
                "Train the source of this model, or call requires_grad_() on the weights"
            )
        if not linears and candidates and not is_frozen:
            raise ValueError(
                f"LoRA has nothing to adapt: got train= with every linear map in {place}, expected at least one map "
                "outside of it. Name fewer, or leave out lora"
            )
        if not linears and not is_frozen:
            raise ValueError(
                f"LoRA has nothing to adapt: got a model without linear maps in {place}, expected at least one. "
                "Leave out lora"
            )
        stacked = {part.qkv: tuple(part.widths) for part in model.modules() if isinstance(part, QKV)}
        widths = {name: stacked.get(part, (part.out_features,)) for name, part in linears.items()}
        return LoRAPlan(self.rank, linears, widths, whole, sum(p.numel() for p in parameters.values()))


def _candidates(model: nn.Module, layers: AdaptedLayers) -> dict[str, nn.Linear]:
    """Return the plain linear maps of attention, or of all layers, by name, without maps inside a mechanism."""
    kind = Attention if layers == "attention" else Layer
    mechanisms = [part.mechanism for part in model.modules() if isinstance(part, Attention)]
    inside_mechanism = {id(part) for mechanism in mechanisms for part in mechanism.modules()}
    return {
        inner: linear
        for name, layer in model.named_modules()
        if isinstance(layer, kind)
        for inner, linear in layer.named_modules(prefix=name)
        if type(linear) is nn.Linear and id(linear) not in inside_mechanism
    }


class LoRAPlan(NamedTuple):
    """The matrices of a model that LoRA adapts.

    rank: rank of the changes.
    linears: the adapted linear maps by name.
    widths: the numbers of rows of the maps that each of them stacks, by name.
    whole: the parameters that are trained in full, by name.
    size: number of all weights of the model.
    """

    rank: int
    linears: Mapping[str, nn.Linear]
    widths: Mapping[str, tuple[int, ...]]
    whole: Mapping[str, nn.Parameter]
    size: int

    @property
    def trained(self) -> int:
        """The number of trained weights."""
        changes = sum(
            self.rank * (len(self.widths[name]) * linear.in_features + linear.out_features)
            for name, linear in self.linears.items()
        )
        return changes + sum(p.numel() for p in self.whole.values())

    def __str__(self) -> str:
        whole = f" and {len(self.whole)} whole parameters" if self.whole else ""
        return (
            f"LoRA of rank {self.rank} trains {self.trained:,} weights ({self.trained / self.size:.2%} of the model's "
            f"{self.size:,}): changes of {len(self.linears)} matrices{whole}"
        )
