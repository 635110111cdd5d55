"""Dropout: a member drops weights in all of its attention, or says why not."""

import pytest

from kinformer.core.discover import find_member, modules
from kinformer.core.example import Example
from kinformer.nn.mechanisms.softmax import Softmax

SUBLAYERS = "its paper drops the outputs of sublayers alone"
KEEPS = {  # members whose softmax drops no weights
    "transformer": SUBLAYERS,
    "shaw": SUBLAYERS,
    "sparse_transformer": SUBLAYERS,
    "image_transformer": "its authors' code drops the outputs of sublayers alone",
    "axial_transformer": "the outputs of sublayers alone, a choice made here",
    "set_transformer": "its paper has no dropout at all; here it is of sublayers and of what is pooled",
    "star_transformer": "the states of nodes after each round alone, a choice made here",
    "star_classifier": "as star_transformer",
    "reformer": "its hashed layers drop none, as in the authors' code, and local ones stand beside them",
    "performer": "its window is one softmax with an estimate that drops none",
    "lazyformer": "attention_dropout is a keyword of its own, none as the paper advises",
}


@pytest.mark.parametrize("name", modules("members"))
def test_every_softmax_of_a_member_drops_weights(name: str) -> None:
    for entry in modules("members")[name].EXAMPLES:
        record = Example.from_entry(entry).make().member
        if "dropout" not in record.keywords:
            continue
        function = find_member(record.name)
        model = function.rebuild(**{**record.keywords, "dropout": 0.3})  # type: ignore[attr-defined]
        shares = {part.dropout for part in model.modules() if isinstance(part, Softmax)}
        assert shares <= {0.0 if name in KEEPS else 0.3}
