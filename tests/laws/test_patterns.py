"""Law 5 over every pattern, and over expressions drawn from them."""

import os
import random

import pytest

from kinformer.core.expression import parse
from kinformer.discover import examples
from kinformer.laws import pattern as law

PROVE = os.environ.get("KINFORMER_PROVE") == "1"
ATOMS = list(examples("patterns"))
DEPTH, DRAWS = (3, 600) if PROVE else (2, 80)
LENGTHS = (1, 2, 7, 13, 22) if PROVE else (1, 7, 13)


@pytest.mark.parametrize(("name", "pattern"), ATOMS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(ATOMS)])
def test_pattern(name, pattern, record_property):
    record_property("law", "pattern")
    record_property("part", f"patterns.{name}")
    for length in LENGTHS:
        law.check(pattern, length)


@pytest.mark.parametrize("seed", range(DRAWS))
def test_expression(seed, record_property):
    rng = random.Random(seed)
    pattern = law.draw([pattern for _, pattern in ATOMS], DEPTH, rng)
    record_property("law", "pattern")
    record_property("part", f"expressions-{seed}")
    law.check(pattern, rng.choice(LENGTHS[1:]))


@pytest.mark.parametrize("seed", range(20))
def test_repr_parses_to_an_equal_pattern(seed):
    plain = [pattern for _, pattern in ATOMS if type(pattern).__hash__ is not object.__hash__]
    pattern = law.draw(plain, 2, random.Random(seed))
    assert parse(repr(pattern)) == pattern
    assert hash(parse(repr(pattern))) == hash(pattern)
