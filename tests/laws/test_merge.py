"""Law 14 over every mechanism: pieces of the keys merge to the whole."""

import pytest

from kinformer.discover import examples, modules
from kinformer.laws import merge as law
from kinformer.laws.broken import Broken

PARTS = [(f"mechanisms.{name}-{n}", name, factory) for n, (name, factory) in enumerate(examples("mechanisms"))]
BREAKS = {name: getattr(module, "BREAKS", {}) for name, module in modules("mechanisms").items()}


WHOLE = [(part, factory) for part, name, factory in PARTS if "merge" not in BREAKS[name]]


@pytest.mark.parametrize(("part", "factory"), WHOLE, ids=[part for part, _ in WHOLE])
def test_pieces_merge_to_the_whole(part, factory, record_property):
    record_property("law", "merge")
    record_property("part", part)
    for seed, pieces in enumerate((2, 3, 9)):
        law.check(factory(), pieces=pieces, seed=seed)


@pytest.mark.parametrize("name", sorted(name for name, breaks in BREAKS.items() if "merge" in breaks))
def test_a_declared_break_is_one(name):
    """BREAKS is strict: a mechanism that says its reads do not merge has an example whose reads indeed do not."""
    with pytest.raises(Broken):
        for _, mechanism, factory in PARTS:
            if mechanism == name:
                law.check(factory())
