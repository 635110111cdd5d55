"""Members refuse keywords that mean nothing, and those that would do nothing, in one line that names them."""

from collections.abc import Callable

import pytest
import torch

from kinformer.members.adaptive_span import adaptive_span
from kinformer.members.bert import bert
from kinformer.members.calm import calm
from kinformer.members.compressive_transformer import compressive_transformer
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.members.guided_attention import guided_attention
from kinformer.members.transformer_xl import transformer_xl
from kinformer.members.universal_transformer import universal_transformer
from tests.unhooked import refusals, unhooked

TINY = {"d": 16, "depth": 2, "heads": 2, "vocab": 11}


@pytest.mark.parametrize("member", [transformer_xl, compressive_transformer, adaptive_span])
def test_no_head_is_refused(member: Callable) -> None:
    with pytest.raises(ValueError, match="^heads=0: give a whole number of at least 1$"):
        member(**{**TINY, "heads": 0})
    with pytest.raises(ValueError, match="^d=16 is not a multiple of heads=3"):
        member(**{**TINY, "heads": 3})


@pytest.mark.parametrize(
    ("member", "keywords", "says"),
    [
        (bert, {"kinds": -1}, "kinds=-1"),
        (transformer_xl, {"same_length": True, "memory": 0}, "memory=0: give a whole number of at least 1$"),
        (transformer_xl, {"depth": 0}, r"depth=0: give a whole number of at least 1"),
        (compressive_transformer, {"depth": 0}, r"depth=0: give a whole number of at least 1"),
        (adaptive_span, {"penalty": -1.0}, r"penalties\['span'\]=-1.0: give"),
        (calm, {"threshold": 1.5}, "threshold=1.5: give"),
        (calm, {"threshold": -3.0, "confidence": "saturation"}, "threshold=-3.0: give"),
        (calm, {"decay": "code", "temperature": None}, "decay='code' has no effect"),
        (calm, {"balance": True}, "balance=True has no effect with confidence='softmax_response'"),
        (depth_adaptive, {"threshold": (0.5,)}, r"threshold=\(0.5,\) has no effect with classifier='multinomial'"),
        (depth_adaptive, {"shared": False}, "shared=False has no effect with classifier='multinomial'"),
        (depth_adaptive, {"classifier": "probability", "price": 1.0}, "price=1.0 has no effect"),
        (depth_adaptive, {"classifier": "geometric", "threshold": (0.5, 0.5)}, "got 2 thresholds for 2 layers"),
    ],
)
def test_what_means_nothing_is_refused(member: Callable, keywords: dict, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}") as raised:
        member(**{**TINY, **keywords})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("keywords", [{"ponder": 0.5}, {"epsilon": 0.1}, {"halted": "copied"}])
def test_a_fixed_depth_reads_nothing_of_halting(keywords: dict) -> None:
    (name,) = keywords
    with pytest.raises(ValueError, match=f"^{name}=.* has no effect with halting=fixed; leave it out"):
        universal_transformer(**TINY, halting="fixed", **keywords)
    universal_transformer(**TINY, **keywords)


def test_a_vocabulary_of_one_is_no_choice() -> None:
    calm(**{**TINY, "vocab": 1}).eval().judge(torch.zeros(1, 4, dtype=torch.long))


def _no_flags() -> list[str]:
    from kinformer.nn.biases.adaptive_span import DynamicSpan
    from kinformer.nn.depth.act import Halting
    from kinformer.nn.exits.confidence import Probe, Saturation
    from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
    from kinformer.nn.exits.geometric import Geometric

    return refusals(
        [
            lambda: Halting(8, strict="no"),  # type: ignore[arg-type]
            lambda: ConfidenceThreshold(Saturation(), 0.5, strict="no"),  # type: ignore[arg-type]
            lambda: Geometric(8, 2, shared="no"),  # type: ignore[arg-type]
            lambda: Probe(8, balance="no"),  # type: ignore[arg-type]
            lambda: DynamicSpan(8, itself="no"),  # type: ignore[arg-type]
        ]
    )


def test_flags_are_true_or_false() -> None:
    messages = unhooked("tests.members.test_refusals:_no_flags")
    names = ["strict", "strict", "shared", "balance", "itself"]
    assert messages == [f"ValueError: {name}='no': give True or False" for name in names]


def test_a_record_of_what_nobody_reads_is_taken() -> None:
    """An earlier edition may have written it."""
    keywords = {**guided_attention(d=16, depth=2, heads=2, length=64, vocab=11).member.keywords, "delimiter": 1}
    with pytest.raises(ValueError, match="delimiter=1 has no effect with 2 guided heads"):
        guided_attention(**keywords)
    assert guided_attention.rebuild(**keywords).member.keywords == keywords
