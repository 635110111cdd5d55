"""The Sparse Transformer: its sets from the equations, who uses which, its starts and tables, and its pictures."""

import itertools
import math

import pytest
import torch

from kinformer.attend import attend
from kinformer.core.pattern import Pattern
from kinformer.members.sparse_transformer import TEXT, TINY, sparse_transformer
from kinformer.members.support.sparse_transformer_factors import Sets, Use, factor_patterns, layer_patterns
from kinformer.models.image import ImageModel
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from tests.by_hand import attention_by_hand, first_read

L = 5
Read = set[tuple[int, int]]


def reads(attention: Sets, m: int, p: int, i: int, j: int, c: int, at: int, window: int) -> bool:
    """Is j in A^(m+1)_i? Family rows 45 and 46 at p = 2, their powers beyond; `at` is the sub-block."""
    if j > i:
        return False
    size = L**m
    if attention == "strided":
        return (i - j) % size == 0 and (m == p - 1 or i - j <= window * size)
    if m == 0:
        return j // L == i // L
    return size - (at + 1) * c <= j % size < size - at * c and (m == p - 1 or j // (size * L) == i // (size * L))


def pairs(pattern: Pattern, length: int, h: int = 0) -> Read:
    return {(i, j) for i, row in enumerate(pattern.matrix(length, h=h).tolist()) for j, read in enumerate(row) if read}


@pytest.mark.parametrize("attention", ["strided", "fixed"])
@pytest.mark.parametrize(("p", "length"), [(2, 33), (3, 61)])
@pytest.mark.parametrize(("window", "far"), [("paper", L), ("code", L - 1)])
def test_every_set_is_its_equation(attention: Sets, p: int, length: int, window: str, far: int) -> None:
    pattern_sets = factor_patterns(attention, L, 2, 2, p, window)
    assert len(pattern_sets) == p
    for m, turns in enumerate(pattern_sets):
        assert len(turns) == (2 if attention == "fixed" and m else 1)
        for at, pattern in enumerate(turns):
            whole = itertools.product(range(length), repeat=2)
            expected = {(i, j) for i, j in whole if reads(attention, m, p, i, j, 2, at, far)}
            assert pairs(pattern, length) == expected


@pytest.mark.parametrize("attention", ["strided", "fixed"])
@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("window", ["paper", "code"])
def test_p_steps_of_p_sets_reach_all_that_was_before(attention: Sets, p: int, window: str) -> None:
    """Child et al., section 4.2; each step costs about the p-th root of what was before."""
    length = 40
    reachable = torch.eye(length, dtype=torch.double)
    for (pattern,) in factor_patterns(attention, 3, 1, 1, p, window):
        # what a position knows after a layer: what those that it reads, and itself, knew
        reachable = ((pattern.matrix(length).double() + torch.eye(length)) @ reachable).clamp_max(1)
    assert torch.equal(reachable.bool(), torch.ones(length, length).tril().bool())


@pytest.mark.parametrize("use", ["interleaved", "merged", "heads"])
@pytest.mark.parametrize("sub_blocks", [1, 2])
def test_layers_and_heads_use_the_sets_as_the_paper_says(use: Use, sub_blocks: int) -> None:
    """Family row 47: layer n uses n mod p, or all use the union, or head h uses h mod p."""
    p, length, c = 3, 61, 1
    pattern_sets = layer_patterns(factor_patterns("fixed", L, c, sub_blocks, p, "paper"), use, 5)
    for n, h in itertools.product(range(5), range(7)):
        at = h // p % sub_blocks if use == "heads" else h % sub_blocks
        mine = {"interleaved": {n % p}, "merged": set(range(p)), "heads": {h % p}}[use]
        whole = itertools.product(range(length), repeat=2)
        expected = {(i, j) for i, j in whole if any(reads("fixed", m, p, i, j, c, at, L) for m in mine)}
        assert pairs(pattern_sets[n], length, h) == expected


def test_its_attention_is_a_loop_over_what_each_head_reads() -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, 23, 3, generator=g, dtype=torch.double) for _ in range(3))
    (pattern,) = layer_patterns(factor_patterns("fixed", L, 1, 2, 2, "paper"), "heads", 1)
    y = attend(q, k, v, pattern=pattern).y
    for h, i in itertools.product(range(4), range(23)):
        keys = [j for j in range(23) if reads("fixed", h % 2, 2, i, j, 1, h // 2 % 2, L)]
        if not keys:  # before the first summary
            assert not y[0, h, i].any()
            continue
        scores = torch.stack([q[0, h, i] @ k[0, h, j] / math.sqrt(3) for j in keys]).softmax(0)
        assert torch.allclose(y[0, h, i], sum(p * v[0, h, j] for p, j in zip(scores, keys, strict=True)))


def test_weights_start_as_the_paper_says() -> None:
    """Standard deviations within 5% of the equation: numbers enough to tell 1/sqrt(2N) from none."""
    torch.manual_seed(0)
    depth, d = 8, 96
    model = sparse_transformer(d=d, depth=depth, heads=2, stride=16, summary=4, length=256)
    attention, mlp = model.body.layers[3].layers
    assert isinstance(attention, Attention) and isinstance(model, LM)
    inner, last = 0.125 / math.sqrt(d), 1 / math.sqrt(2 * depth)
    expected = {
        attention.projection.qkv.weight: inner,
        attention.aggregation.linear.weight: inner * last,
        mlp.up.weight: inner,
        mlp.down.weight: inner / 2 * last,  # from 4 d units
        model.embedding.weight: inner,
    }
    for weight, std in expected.items():
        assert abs(weight.std().item() / std - 1) < 0.05
    for table in model.position.tables:
        assert abs(table.weight.std().item() / (inner / math.sqrt(2)) - 1) < 0.1
    assert not model.head.weight.any() and not attention.projection.qkv.bias.any() and not mlp.down.bias.any()
    assert [len(table.weight) for table in model.position.tables] == [16, 16]  # rows and columns of 16 tokens
    loss = model(torch.randint(256, (2, 40))).total
    assert math.isclose(loss.item(), math.log(256), rel_tol=1e-6)


def test_values_have_a_width_of_their_own() -> None:
    torch.manual_seed(0)
    model = sparse_transformer(**TEXT, summary=1, head_dim=3, v_dim=5).double().eval()
    layer, x, y = first_read(model, torch.randint(11, (1, 13)))
    assert (layer.projection.k_dim, layer.projection.v_dim) == (3, 5)
    assert layer.aggregation.linear.weight.shape == (16, 2 * 5)

    def may(h: int, i: int, j: int) -> bool:
        return j <= i and (j // 4 == i // 4 or j % 4 == 3)

    torch.testing.assert_close(y, attention_by_hand(layer, x, may))
    plain, narrow = sparse_transformer(**TEXT, summary=1), sparse_transformer(**TEXT, summary=1, v_dim=8)
    assert [w.shape for w in plain.parameters()] == [w.shape for w in narrow.parameters()]
    with pytest.raises(ValueError, match="v_dim=0"):
        sparse_transformer(**TEXT, summary=1, v_dim=0)


def test_a_picture_has_tables_of_rows_columns_and_channels() -> None:
    model = sparse_transformer(**TINY, form="images", attention="strided", shape=(3, 4, 2))
    assert isinstance(model, ImageModel) and [len(table.weight) for table in model.position.tables] == [4, 2, 3]
    x = torch.arange(24)[None]
    rows, columns, channels = (table.weight for table in model.position.tables)
    tables = model.position(x)[0]
    assert torch.allclose(tables[17], rows[2] + columns[1] + channels[2])  # 17 = (2 * 2 + 1) * 3 + 2


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"sub_blocks": 5, "summary": 1}, "got summary \\+ offset=5, expected at most block=4"),
        ({"summary": 1, "gain": -1.0}, "gain=-1.0: give a number from 0"),
        ({"attention": "strided", "sub_blocks": 2}, "sub_blocks=2 has no effect with factors=2, attention=strided"),
        ({"attention": "fixed", "window": "code"}, "window=code has no effect with factors=2, attention=fixed"),
        ({"attention": "strided", "shape": (1, 2, 2)}, "shape=1,2,2 has no effect with form=text"),
        ({"form": "images", "attention": "strided", "length": 8}, "length=8 has no effect with form=images"),
        ({"factors": 0}, "factors=0"),
        ({"stride": 0}, "stride=0"),
        ({"form": "images", "summary": 1, "shape": (3, 4)}, "is not three numbers"),
    ],
)
def test_what_makes_no_sense_is_one_line(keywords: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sparse_transformer(**{**TINY, **keywords})
