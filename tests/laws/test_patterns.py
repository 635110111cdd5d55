"""The laws of patterns and executors over expressions drawn from what the folders hold; how a draw is made."""

import os
import random
from collections import Counter
from types import ModuleType

import pytest

from kinformer.core.expression import parse
from kinformer.core.read import Read
from kinformer.core.request import Refusal, Request
from kinformer.discover import examples
from kinformer.execute import reference
from kinformer.laws import impl
from kinformer.laws import pattern as law
from kinformer.laws.support.batch import varied
from kinformer.laws.support.finding import Unjudged

PROVE = os.environ.get("KINFORMER_PROVE") == "1"
ATOMS = [example.make() for _, example in examples("patterns")]
DEPTH, DRAWS = (3, 600) if PROVE else (2, 80)
LENGTHS = (2, 7, 13, 22) if PROVE else (7, 13)


@pytest.mark.parametrize("seed", range(DRAWS))
def test_expression(seed, record_property):
    rng = random.Random(seed)
    pattern = law.draw(ATOMS, DEPTH, rng)
    record_property("law", "pattern")
    record_property("part", f"expressions-{seed}")
    law.check(rng.choice(LENGTHS), pattern)


@pytest.mark.parametrize("seed", range(20))
def test_repr_parses_to_an_equal_pattern(seed):
    plain = [pattern for pattern in ATOMS if type(pattern).__hash__ is not object.__hash__]
    pattern = law.draw(plain, 2, random.Random(seed))
    assert parse(repr(pattern)) == pattern
    assert hash(parse(repr(pattern))) == hash(pattern)


def executor(**changes):
    """The reference as another executor, spoiled."""
    found = ModuleType("other")
    vars(found).update({"cost": lambda request: 1.0, "read": reference.read, **changes})
    return found


def test_requests_are_drawn_of_every_kind():
    """Biases, reads with and without an lse, groups, value heads of their own, padding: all of it in every run."""
    seen = Counter()
    for seed in range(impl.DRAWS):
        request = impl.drawn(impl.LENGTH, None, seed)
        queries, keys = request.queries, request.keys
        heads = queries.q.shape[1]
        seen += Counter(
            bias=request.bias is not None,
            lse=request.lse,
            no_lse=not request.lse,
            rows=request.rows is not None,
            one_group=keys.k.shape[1] == 1,
            groups=1 < keys.k.shape[1] < heads,
            equal=keys.k.shape[1] == heads,
            value_heads=keys.v.shape[1] != keys.k.shape[1],
            padding=not request.full,
            full=request.full,
            run=request.run,
            other_length=queries.q.shape[2] != keys.k.shape[2],
            by_head=queries.pos.shape[1] > 1,
            heads="Heads(" in repr(request.pattern),
            no_width=queries.q.shape[3] == 0,
        )
    assert all(seen.values()) and len(seen) == 15, seen


@pytest.mark.parametrize("pattern", [pattern for pattern in ATOMS if pattern.tensors()], ids=repr)
def test_a_batch_is_varied_so_that_its_rows_read_otherwise(pattern):
    """Also where a row brings one number, which no shift changes."""
    rows = [varied(pattern).matrix(16, b=b).tolist() for b in range(2)]
    assert rows[0] != rows[1]


def wrong_lse(request: Request) -> Read:
    found = reference.read(request)
    return found._replace(lse=None if found.lse is None else found.lse.detach())


def blind_to_groups(request: Request) -> Read:
    keys = request.keys
    each = request.queries.q.shape[1] // keys.k.shape[1]
    return reference.read(request.but(keys=keys._replace(k=keys.k.repeat(1, each, 1, 1))))


def blind_to_rows(request: Request) -> Read:
    return reference.read(request.but(rows=None))


@pytest.mark.parametrize(
    ("spoiled", "says"),
    [
        ({"read": wrong_lse}, "in the gradient of q"),
        ({"read": blind_to_groups}, "differs from the reference in"),
        ({"read": lambda request: reference.read(request.but(bias=None))}, "bias"),
        ({"read": lambda request: reference.read(request.but(scale=1.0))}, "in y under"),
        ({"cost": lambda request: -1.0}, "estimates -1.0 seconds"),
    ],
    ids=["lse", "groups", "bias", "scale", "cost"],
)
def test_a_faulty_executor_is_caught(spoiled, says):
    assert says in next(impl.judge(executor(**spoiled)))


def test_what_an_executor_refuses_is_counted():
    with pytest.raises(Unjudged, match=f"refused, {impl.DRAWS} times: not today"):
        list(impl.judge(executor(cost=lambda request: Refusal("not today"))))
