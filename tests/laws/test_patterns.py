"""The laws of patterns and executors over expressions drawn from what the folders hold; how a draw is made."""

import itertools
import os
import random
from collections import Counter
from dataclasses import dataclass
from types import ModuleType

import pytest
from torch import Tensor

from kinformer.attend.executors import pieces, reference, sdpa
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.discover import examples
from kinformer.core.pattern import Heads, Index, Pattern
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.core.request import Refusal, Request
from kinformer.laws import impl, sharp
from kinformer.laws import pattern as law
from kinformer.laws.support.findings import Unjudged
from kinformer.laws.support.input_batch import vary_rows
from kinformer.laws.support.random_requests import requests_of_each_feature
from kinformer.nn.patterns.columns import Columns
from kinformer.nn.patterns.shifted import Shifted

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
    module = ModuleType("other")
    vars(module).update({"cost": lambda request: 1.0, "read": reference.read, **changes})
    return module


def test_requests_are_drawn_of_every_kind():
    """Biases, reads with and without an lse, groups, value heads of their own, padding: all of it in every run."""
    counts = Counter()
    for seed in range(impl.DRAWS):
        request = impl.draw_request(impl.LENGTH, None, seed)
        queries, keys = request.queries, request.keys
        heads = queries.q.shape[1]
        counts += Counter(
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
    assert all(counts.values()) and len(counts) == 15, counts


@pytest.mark.parametrize("pattern", [pattern for pattern in ATOMS if pattern.tensors()], ids=repr)
def test_a_batch_is_varied_so_that_its_rows_read_otherwise(pattern):
    """Also where a row brings one number, which no shift changes."""
    rows = [vary_rows(pattern).matrix(16, b=b).tolist() for b in range(2)]
    assert rows[0] != rows[1]


def sort_of(pattern):
    sort = "tensors" if pattern.tensors() else type(pattern).__name__
    return sort if sort in ("Full", "Causal", "tensors") else "other"


def test_each_feature_is_asked_beside_each_other_under_each_sort_of_pattern():
    """Full() with full rows and pairs of its own came in none of 3,000 requests that were drawn."""
    features = set()
    for make in requests_of_each_feature():
        request = make(impl.LENGTH)
        rows = None if request.rows is None else tuple(request.rows.tolist())
        where = request.where is not None
        features.add((sort_of(request.pattern), rows, where, request.run, request.full, request.lse))
    booleans = (False, True)
    expected = itertools.product(
        ("Full", "Causal", "other", "tensors"), (None, (1, 0), (1, 1)), booleans, booleans, booleans, booleans
    )
    assert features >= set(expected)


def of_file(name):
    """What a part's file gives as examples, as `kinformer check` of the file asks them."""
    return [example.make() for file, example in examples("patterns") if file == name]


def test_a_pattern_that_is_spelled_as_another_is_caught(monkeypatch):
    """Heads whose patterns were not moved."""
    honest = Shifted.expression.fget

    def spelled(example):
        return Heads(*example.pattern.patterns) if isinstance(example.pattern, Heads) else honest(example)

    assert [message for subject in of_file("shifted") for message in law.judge(subject)] == []
    monkeypatch.setattr(Shifted, "expression", property(spelled))
    message = [message for subject in of_file("shifted") for message in law.judge(subject)]
    assert (
        "pair (query 0, key 0) of head 0 differs from its expression Heads(Causal(), Band(left=2, right=0))"
        in message[0]
    )


def test_a_cache_with_too_many_slots_is_caught_at_each_length(monkeypatch):
    """Columns whose block has more places behind its summary; a segment's memory, which is full at its end."""

    def columns(pattern, length):
        return length // pattern.block * pattern.summary + max(length % pattern.block - pattern.first_place, 0)

    def segment(pattern, length):
        return min(length, pattern.length - 1 + pattern.memory)

    faults = {Columns: (columns, "2 slots are enough, but capacity(5) is 3")}
    faults[Segment] = segment, "3 slots are enough, but capacity(4) is 4"
    for kind, (capacity, says) in faults.items():
        every = of_file(kind.__name__.lower())
        assert [message for subject in every for message in sharp.judge(subject)] == []
        monkeypatch.setattr(kind, "capacity", capacity)
        assert says in next(message for subject in every for message in sharp.judge(subject))


def test_a_cache_with_too_few_slots_is_caught_at_each_length(monkeypatch):
    monkeypatch.setattr(Segment, "capacity", lambda pattern, length: min(length, 6 if length != 5 else 3))
    assert "4 positions are live at position 5, but capacity(5) is 3" in next(law.judge(Segment(4, 3)))


@dataclass(frozen=True)
class PowersOfTwo(Pattern):
    """Each query reads itself and the keys at a distance of a power of two."""

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        d = q - k
        return (d >= 0) & ((d & (d - 1)) == 0)


@dataclass(frozen=True)
class ForgetfulPowers(PowersOfTwo):
    """Keys are dropped after 40 positions, which a row of 13 positions does not show."""

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return k + 40 >= now


@dataclass(frozen=True)
class NarrowPowers(PowersOfTwo):
    """The reach ends after 16 positions."""

    def reach(self) -> tuple[float, float]:
        return 16, 0


@dataclass(frozen=True)
class SmallPowers(PowersOfTwo):
    """The cache has 20 slots."""

    def capacity(self, length: int) -> int:
        return min(length, 20)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [(ForgetfulPowers(), "but live()"), (NarrowPowers(), "but reach()"), (SmallPowers(), "but capacity")],
)
def test_a_bound_that_fails_far_out_is_caught(pattern: Pattern, says: str) -> None:
    assert not list(law.judge(PowersOfTwo()))
    assert says in " ".join(law.judge(pattern))


