"""The order of cost that each member declares is the growth of its counted operations.

`kinformer.lab.cost` counts the operations of a forward pass of a tiny model at several sizes of its input, and for
several values of each keyword in the expression. Nothing else changes, so differences of counts leave only the growth:
from size n to r n, count(r n) - r count(n) contains no term that is constant in a token, and from one value of a
keyword to the next, the plain difference contains only terms with this keyword. Positive multiples of the declared
terms must explain all differences up to TOLERANCE.
"""

import ast
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from kinformer.core.discover import find_member, member, members
from kinformer.core.keywords import FUNCTIONS, SIZES, cost_value, signature
from kinformer.lab.cost.cost import counting, sample_rows
from kinformer.nn.mechanisms import highest_scores, lsh, sorted_groups
from kinformer.nn.mechanisms.centroids import Centroids

TOLERANCE = 0.15  # of a difference of counts; L**1.5 for L**2 or L * log(L) is off by a third and more
NEGLIGIBLE = 0.04  # most share of the count beyond a term linear in the size, if the declared cost is linear in it
NOTICEABLE = 0.01  # least share of the count that a doubled keyword of the expression must add or remove
TINY = {"d": 8, "depth": 1, "heads": 1, "hidden": 8, "vocab": 5, "length": 4096, "dropout": 0.0, "smoothing": 0.0}
STACK = "transformer_xl(d=8, depth=1, heads=1, segment=8, memory=4)"


class Case(NamedTuple):
    """The setting of a member in which its growth is counted.

    keywords: keywords beside TINY; keywords of the expression start from these values and are doubled.
    sizes: sizes of the input; each is the same multiple of the one before.
    at: two sizes at which keywords are doubled; the last two of `sizes` by default.
    odd: keywords of the expression that must be odd: one more than the value is doubled.
    """

    keywords: Mapping[str, Any] = {}
    sizes: tuple[int, ...] = (64, 256, 1024)
    at: tuple[int, int] | None = None
    odd: tuple[str, ...] = ()


SEGMENTS = {"segment": 32, "memory": 4}
FEW = (16, 64, 256)
CASES = {
    "act_rnn": Case(sizes=(8, 32, 128)),
    "adaptive_span": Case({"spans": "1 / (1 + x)", "segment": 16, "longest": 4}, FEW),
    "agent": Case({"stack": STACK}, FEW),
    "axial_transformer": Case({"outer": 1, "inner": 1}, (256, 1024, 4096)),
    "behaviour_cloning": Case(sizes=FEW),
    "bigbird": Case({"block": 4, "window": 1, "keys": 2}),
    "blockbert": Case({"d": 16, "heads": 4, "blocks": 1}),
    "bp_transformer": Case({"k": 2}, FEW, (256, 128)),
    "clustered_transformer": Case({"clusters": 4, "topk": 4, "bits": 16, "iterations": 4}, at=(1024, 256)),
    "compressive_transformer": Case({"segment": 16, "memory": 4, "compressed": 4, "rate": 2}, FEW, (96, 192)),
    "csalr": Case({"d": 4, "size": 2}, (64, 128, 256, 512), (512, 256)),
    "decision_transformer": Case(sizes=FEW),
    "etc": Case({"radius": 4, "tokens": 4, "unit": "line", "vocab": 11}),
    "gtrxl": Case(SEGMENTS, FEW, (128, 256)),
    "image_transformer": Case({"block": 8, "memory": 8}),
    "informer": Case(
        {"channels": 1, "calendar": 0, "label": 1, "horizon": 1, "factor": 2}, at=(4096, 2048), sizes=(1024, 2048, 4096)
    ),
    "linformer": Case({"k": 4}),
    "llama": Case({"key_heads": 1}),
    "longformer": Case({"window": 4, "marked": 1}),
    "longformer_lm": Case({"depth": 2, "window": 4, "top": 4}),
    "luna": Case({"packs": 4}),
    "memorizing_transformer": Case({"segment": 16, "memory": 64, "k": 2}, (256, 512, 1024), (1024, 512)),
    "memory_compressed_transformer": Case({"depth": 2, "block": 8, "compress": 2}),
    "multi_scale": Case({"d": 12, "heads": 6, "length": 16, "position": "none"}, FEW),
    "nystromformer": Case({"landmarks": 16, "iterations": 4, "conv": 15}, at=(1024, 256), odd=("conv",)),
    "performer": Case({"features": 4}),
    "poolingformer": Case({"near": 4, "far": 16, "stride": 4}),
    "predictive_attention": Case({"depth": 2, "form": "decoder", "size": 2}, FEW),
    "reformer": Case({"depth": 2, "local": 16, "rounds": 1, "buckets": 8}),
    "rfa": Case({"features": 4}),
    "routing_transformer": Case({"heads": 2, "local": 16, "clusters": 4}),
    "sac": Case({"edges": 1, "width": 2}, (16, 32, 64), (64, 128)),
    "sac_encoder": Case({"edges": 1, "width": 2}, (16, 32, 64), (64, 128)),
    "set_transformer": Case({"inducing": 4}),
    "sinkhorn_encoder": Case({"block": 8, "length": 2048}, at=(1024, 2048)),
    "sinkhorn_transformer": Case({"block": 8, "length": 2048}, at=(1024, 2048)),
    "spalm": Case(SEGMENTS, FEW, (128, 256)),
    "sparse_transformer": Case({"stride": 8, "summary": 2}, at=(1024, 256)),
    "topk_transformer": Case(sizes=FEW),
    "transformer_xl": Case(SEGMENTS, FEW, (128, 256)),
}