def test_sdpa_that_forgets_which_pairs_are_read_is_caught(monkeypatch):
    """`where` dropped from what needs no mask: only Full() of whole rows, without an lse, tells."""
    honest = sdpa.additive_mask
    whole = lambda request: request.full and type(request.pattern) is Full  # noqa: E731
    monkeypatch.setattr(sdpa, "additive_mask", lambda request: None if whole(request) else honest(request))
    assert (
        "in y under Full(), " in (message := next(impl.judge(sdpa)))
        and "with a mask that allows fewer pairs" in message
    )
    monkeypatch.undo()
    assert list(impl.judge(sdpa)) == []


def test_sdpa_that_takes_fewer_pairs_for_causal_is_caught(monkeypatch):
    monkeypatch.setattr(sdpa, "_is_causal", lambda request: request.is_causal and type(request.pattern) is Causal)
    assert (
        "in y under Causal(), " in (message := next(impl.judge(sdpa)))
        and "with a mask that allows fewer pairs" in message
    )


def test_pieces_that_forget_the_batch_rows_are_caught(monkeypatch):
    """Only a pattern with tensors of the batch knows rows apart."""
    honest = pieces.PlannedRead
    monkeypatch.setattr(pieces, "PlannedRead", lambda plan, rows, *arguments: honest(plan, None, *arguments))
    messages = [message for message in impl.judge(pieces) if "bias" not in message]
    assert messages and all(
        "in y under" in message and "with exchanged or repeated batch rows" in message for message in messages
    )


def wrong_lse(request: Request) -> AttentionOutput:
    output = reference.read(request)
    return output._replace(lse=None if output.lse is None else output.lse.detach())


def blind_to_groups(request: Request) -> AttentionOutput:
    keys = request.keys
    each = request.queries.q.shape[1] // keys.k.shape[1]
    return reference.read(request.replace(keys=keys._replace(k=keys.k.repeat(1, each, 1, 1))))


def blind_to_rows(request: Request) -> AttentionOutput:
    return reference.read(request.replace(rows=None))


@pytest.mark.parametrize(
    ("spoiled", "says"),
    [
        ({"read": wrong_lse}, "in the gradient of q"),
        ({"read": blind_to_groups}, "differs from the reference in"),
        ({"read": lambda request: reference.read(request.replace(bias=None))}, "bias"),
        ({"read": lambda request: reference.read(request.replace(scale=1.0))}, "in y under"),
        ({"read": blind_to_rows}, "with exchanged or repeated batch rows"),
        ({"read": lambda request: reference.read(request.replace(where=None))}, "with a mask that allows fewer pairs"),
        ({"cost": lambda request: -1.0}, "is -1.0; return a number of seconds"),
    ],
    ids=["lse", "groups", "bias", "scale", "rows", "where", "cost"],
)
def test_a_faulty_executor_is_caught(spoiled, says):
    assert says in next(impl.judge(executor(**spoiled)))


def test_what_an_executor_refuses_is_counted():
    requests = impl.DRAWS + len(list(requests_of_each_feature()))
    with pytest.raises(Unjudged, match=rf"all requests are refused: not today \({requests} times\)"):
        list(impl.judge(executor(cost=lambda request: Refusal("not today"))))