# half a second and more, or as another member: the long run counts them, and two thirds of the others
SLOW = """act_rnn adaptive_span agent bigbird blockbert bp_transformer clustered_transformer compressive_transformer
etc gtrxl informer longformer longformer_lm memorizing_transformer poolingformer reformer sac sac_encoder
sinkhorn_encoder sparse_transformer spalm transformer_xl""".split()
SAMPLE = [name for name in members() if name not in SLOW][::3]
# numbers of layers and widths, which are constant factors of every order
FACTORS = """d depth decoder_depth head_dim heads hidden inner key_heads outer shared softmax_heads upscale v_dim
value_heads vocab width""".split()


@pytest.fixture(autouse=True)
def even_groups_and_short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups have equal sizes and are always sorted, and searches use short blocks of keys.

    Hashes and clusters of an untrained model are uneven, and short rows are read densely, whatever the groups. Both
    would hide the growth in rows of a size that a test can count. The work of finding the groups is counted.
    """
    hashed, assigned = lsh.HashRotations.forward, Centroids.assign_clusters

    def buckets(hashes: lsh.HashRotations, x: Tensor) -> Tensor:
        hashed(hashes, x)
        rounds = hashes.active_rotations.shape[2]
        drawn = [torch.randperm(x.shape[2], generator=torch.Generator().manual_seed(n)) for n in range(rounds)]
        numbers = torch.stack(drawn, -1) % (2 * hashes.active_rotations.shape[3])
        return numbers.expand(*x.shape[:2], -1, -1)

    def clusters(centroids: Centroids, x: Tensor) -> Tensor:
        assigned(centroids, x)
        return (torch.arange(x.shape[2]) % centroids.mu.shape[1]).expand(*x.shape[:2], -1)

    monkeypatch.setattr(lsh.HashRotations, "forward", buckets)
    monkeypatch.setattr(Centroids, "assign_clusters", clusters)
    monkeypatch.setattr(sorted_groups, "FEW", 0)
    monkeypatch.setattr(sorted_groups, "TOKEN", 0)
    monkeypatch.setattr(highest_scores, "KEYS", 16)
    monkeypatch.setattr(highest_scores, "PAIRS", 16 * 16)


def count(name: str, size: int, /, **keywords: Any) -> int:
    """The operations of a forward pass of a tiny model on one row of this size."""
    build: Any = find_member(name)
    declared = signature(build).parameters
    tiny = {key: value for key, value in TINY.items() if key in declared}
    if "shape" in declared:
        keywords["shape"] = (1, math.isqrt(size), math.isqrt(size))
    if "context" in declared:
        keywords["context"] = size
    torch.manual_seed(0)
    model = build.rebuild(**{**tiny, **keywords}).train()
    batch = sample_rows(model, 1, size)
    state = model.start(1, size) if model.lanes else None
    with torch.no_grad(), counting() as tally:
        model(batch, state, 0.5)
    return tally.flops


def terms(cost: str) -> list[str]:
    """The summands of an expression."""
    tree = ast.parse(cost, mode="eval").body
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        return [*terms(ast.unparse(tree.left)), *terms(ast.unparse(tree.right))]
    return [ast.unparse(tree)]


def names(cost: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(cost)) if isinstance(node, ast.Name)}.difference(FUNCTIONS)


def explains(counted: Sequence[float], declared: Sequence[Sequence[float]]) -> bool:
    """True if positive multiples of the declared differences, one list for each term, give the counted ones.

    The error of a difference is compared with the sum of the sizes of its terms, which may cancel each other.
    """
    right = torch.tensor(counted, dtype=torch.float64)
    left = torch.tensor(declared, dtype=torch.float64).T
    left = left / left.abs().amax(0)
    sizes = left.abs().sum(1)
    for _ in range(9):
        times = torch.linalg.lstsq(left / sizes[:, None], (right / sizes)[:, None]).solution[:, 0]
        sizes = (left * times).abs().sum(1)
    return bool((times > 0).all()) and bool(((left @ times - right).abs() <= TOLERANCE * sizes).all())


def grows_with_size(cost: str, count_at: Callable[[int], int], sizes: Sequence[int], values: Mapping[str, Any]) -> bool:
    (name,) = names(cost) & {*SIZES, "context"}

    def differences(of: Callable[[int], float]) -> list[float]:
        return [of(larger) - larger / smaller * of(smaller) for smaller, larger in pairwise(sizes)]

    def value_at(term: str, size: int) -> float:
        return cost_value(term, {**values, name: size})

    counted = differences(count_at)
    declared = [differences(functools.partial(value_at, term)) for term in terms(cost)]
    superlinear = [growth for growth in declared if abs(growth[-1]) > 1e-9 * sizes[-1]]
    is_linear = abs(counted[-1]) <= NEGLIGIBLE * count_at(sizes[-1])
    return not is_linear and explains(counted, superlinear) if superlinear else is_linear


def grows_with_keyword(
    cost: str,
    count_at: Callable[[int, int], int],
    keyword: str,
    unit: str,
    sizes: Sequence[int],
    values: Mapping[str, Any],
    odd: bool,
) -> bool:
    """True if the count grows as declared from a keyword's value to 2, 4 (and 8) times this value.

    It must do so at the first of `sizes`, and the first step must grow as declared from there to the second size.
    """
    with_keyword = [term for term in terms(cost) if keyword in names(term)]
    steps = [(sizes[0], (values[keyword] + odd) * 2**n - odd) for n in range(2 + len(with_keyword))]
    pairs = [*pairwise(steps), tuple((sizes[1], step) for _, step in steps[:2])]

    def differences(of: Callable[[int, int], float]) -> list[float]:
        return [of(*after) - of(*before) for before, after in pairs]

    def value_at(term: str, size: int, step: int) -> float:
        return cost_value(term, {**values, unit: size, keyword: step})

    counted = differences(count_at)
    if max(map(abs, counted[:-1])) < NOTICEABLE * count_at(*steps[-1]):
        return False
    return explains(counted, [differences(functools.partial(value_at, term)) for term in with_keyword])


def wrong_growth(name: str, cost: str) -> str:
    """The size or keyword with which the counted operations grow otherwise than an order of cost says; "" for none."""
    case = CASES.get(name, Case())
    defaults = {key: parameter.default for key, parameter in signature(find_member(name)).parameters.items()}
    (unit,) = names(cost) & {*SIZES, "context"}
    values = {**defaults, **case.keywords, unit: case.sizes[-1]}

    @functools.cache
    def count_at(size: int, /, **changed: int) -> int:
        return count(name, size, **{**case.keywords, **changed})

    if not grows_with_size(cost, count_at, case.sizes, values):
        return unit
    two = case.at or case.sizes[-2:]
    for keyword in sorted(names(cost) - {unit}):

        def with_step(size: int, step: int, keyword: str = keyword) -> int:
            return count_at(size, **{keyword: step})

        if not grows_with_keyword(cost, with_step, keyword, unit, two, values, keyword in case.odd):
            return keyword
    return ""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.prove]) for name in members()]
)
def test_the_counted_operations_grow_as_declared(name: str) -> None:
    cost = getattr(find_member(name), "cost", None)
    assert cost, f"{name} declares no order of cost: write @member(cost=...)"
    assert not (by := wrong_growth(name, cost)), f"{name} does not cost {cost}: its operations grow otherwise with {by}"


@pytest.mark.parametrize(
    ("name", "cost", "by"),
    [
        ("gpt", "L", "L"),
        ("gpt", "L**1.5", "L"),
        ("linear_transformer", "L**2", "L"),
        ("linear_transformer", "L * log(L)", "L"),
        pytest.param("bp_transformer", "L * k", "L", marks=pytest.mark.prove),
        pytest.param("axial_transformer", "pixels", "pixels", marks=pytest.mark.prove),
        pytest.param("axial_transformer", "pixels * log(pixels)", "pixels", marks=pytest.mark.prove),
        pytest.param("linformer", "L * k**2", "k", marks=pytest.mark.prove),
        ("linformer", "L / k", "k"),
        pytest.param("blockbert", "L**2 * blocks", "blocks", marks=pytest.mark.prove),
        pytest.param("sparse_transformer", "L * summary + L**2 / stride", "stride", marks=pytest.mark.prove),
        ("sparse_transformer", "L * stride + L * summary", "L"),
        ("routing_transformer", "L * local + L**2 / clusters", "clusters"),
        pytest.param("reformer", "L * local + L**2 * rounds / buckets", "buckets", marks=pytest.mark.prove),
        ("nystromformer", "L * landmarks", "L"),
    ],
)
def test_a_wrong_order_is_noticed(name: str, cost: str, by: str) -> None:
    assert wrong_growth(name, cost) == by


@pytest.mark.prove
@pytest.mark.parametrize("name", members())
def test_a_number_that_the_order_leaves_out_adds_little_work(name: str) -> None:
    build: Any = find_member(name)
    case = CASES.get(name, Case())
    defaults = {key: parameter.default for key, parameter in signature(build).parameters.items()}
    numbers = {**defaults, **{key: TINY[key] for key in TINY.keys() & defaults.keys()}, **case.keywords}
    before = count(name, case.sizes[-2], **case.keywords)
    for key in defaults.keys() - names(build.cost) - set(FACTORS):
        if type(number := numbers[key]) is not int or number < 1:
            continue
        for larger in (2 * number, 2 * number + 1):  # some are odd
            try:
                after = count(name, case.sizes[-2], **{**case.keywords, key: larger})
            except (TypeError, ValueError):
                continue
            assert after < 1.1 * before, f"{name}: {key}={larger} takes {after / before:.2f} times as many operations"
            break


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ("L * windw", "with the name 'windw', expected keywords"),
        *((cost, "expected an expression") for cost in ("L times d", "L(3)", "lambda: L", "L * 'd'", "log", "[L]", 5)),
    ],
)
def test_an_order_that_cannot_be_read_is_refused(cost: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):

        @member(cost=cost)
        def mine(d: int = 8) -> None:
            """A member."""
